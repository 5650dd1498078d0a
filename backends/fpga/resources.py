"""What engines and memories take of a board: closed forms, to be read as estimates.

No synthesis tool stands behind these numbers. DSP and RAM counts follow the primitives' shapes
(BRAM36: 512x72 .. 4096x9 bits, URAM: 4096x72); LUT counts are good to about a factor of two.
"""

import math
from functools import singledispatch

from pipec.backends.fpga.arithmetic import arithmetic, step_cost
from pipec.backends.fpga.design import Engine, Memory, Resources, bits_of
from pipec.backends.fpga.int8 import kind_of
from pipec.backends.fpga.lowering.integer import Mode, mode_of
from pipec.backends.fpga.nests import Map, Matmul, Mvu, Norm, Reduce, Swg, Vvu, ceil_div
from pipec.backends.fpga.routing import Dwc, Load, Nest
from pipec.cluster.device import Device, FpgaResources

CONTROL_LUT = 300
"""Counters and handshakes of one engine."""
LINK_SHELL = Resources(lut=35_219, ff=86_269, bram36=91.5)
"""A 100G network core, once per board that has neighbours (FINN+ platform tables)."""
DDR_SHELL = Resources(lut=33_256, ff=44_889, bram36=99.5)
"""A DDR4 controller, per board that streams weights (FINN+ platform tables)."""
LUT_MEMORY_LIMIT = 0.40
"""Share of the LUTs that may serve as memory."""


def bram36(width: int, depth: int) -> int:
    """Block RAMs for ``depth`` words of ``width`` bits.

    Example:
        >>> bram36(256, 512), bram36(64, 4608), bram36(36, 2048), bram36(256, 1152)
        (4, 9, 2, 12)
    """
    shapes = ((72, 512), (36, 1024), (18, 2048), (9, 4096))
    return min(ceil_div(width, w) * ceil_div(depth, d) for w, d in shapes)


