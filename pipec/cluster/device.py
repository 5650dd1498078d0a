"""One accelerator: what it computes, holds and moves, and where these figures come from."""

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass

from msgspec import convert

from pipec.errors import ClusterError

PROCESSOR_PORTS = ("HP0", "HP1", "HP2", "HP3", "HPC0", "HPC1")
"""Ports of a Zynq UltraScale+ through which the fabric reaches its processor's memory (UG1085)."""
_PROCESSOR_BYTES = 16
"""Bytes of a beat of each."""
_NAME, _WORD = re.compile(r"[\w.+()-][\w .+()-]{0,63}"), re.compile(r"[\w.-]{0,64}")


@dataclass(frozen=True)
class FpgaResources:
    """What an FPGA offers a dataflow design.

    Attributes:
        part: Vendor part name, for the emitted scripts.
        lut: Look-up tables.
        ff: Flip-flops.
        bram36: Block RAMs of 36,864 bits.
        uram: UltraRAMs of 294,912 bits.
        dsp: DSP slices.
        clock_hz: Clock that designs are planned for.
        link_payload: Share of a link's rate that carries data.
        logic_limit: Usable share of LUT, FF and DSP.
        memory_limit: Usable share of block and Ultra RAM.
        has_platform: Whether a vendor platform for kernels exists (else IP export only).
        memory_kind: ``DDR`` or ``HBM``, as the vendor's linker calls it.
        memory_ports: Memory ports: DDR controllers, or HBM pseudo-channels.
        hard_memory: Whether memory is that of the processor of a Zynq UltraScale+, whose
            controller takes nothing of the fabric; ports are some of its `PROCESSOR_PORTS`.
    """

    part: str
    lut: int
    ff: int
    bram36: int
    uram: int
    dsp: int
    clock_hz: float = 200e6
    link_payload: float = 0.9
    logic_limit: float = 0.70
    memory_limit: float = 0.80
    has_platform: bool = False
    memory_kind: str = "DDR"
    memory_ports: int = 1
    hard_memory: bool = False

    @property
    def on_chip_bytes(self) -> int:
        """Bytes of all block and Ultra RAM."""
        return int(ram_bits(self.bram36, self.uram)) // 8


def ram_bits(bram36: float, uram: float) -> float:
    """Bits of so many block RAMs and UltraRAMs."""
    return bram36 * 36_864 + uram * 294_912


@dataclass(frozen=True)
class Device:
    """One kind of accelerator.

    Attributes:
        kind: Name, lower case.
        family: ``gpu``, ``cpu`` or ``fpga``.
        peak_flops: FLOP/s by dtype (multiply and add are two), dense.
        memory_bytes: Device memory (DDR or HBM of an FPGA board).
        memory_bandwidth: Bytes/s of that memory.
        launch_seconds: Overhead of starting one node.
        link_bandwidth: Bytes/s to a neighbour, each direction, unless the cluster says otherwise.
        link_latency: Seconds until the first byte arrives.
        source: The data sheet or measurement of the figures.
        host_bandwidth: Bytes/s between the device and host memory, each direction.
        fpga: Fabric of an FPGA.
        compute_efficiency: Share of ``peak_flops`` that large products reach, where measured.
        memory_efficiency: Share of ``memory_bandwidth`` that streaming kernels reach.
        tables: GPU whose measured kernels time its nodes (`pipec.cost.silicon`); none if empty.
    """

    kind: str
    family: str
    peak_flops: Mapping[str, float]
    memory_bytes: float
    memory_bandwidth: float
    launch_seconds: float
    link_bandwidth: float
    link_latency: float
    source: str
    host_bandwidth: float = 12e9
    fpga: FpgaResources | None = None
    compute_efficiency: float = 1.0
    memory_efficiency: float = 1.0
    tables: str = ""

    def __post_init__(self) -> None:
        """Refuse names that are no plain words: they stand in programs, scripts and tables.

        Raises:
            ClusterError: One is; or a processor has not as many memory ports.
        """
        ports = self.fpga.memory_ports if self.fpga and self.fpga.hard_memory else 0
        if ports > len(PROCESSOR_PORTS):
            want = f"at most {len(PROCESSOR_PORTS)}: {', '.join(PROCESSOR_PORTS)}"
            raise ClusterError("the processor has fewer memory ports", got=ports, want=want)
        part = self.fpga.part + self.fpga.memory_kind if self.fpga else ""
        for text, allowed in ((self.kind, _NAME), (part, _WORD)):
            if not allowed.fullmatch(text):
                raise ClusterError(
                    "a device has a name that cannot be written everywhere",
                    got=repr(text),
                    want="letters, digits, spaces and . _ + - ( ), at most 64 characters",
                )

    @property
    def streams(self) -> bool:
        """Whether all operations of a stage run at the same time, each on engines of its own."""
        return self.family == "fpga"

    @property
    def memory_rate(self) -> float:
        """Bytes/s of memory that streaming kernels reach, through all ports of an FPGA."""
        rate = self.memory_bandwidth * self.memory_efficiency
        if self.fpga is not None and self.fpga.hard_memory:
            rate = min(rate, self.fpga.memory_ports * _PROCESSOR_BYTES * self.fpga.clock_hz)
        return rate

    def flops(self, dtype: str) -> float:
        """Peak FLOP/s for ``dtype``; that of float32 where the table has no entry."""
        return self.peak_flops.get(dtype, self.peak_flops["float32"])

    def to_json(self) -> dict[str, object]:
        """The device as plain data."""
        exact = {"peak_flops": dict(self.peak_flops), "memory_bytes": float(self.memory_bytes)}
        return {**dataclasses.asdict(self), **exact}

    @staticmethod
    def from_json(data: Mapping[str, object]) -> "Device":
        """The inverse of `to_json`.

        Raises:
            ClusterError: A field is missing or unknown.
        """
        try:
            return convert(data, Device)
        except ValueError as error:
            raise ClusterError("a device record is malformed", got=error) from error
