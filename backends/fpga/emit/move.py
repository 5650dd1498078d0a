"""How each engine that moves data is written: its configuration struct and its call."""

from pipec.backends.fpga.design import Engine
from pipec.backends.fpga.emit.compute import digits
from pipec.backends.fpga.emit.unit import Unit, in_memory
from pipec.backends.fpga.factors import SMALL_BLOCK
from pipec.backends.fpga.routing import (
    Concat,
    Const,
    Dwc,
    Fork,
    Gather,
    Load,
    Perm,
    Repeat,
    Slice,
)


def fork(engine: Engine, nest: Fork) -> Unit:
    """Copies to several streams."""
    return Unit("route.h", "fork", {"TOKENS": nest.tokens})


def concat(engine: Engine, nest: Concat) -> Unit:
    """Joins streams along one axis."""
    sizes = ", ".join(map(str, nest.sizes))
    body = [f"constexpr int sizes[] = {{{sizes}}};", "return sizes[port];"]
    constants = {"OUTER": nest.outer, "PORTS": len(nest.sizes)}
    return Unit("route.h", "concat", constants, {"int size(int port)": body}, outputs_first=True)


def cut(engine: Engine, nest: Slice) -> Unit:
    """Keeps part of one axis."""
    constants = {
        "OUTER": nest.outer,
        "SIZE": nest.size,
        "START": nest.start,
        "STOP": nest.stop,
        "STEP": nest.step,
        "INNER": nest.inner,
    }
    return Unit("route.h", "slice", constants)


def repeat(engine: Engine, nest: Repeat) -> Unit:
    """Repeats blocks."""
    constants = {"OUTER": nest.outer, "INNER": nest.inner, "TIMES": nest.times}
    return Unit("route.h", "repeat", constants)


def source(engine: Engine, nest: Const) -> Unit:
    """Writes a constant."""
    constants = {"LANES": nest.lanes, "TOKENS": nest.tokens}
    return Unit("route.h", "source", constants, tables=("table",))


def dwc(engine: Engine, nest: Dwc) -> Unit:
    """Width converter."""
    constants = {
        "REPEAT": nest.repeat,
        "ROWS_OUT": nest.rows_out,
        "C_IN": nest.channels_in,
        "LANES_IN": nest.lanes_in,
        "C_OUT": nest.channels_out,
        "LANES_OUT": nest.lanes_out,
    }
    return Unit("gear.h", "dwc", constants)


def perm(engine: Engine, nest: Perm) -> Unit:
    """Reorders the elements of a block."""
    if nest.turns and nest.lanes_in > 1 and nest.elements > SMALL_BLOCK:
        rows, channels = nest.sizes
        sizes = {"BLOCKS": nest.blocks, "ROWS": rows, "C": channels, "LANES": nest.lanes_in}
        return Unit("transpose.h", "transpose", sizes)
    constants = {
        "BLOCKS": nest.blocks,
        "ELEMENTS": nest.elements,
        "C_IN": nest.channels_in,
        "LANES_IN": nest.lanes_in,
        "READS": nest.reads,
        "C_OUT": nest.channels_out,
        "LANES_OUT": nest.lanes_out,
        "WRITES": nest.writes,
    }
    return Unit("perm.h", "perm", constants, {"int from(int i)": permuted(nest.sizes, nest.order)})


def permuted(sizes: tuple[int, ...], order: tuple[int, ...]) -> list[str]:
    """Lines that take an index of the transposed block to one of the block.

    Example:
        >>> permuted((2, 3), (1, 0))
        ['const int i0 = i / 2;', 'const int i1 = i % 2;', 'return i0 + i1 * 3;']
    """
    strides = [1] * len(sizes)
    for axis in reversed(range(len(sizes) - 1)):
        strides[axis] = strides[axis + 1] * sizes[axis + 1]
    steps = [strides[axis] for axis in order]
    terms = [f"i{k} * {step}" if step > 1 else f"i{k}" for k, step in enumerate(steps)]
    return [*digits("i", [sizes[axis] for axis in order]), f"return {' + '.join(terms)};"]


def gather(engine: Engine, nest: Gather) -> Unit:
    """Row lookup."""
    constants = {"N": nest.n, "CF": nest.cf, "LANES": nest.lanes, "ENTRIES": nest.entries}
    return Unit("memory.h", "gather", constants, tables=("table",))


def load(engine: Engine, nest: Load) -> Unit:
    """Streams weights from memory."""
    constants = {"WORDS": nest.words, "LANES": nest.lanes, "REPEAT": nest.repeat}
    assert in_memory(engine, "weight")
    return Unit("memory.h", "load", constants, tables=("weight",))