def uram(width: int, depth: int) -> int:
    """UltraRAMs; narrow words share a row.

    Example:
        >>> uram(144, 8192), uram(72, 4096), uram(32, 8192)
        (4, 1, 1)
    """
    if width <= 36:
        return ceil_div(depth, 4096 * (72 // width))
    return ceil_div(width, 72) * ceil_div(depth, 4096)


def lut_ram(width: int, depth: int) -> int:
    """LUTs of a distributed memory.

    Example:
        >>> lut_ram(32, 64)
        32
    """
    return width * ceil_div(depth, 64)


def stored(memory: Memory, width: int, depth: int) -> Resources:
    """What a memory takes where it lies."""
    if memory is Memory.BRAM:
        return Resources(bram36=bram36(width, depth))
    if memory is Memory.URAM:
        return Resources(uram=uram(width, depth))
    if memory is Memory.LUT:
        return Resources(lut=lut_ram(width, depth))
    return Resources()


def too_much(name: str, used: float, limit: float) -> list[str]:
    """One exceeded limit in words; nothing if it is kept.

    Example:
        >>> too_much("DSP", 1_200.5, 1_000.0), too_much("DSP", 1_000.0, 1_000.0)
        (['1,201 DSP of 1,000 (201 too many)'], [])
    """
    if used <= limit * (1 + 1e-9):
        return []
    taken, most = math.ceil(used - min(limit, 0.0)), math.floor(max(limit, 0.0))
    return [f"{taken:,} {name} of {most:,} ({taken - most:,} too many)"]


def limits(device: Device, fabric: FpgaResources, core: Resources) -> Resources:
    """What may be used of a board (its limits applied), its network core taken off."""
    logic, memory = fabric.logic_limit, fabric.memory_limit
    return Resources(
        dsp=fabric.dsp * logic,
        bram36=fabric.bram36 * memory - core.bram36,
        uram=fabric.uram * memory,
        lut=fabric.lut * logic - core.lut,
        ff=fabric.ff * logic - core.ff,
        ddr=device.memory_bandwidth * memory,
    )


def logic(engine: Engine) -> Resources:
    """DSPs, LUTs and flip-flops of an engine, its memories not counted."""
    dsp, lut = units(engine.nest, engine.dtype)
    return Resources(dsp=dsp, lut=lut + CONTROL_LUT, ff=2 * (lut + CONTROL_LUT))


@singledispatch
def units(nest: Nest, dtype: str) -> tuple[float, float]:
    """DSPs and LUTs of a nest's data path."""
    return (0.0, 0.0)


@units.register
def _mvu(nest: Mvu | Matmul, dtype: str) -> tuple[float, float]:
    cost, units = arithmetic(dtype), nest.pe * nest.simd
    final = nest.pe if nest.partial > 1 or isinstance(nest, Matmul) else 0
    lut = units * cost.mac_lut + 100 * final + nest.pe * cost.narrowing_lut
    return (units * cost.mac_dsp + final * cost.add_dsp, lut)


@units.register
def _vvu(nest: Vvu, dtype: str) -> tuple[float, float]:
    cost, units = arithmetic(dtype), nest.lanes * nest.kp
    lut = units * cost.mac_lut + nest.lanes * cost.narrowing_lut
    return (units * cost.mac_dsp + nest.lanes * cost.add_dsp, lut)


@units.register
def _reduce(nest: Reduce, dtype: str) -> tuple[float, float]:
    cost, units = arithmetic(dtype), nest.lanes * nest.kp
    if kind_of(dtype) == "int8":
        narrow = nest.lanes * cost.narrowing_lut if nest.op == "sum" else 0.0
        return (0.0, 16.0 * units + narrow)
    if nest.op != "sum":
        return (0.0, 80.0 * units)
    return (units * cost.add_dsp + nest.lanes * cost.mul_dsp, 200.0 * units)


_INTEGER_MAPS = {Mode.COPY: 0.0, Mode.LOOKUP: 40.0, Mode.SUM: 240.0, Mode.PRODUCT: 290.0}
"""LUTs per lane of a chain on 8-bit integers: a table of 256 bytes, or products on the fabric."""
_AFFINE_LUT = 170.0


@units.register
def _map(nest: Map, dtype: str) -> tuple[float, float]:
    if kind_of(dtype) == "int8":
        if any(step.op == "affine" for step in nest.steps):
            return (0.0, _AFFINE_LUT * nest.lanes)
        if (mode := mode_of(nest.steps)) in _INTEGER_MAPS:
            return (0.0, _INTEGER_MAPS[mode] * nest.lanes)
        dtype = "float32"
    costs = [step_cost(s.op, dtype) for s in nest.steps]
    return (nest.lanes * sum(c[0] for c in costs), nest.lanes * sum(c[1] for c in costs))


_NORM_STEPS = {
    "softmax": ("max", "exp", "add", "div"),
    "log_softmax": ("max", "exp", "add", "sub"),
    "layer_norm": ("add", "square", "add", "mul"),
    "rms_norm": ("square", "add", "mul"),
    "lrn": ("square", "add", "pow", "mul"),
}


@units.register
def _norm(nest: Norm, dtype: str) -> tuple[float, float]:
    dtype = "float32" if kind_of(dtype) == "int8" else dtype
    steps = [*_NORM_STEPS[nest.op], *["mul"] * nest.scale, *["add"] * nest.shift]
    costs = [step_cost(op, dtype) for op in steps]
    return (nest.lanes * sum(c[0] for c in costs), nest.lanes * sum(c[1] for c in costs))


@units.register
def _swg(nest: Swg, dtype: str) -> tuple[float, float]:
    columns = nest.kh * (nest.kw - 1) * nest.dw if nest.is_line else 0  # beside the newest one
    word = nest.lanes * bits_of(dtype)
    return (0.0, 200.0 + nest.kp * word + lut_ram(columns * word, nest.cf))


@units.register
def _dwc(nest: Dwc, dtype: str) -> tuple[float, float]:
    width = (nest.lanes_in + nest.lanes_out) * bits_of(dtype)
    steps = 1 if max(nest.lanes_in, nest.lanes_out) % min(nest.lanes_in, nest.lanes_out) == 0 else 3
    return (0.0, float(width * steps))


@units.register
def _load(nest: Load, dtype: str) -> tuple[float, float]:
    return (0.0, 1_500.0)
