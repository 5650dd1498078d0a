"""Devices that pipec knows by name, each with the source of its figures.

FPGA peaks are what a dataflow of DSP slices reaches at the planned clock: usable slices divided by
slices per multiply-add (float32 5, bfloat16 3, float16 4, fixed point up to 18 bits 1, int8 two per
slice where two share an operand), times two.
"""

import difflib
from dataclasses import replace

from pipec.cluster.device import Device, FpgaResources
from pipec.errors import ClusterError

DSP_PER_MAC = {"float32": 5.0, "bfloat16": 3.0, "float16": 4.0, "int16": 1.0, "int8": 0.5}
"""DSP slices (DSP48E2) per multiply-accumulate unit, by dtype: of int8 at least so many."""

PCIE3, PCIE4, PCIE5 = 12e9, 25e9, 50e9
"""Bytes/s that pinned copies over 16 lanes of PCI Express reach, about four fifths of the peak."""

_GIB = 2**30


def _gpu(
    kind: str,
    fp32: float,
    half: float,
    gib: float,
    bandwidth: float,
    nvlink: float,
    host: float,
    source: str,
) -> Device:
    peak = {"float32": fp32, "float16": half, "bfloat16": half, "float64": fp32 / 2}
    return Device(kind, "gpu", peak, gib * _GIB, bandwidth, 5e-6, nvlink, 10e-6, source, host)


def _fpga(
    kind: str, resources: FpgaResources, ddr: float, gib: float, gbit: float, source: str
) -> Device:
    usable = resources.dsp * resources.logic_limit * resources.clock_hz * 2
    peak = {dtype: usable / dsp for dtype, dsp in DSP_PER_MAC.items()}
    link = gbit * 1e9 / 8 * resources.link_payload
    return Device(kind, "fpga", peak, gib * _GIB, ddr, 0.0, link, 1e-6, source, PCIE3, resources)


PRESETS: dict[str, Device] = {
    d.kind: d
    for d in (
        Device(
            "cpu", "cpu", {"float32": 100e9, "float64": 50e9}, 16 * _GIB, 20e9, 5e-6, 5e9, 60e-6,
            "one core with AVX2 at about 3 GHz; measure with `pipec profile` for real figures",
            10e9,
        ),
        _gpu("v100", 15.7e12, 125e12, 16, 900e9, 150e9, PCIE3,
             "NVIDIA Tesla V100 SXM2 16 GB data sheet (tensor cores for half precision)"),
        replace(
            _gpu("a100", 19.5e12, 312e12, 80, 2039e9, 300e9, PCIE4,
                 "NVIDIA A100 SXM 80 GB data sheet (dense); as measured in aiconfigurator-core: "
                 "the median GEMM of m >= 1024, n and k >= 2048, its "
                 "mem_bw_empirical_scaling_factor, a call from Python beyond a CUDA graph"),
            compute_efficiency=0.77, memory_efficiency=0.8, launch_seconds=39e-6,
        ),
        _gpu("h100", 67e12, 989e12, 80, 3350e9, 450e9, PCIE5,
             "NVIDIA H100 SXM 80 GB data sheet (dense)"),
        _gpu("h200", 67e12, 989e12, 141, 4800e9, 450e9, PCIE5,
             "NVIDIA H200 SXM data sheet (dense)"),
        _fpga("vcu118",
              FpgaResources("xcvu9p-flga2104-2L-e", 1_182_240, 2_364_480, 2_160, 960, 6_840,
                            memory_ports=2),
              38.4e9, 4, 100,
              "XCVU9P product table; board: 2 x DDR4-2400 x64, 2 x QSFP28 (UG1224)"),
        _fpga("vcu129",
              FpgaResources("xcvu29p-fsga2577-2L-e", 1_728_000, 3_456_000, 2_688, 1_280, 12_288),
              19.2e9, 4, 100,
              "XCVU29P product table; board: DDR4, QSFP-DD and QSFP cages (UG1318)"),
        _fpga("u250",
              FpgaResources("xcu250-figd2104-2L-e", 1_728_000, 3_456_000, 2_688, 1_280, 12_288,
                            has_platform=True, memory_ports=4),
              77e9, 64, 100, "Alveo U250: UG1120, UG1393 (4 x DDR4, 2 x QSFP28)"),
        _fpga("u280",
              FpgaResources("xcu280-fsvh2892-2L-e", 1_303_680, 2_607_360, 2_016, 960, 9_024,
                            has_platform=True, memory_kind="HBM", memory_ports=32),
              460e9, 8, 100, "Alveo U280: UG1120, UG1393 (HBM2, 2 x QSFP28)"),
        _fpga("u55c",
              FpgaResources("xcu55c-fsvh2892-2L-e", 1_304_000, 2_607_000, 2_016, 960, 9_024,
                            has_platform=True, memory_kind="HBM", memory_ports=32),
              460e9, 16, 100, "Alveo U55C: UG1120, UG1393 (HBM2, 2 x QSFP28)"),
        _fpga("zcu102",
              FpgaResources("xczu9eg-ffvb1156-2-e", 274_080, 548_160, 912, 0, 2_520,
                            memory_ports=6, hard_memory=True),
              19.2e9, 4, 40, "XCZU9EG product table; board: PS DDR4-2400 x64, 4 x SFP+ (UG1182); "
              "6 HP and HPC ports of 128 bits (UG1085)"),
    )
}  # fmt: skip
"""Kind to device."""


def preset(kind: str, where: str = "") -> Device:
    """The device called ``kind``.

    Raises:
        ClusterError: There is none; near names are suggested.
    """
    found = PRESETS.get(kind.strip().lower())
    if found is None:
        near = difflib.get_close_matches(kind.lower(), PRESETS, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else "describe it in a cluster file"
        raise ClusterError(
            "no such device", where=where or None, got=kind, want=", ".join(PRESETS), hint=hint
        )
    return found
