"""What engines and memories take of a board: closed forms, to be read as estimates.

DSP and RAM counts follow the primitives' shapes (half a block RAM: 512x36 .. 16384x1 bits, URAM:
4096x72). `benchmarks.vitis_resources` compares them with AMD's synthesis reports.
"""

import math

from pipec.backends.fpga.engines.base import Engine
from pipec.backends.fpga.engines.parts import Resources
from pipec.backends.fpga.engines.tiles import ceil_div
from pipec.backends.fpga.numbers import bits_of, sum_bits

CONTROL_LUT = 100
"""Start, end and handshakes of one engine."""
ADDER_LUT = 40
"""An integer addition of 32 bits: a counter with its comparison, or an address."""
UPDATED = 3
"""LUTs and flip-flops per bit of a word that a loop reads and writes: chosen, changed, held."""
STAGE_FF = 20
"""Of a stage of the pipeline: a valid bit, counters and addresses."""
SHIFT_REGISTER = 32
"""Depth up to which a FIFO is a shift register in LUTs."""
LINK_SHELL = Resources(lut=35_219, ff=86_269, bram36=91.5)
"""A 100G network core, once per board that has neighbours (FINN+ platform tables)."""
DDR_SHELL = Resources(lut=33_256, ff=44_889, bram36=99.5)
"""A DDR4 controller, per board that streams weights (FINN+ platform tables)."""
LUT_MEMORY_LIMIT = 0.40
"""Share of the LUTs that may serve as memory."""


def bram36(width: int, depth: int) -> float:
    """Block RAMs for ``depth`` words of ``width`` bits; halves are used one by one.

    Example:
        >>> bram36(256, 512), bram36(64, 4608), bram36(36, 2048), bram36(32, 256)
        (4.0, 9.0, 2.0, 0.5)
    """
    shapes = ((36, 512), (18, 1024), (9, 2048), (4, 4096), (2, 8192), (1, 16384))
    return min(ceil_div(width, w) * ceil_div(depth, d) for w, d in shapes) / 2


def uram(width: int, depth: int) -> int:
    """UltraRAMs; narrow words share a row.

    Example:
        >>> uram(144, 8192), uram(72, 4096), uram(32, 8192)
        (4, 1, 1)
    """
    if width <= 36:
        return ceil_div(depth, 4096 * (72 // width))
    return ceil_div(width, 72) * ceil_div(depth, 4096)


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


def logic(engine: Engine) -> Resources:
    """DSPs, LUTs and flip-flops of an engine, its memories not counted."""
    nest, dtype = engine.nest, engine.dtype
    word, _ = nest.buffer(bits_of(dtype), sum_bits(dtype)) if nest.updates else (0, 0)
    return with_control(*nest.logic(dtype), nest.additions, engine.depth, word)


def with_control(dsp: float, lut: float, additions: int, depth: int, updated: int) -> Resources:
    """A pipelined loop.

    Args:
        dsp: DSPs of its operators.
        lut: Their LUTs, each with two flip-flops: operands and results are registered.
        additions: Integer additions of its counters and addresses.
        depth: Stages.
        updated: Bits of the words of memory that it reads and writes.
    """
    control = CONTROL_LUT + ADDER_LUT * additions + UPDATED * updated
    registers = STAGE_FF * (depth - 1) + UPDATED * updated
    return Resources(dsp=dsp, lut=lut + control, ff=2 * lut + registers)


def fifo_logic(width: int, depth: int) -> Resources:
    """A FIFO without its memory; a shallow one is a shift register, a LUT for each bit."""
    if depth <= SHIFT_REGISTER:
        return Resources(lut=width + 20, ff=10)
    return Resources(lut=70, ff=width + 60)
