"""The engines of one layer under its factors, with their tables cut into tiles."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import numpy as np

from pipec.backends.fpga.arithmetic import arithmetic, step_cost
from pipec.backends.fpga.design import Engine, Memory, Narrowing, Stream, Weight
from pipec.backends.fpga.factors import Factors, gap_of, word_interval
from pipec.backends.fpga.lowering.integer import Mode, affine_steps, mode_of
from pipec.backends.fpga.lowering.layers import Array, Elementwise, Layer, Table
from pipec.backends.fpga.nests import (
    Map,
    Matmul,
    Mvu,
    Norm,
    Reduce,
    Step,
    Swg,
    Vvu,
    ceil_div,
)
from pipec.backends.fpga.routing import (
    Concat,
    Const,
    Gather,
    Load,
    Nest,
    Perm,
    Repeat,
    Slice,
)
from pipec.backends.fpga.training.nests import ArgMax, OneHot, Outer, RowGradient
from pipec.errors import BackendError


@dataclass(frozen=True)
class Built:
    """Engines of one layer.

    Attributes:
        engines: The first one reads the layer's inputs, the last one writes its output.
        streams: Streams among them.
        output: The stream that the last one writes, its consumer still open.
    """

    engines: tuple[Engine, ...]
    streams: tuple[Stream, ...]
    output: Stream


@dataclass(frozen=True)
class Folded:
    """What becomes of a layer's nest under its factors.

    Attributes:
        nest: The same nest with lanes.
        lanes: Elements of a token that it writes.
        depth: Pipeline depth.
        weights: Its tables.
        ii: Initiation interval.
        dtype: Element type, if not that of the whole network.
        merged: Rows of the layer that are written as one.
    """

    nest: Nest
    lanes: int
    depth: int
    weights: tuple[Weight, ...] = ()
    ii: int = 1
    dtype: str = ""
    merged: int = 1


@singledispatch
def folded(nest: Nest, layer: Layer, factors: Factors, dtype: str) -> Folded:
    """A layer's nest under its factors; see `build`."""
    raise TypeError(f"no engine for {type(nest).__name__}")


_SUFFIX = {OneHot: "one_hot", RowGradient: "grad"}
"""What the engines of a nest are called, where that is not its name."""


def build(layer: Layer, factors: Factors, dtype: str) -> Built:
    """The engines of a layer: a window generator, the one that computes, a reader of weights.

    Args:
        layer: Any layer.
        factors: Its unroll factors.
        dtype: Type of the data streams.
    """
    if isinstance(layer.nest, Swg):
        swg, windows = swg_of(layer, layer.nest, factors, dtype)
        return Built((swg,), (), windows)
    made = folded(layer.nest, layer, factors, dtype)
    name = f"{layer.name}_{_SUFFIX.get(type(made.nest), type(made.nest).__name__.lower())}"
    inputs = tuple(f"{layer.name}_in{k}" for k in range(len(layer.inputs)))
    before: tuple[Engine, ...] = ()
    streams: tuple[Stream, ...] = ()
    if layer.window is not None:
        swg, windows = swg_of(layer, layer.window, factors, dtype)
        before, streams = (swg,), (dataclasses.replace(windows, consumer=name),)
        inputs = (windows.name, *inputs[1:])
    out = Stream(
        f"{layer.name}_out", layer.rows // made.merged, layer.channels * made.merged, made.lanes,
        layer.dtype or made.dtype or dtype, producer=name,
    )  # fmt: skip
    engine = Engine(
        name, made.nest, inputs, (out.name,), made.ii, made.depth, made.weights,
        node=layer.node, origin=layer.origin, **_numbers(layer, made.dtype or dtype),
    )  # fmt: skip
    found = Built((*before, engine), streams, out)
    if isinstance(made.nest, Mvu) and made.nest.streamed:
        return _with_load(layer, found, made.nest, dtype)
    return found


def in_tokens(array: Array, lanes: int) -> Array:
    """Rows cut into tokens, zeros behind: ``[rows][channels]`` to ``[rows*CF][lanes]``.

    Example:
        >>> in_tokens(np.arange(6.0).reshape(2, 3), 2).tolist()
        [[0.0, 1.0], [2.0, 0.0], [3.0, 4.0], [5.0, 0.0]]
    """
    channels = array.shape[1]
    width = ceil_div(channels, lanes) * lanes
    return np.asarray(np.pad(array, ((0, 0), (0, width - channels))).reshape(-1, lanes))


def weight(
    role: str, shape: tuple[int, ...], table: Table, dtype: str, cut: Callable[[Array], Array]
) -> Weight:
    """A table of an engine, cut into tiles when its values are asked for."""

    def values() -> Array:
        return np.asarray(cut(np.asarray(table.values())).reshape(shape))

    return Weight(role, shape, dtype, Memory.BRAM, table.sources, values)


def _numbers(layer: Layer, dtype: str) -> dict[str, Any]:
    """Element types of the engine that writes a layer's output, of 8-bit integers the formats."""
    if not layer.dtype:
        return {"dtype": dtype}
    reads = [use.dtype for use in layer.inputs]
    if isinstance(layer.nest, Gather) or not reads:
        reads = [layer.dtype]
    found: dict[str, Any] = {
        "dtype": reads[0], "second": reads[-1] if len(reads) == 2 else "", "result": layer.dtype
    }  # fmt: skip
    if layer.rescale is not None:
        by = layer.rescale
        found["narrowing"] = Narrowing(by.shift, by.low, by.high, by.multiplier)
    return found


def _rescaling(layer: Layer, shape: tuple[int, ...], cut: Callable[[Array], Array]) -> Weight:
    """The table that takes a layer's exact sums to 8 bits."""

    def unknown() -> Array:
        raise BackendError(
            "a layer of 8-bit integers has no scales", where=layer.origin, want="calibration"
        )

    by = layer.rescale
    table = by.table if by is not None and by.table is not None else Table(unknown)
    return weight("rescale", shape, table, "rescale", cut)


def _real_type(dtype: str) -> str:
    """Element type of the tables of an engine that computes in float32 between 8-bit integers."""
    return "float32" if dtype == "int8" else dtype


def swg_of(layer: Layer, window: Swg, factors: Factors, dtype: str) -> tuple[Engine, Stream]:
    """The window generator of a layer, and the stream of windows.

    Engines with a kernel per channel take the windows of one token after the other.
    """
    lanes, dtype = factors.lanes_in[0], layer.inputs[0].dtype if layer.dtype else dtype
    nest, taps = layer.nest, window.taps
    groups = nest.groups if isinstance(nest, Mvu | Outer) else int(nest is window)
    channels = window.cf // max(groups, 1)
    cf = max(groups, 1) * ceil_div(channels, lanes)
    lowest = isinstance(nest, ArgMax) or (isinstance(nest, Reduce) and nest.op == "max")
    generator = dataclasses.replace(
        window, cf=cf, lanes=lanes, groups=groups or cf, kp=factors.kp,
        pad_value=-math.inf if lowest else 0.0,
    )  # fmt: skip
    pixels = window.batch * window.oh * window.ow
    if factors.kp == 1 and groups:
        rows, width = pixels * groups * taps, channels
    else:
        rows, width = pixels * cf * taps // factors.kp, lanes * factors.kp
    name = f"{layer.name}_swg"
    windows = Stream(f"{layer.name}_windows", rows, width, lanes * factors.kp, dtype, producer=name)
    engine = Engine(
        name, generator, (f"{layer.name}_in0",), (windows.name,), depth=3, dtype=dtype,
        node=layer.node, origin=layer.origin,
    )  # fmt: skip
    return engine, windows


def mvu_depth(simd: int, partial: int, dtype: str) -> int:
    """Pipeline depth of a product: multiplier, adder tree, accumulator, partial sums.

    Example:
        >>> mvu_depth(8, 1, "int8")
        7
    """
    cost = arithmetic(dtype)
    levels = (simd - 1).bit_length() + 1 + (partial - 1).bit_length()
    return cost.mul_latency + cost.add_latency * levels + 1


@folded.register
def _mvu(nest: Mvu, layer: Layer, factors: Factors, dtype: str) -> Folded:
    latency = arithmetic(dtype).add_latency
    nf = ceil_div(nest.rows, factors.pe)
    order = "B" if latency > 1 and nf >= latency and factors.block <= 1 else "A"
    partial = latency if order == "A" and factors.block <= max(latency, 1) else 1
    nest = dataclasses.replace(
        nest, pe=factors.pe, simd=factors.simd, kp=factors.kp, order=order, partial=partial,
        block=max(factors.block, 1), bias="bias" in layer.tables or dtype == "int8",
        streamed=factors.block > 0,
    )  # fmt: skip
    shape = (nest.groups, nest.nf, nest.pe)
    bias = _bias(layer, shape, dtype, lambda a: in_tokens(a, nest.pe))
    depth = mvu_depth(nest.simd, partial, dtype)
    return Folded(nest, nest.pe, depth, (_matrix(layer, nest, dtype), *bias))


def _bias(
    layer: Layer, shape: tuple[int, ...], dtype: str, cut: Callable[[Array], Array]
) -> list[Weight]:
    """The table of what is added to a product's sums, or takes them to 8 bits."""
    if dtype == "int8":
        return [_rescaling(layer, shape, cut)]
    found = layer.tables.get("bias")
    return [] if found is None else [weight("bias", shape, found, dtype, cut)]


def _matrix(layer: Layer, nest: Mvu, dtype: str) -> Weight:
    """The weight matrix as ``[groups][nf][sf][simd][pe]`` (streamed order B: sf before nf)."""
    lanes = nest.simd // nest.kp
    cf = ceil_div(nest.channels, lanes)
    swap = nest.streamed and nest.order == "B"

    def cut(w: Array) -> Array:
        """The matrix in the order in which the engine reads it, zeros behind."""
        pad_out, pad_in = nest.nf * nest.pe - nest.rows, cf * lanes - nest.channels
        if pad_out or pad_in:
            w = np.pad(w, ((0, 0), (0, pad_out), (0, 0), (0, pad_in)))
        steps = nest.taps // nest.kp * cf
        w = w.reshape(nest.groups, nest.nf, nest.pe, steps, nest.simd)
        return np.ascontiguousarray(w.transpose((0, 3, 1, 4, 2) if swap else (0, 1, 3, 4, 2)))

    first = (nest.sf, nest.nf) if swap else (nest.nf, nest.sf)
    shape = (nest.groups, *first, nest.simd, nest.pe)
    return weight("weight", shape, layer.tables["weight"], dtype, cut)


def _with_load(layer: Layer, made: Built, nest: Mvu, dtype: str) -> Built:
    """The same with its weights read from DDR by a LOAD engine."""
    *before, mvu = made.engines
    words, lanes = nest.groups * nest.nf * nest.sf, nest.pe * nest.simd
    matrix, *tables = mvu.weights
    stored = Weight(
        "weight", (words, lanes), dtype, Memory.DDR, matrix.sources,
        lambda: matrix.values().reshape(words, lanes),
    )  # fmt: skip
    repeat = nest.n // nest.block
    stream = Stream(
        f"{layer.name}_words", repeat * words, lanes, lanes, dtype, 64,
        f"{layer.name}_load", mvu.name,
    )  # fmt: skip
    load = Engine(
        f"{layer.name}_load", Load(words, lanes, repeat), (), (stream.name,),
        ii=word_interval(lanes, dtype), depth=4, dtype=dtype, weights=(stored,),
        node=layer.node, origin=layer.origin,
    )  # fmt: skip
    fed = dataclasses.replace(mvu, inputs=(*mvu.inputs, stream.name), weights=tuple(tables))
    return Built((*before, load, fed), (*made.streams, stream), made.output)


@folded.register
def _vvu(nest: Vvu, layer: Layer, factors: Factors, dtype: str) -> Folded:
    lanes, taps = factors.lanes_out, nest.taps
    partial = arithmetic(dtype).add_latency if taps > factors.kp else 1
    bias = "bias" in layer.tables or dtype == "int8"
    nest = dataclasses.replace(nest, lanes=lanes, kp=factors.kp, partial=partial, bias=bias)
    shape = (nest.cf, taps // nest.kp, nest.kp, lanes)

    def cut(w: Array) -> Array:  # [channels][taps]
        w = np.pad(w, ((0, nest.cf * lanes - nest.channels), (0, 0)))
        return w.reshape(nest.cf, lanes, taps).transpose(0, 2, 1)

    tables = (
        weight("weight", shape, layer.tables["weight"], dtype, cut),
        *_bias(layer, (nest.cf, lanes), dtype, lambda a: in_tokens(a[None], lanes)),
    )
    return Folded(nest, lanes, mvu_depth(nest.kp, partial, dtype), tables)


@folded.register
def _reduce(nest: Reduce, layer: Layer, factors: Factors, dtype: str) -> Folded:
    lanes = factors.lanes_out
    cf = ceil_div(layer.channels, lanes)
    latency = arithmetic(dtype).add_latency if nest.op == "sum" else 1
    if layer.window is None:
        partial = ceil_div(latency, cf)
        nest = dataclasses.replace(nest, cf=cf, lanes=lanes, partial=partial)
        return Folded(nest, lanes, mvu_depth(1, partial, dtype))
    tables: tuple[Weight, ...] = ()
    if (scale := layer.tables.get("scale")) is not None:
        period = (layer.window.oh * layer.window.ow * cf,)
        tables = (weight("scale", period, scale, dtype, lambda a: np.repeat(a, cf)),)
        if dtype == "int8":
            tables = (_rescaling(layer, period, lambda a: np.repeat(a, cf)),)
    taps = layer.window.taps
    partial = latency if taps > factors.kp else 1
    nest = dataclasses.replace(
        nest, n=layer.rows * cf, window=taps // factors.kp, lanes=lanes, kp=factors.kp,
        table=tables[0].shape[0] if tables else 0, partial=partial,
    )  # fmt: skip
    return Folded(nest, lanes, mvu_depth(factors.kp, partial, dtype), tables)


@folded.register
def _map(nest: Map, layer: Layer, factors: Factors, dtype: str) -> Folded:
    assert isinstance(layer, Elementwise)
    lanes = factors.lanes_out
    cf = ceil_div(layer.channels, lanes)
    if dtype == "int8" and mode_of(layer.steps) is Mode.AFFINE:
        return _affine(layer, lanes)
    steps, tables = [], []
    for k, step in enumerate(layer.steps):
        period = step.period * cf if step.operand == "table" else 0
        steps.append(Step(step.op, step.operand, step.value, period))
        if step.table is not None:
            shape = (period, lanes)
            tables.append(
                weight(
                    f"table{k}", shape, step.table, _real_type(dtype),
                    lambda a: in_tokens(a, lanes),
                )
            )  # fmt: skip
    depth = 1 + sum(step_cost(s.op, dtype)[2] for s in steps)
    nest = dataclasses.replace(nest, lanes=lanes, steps=tuple(steps))
    dtype = dtype if steps else layer.inputs[0].dtype
    return Folded(nest, lanes, depth, tuple(tables), dtype=dtype)


def _affine(layer: Elementwise, lanes: int) -> Folded:
    """``x * table + table`` and clamps on 8-bit integers: one table for both."""
    count = affine_steps(layer.steps)
    period = math.lcm(*(s.period for s in layer.steps[:count]))
    period *= ceil_div(layer.channels, lanes)
    first = Step("affine", "table", period=period)
    rest = tuple(Step(s.op, s.operand, s.value) for s in layer.steps[count:])
    nest = Map(layer.rows, layer.channels, lanes, (first, *rest))
    table = dataclasses.replace(
        _rescaling(layer, (period, lanes), lambda a: in_tokens(a, lanes)), role="table0"
    )
    return Folded(nest, lanes, 4, (table,))


@folded.register
def _row_unit(nest: Norm | RowGradient, layer: Layer, factors: Factors, dtype: str) -> Folded:
    lanes, gap = factors.lanes_out, gap_of(dtype)
    nest = dataclasses.replace(nest, lanes=lanes, gap=gap, scale="scale" in layer.tables)
    if isinstance(nest, Norm):
        nest = dataclasses.replace(nest, shift="shift" in layer.tables)
    row = (nest.taps, nest.channels)
    tables = tuple(
        weight(
            role, (nest.cf, lanes), table, _real_type(dtype),
            lambda a: in_tokens(a.reshape(row), lanes),
        )
        for role, table in layer.tables.items()
    )  # fmt: skip
    return Folded(nest, lanes, gap, tables)


@folded.register
def _matmul(nest: Matmul, layer: Layer, factors: Factors, dtype: str) -> Folded:
    pe, simd, latency = factors.pe, factors.simd, arithmetic(dtype).add_latency
    b_lanes = factors.lanes_in[1]
    nest = dataclasses.replace(nest, b_lanes=b_lanes, pe=pe, simd=simd, partial=latency)
    return Folded(nest, pe, mvu_depth(simd, latency, dtype))


@folded.register
def _concat(nest: Concat, layer: Layer, factors: Factors, dtype: str) -> Folded:
    lanes = factors.lanes_out
    sizes = tuple(
        s // u.channels * ceil_div(u.channels, lanes)
        for s, u in zip(nest.sizes, layer.inputs, strict=True)
    )
    return Folded(Concat(nest.outer, sizes), lanes, 1, dtype=layer.inputs[0].dtype)


@folded.register
def _slice(nest: Slice, layer: Layer, factors: Factors, dtype: str) -> Folded:
    lanes, channels = factors.lanes_out, layer.inputs[0].channels
    if nest.inner % channels == 0:
        inner = nest.inner // channels * ceil_div(channels, lanes)
        nest = dataclasses.replace(nest, inner=inner)
    elif nest.step == 1:
        bounds = (n * nest.inner // lanes for n in (nest.size, nest.start, nest.stop))
        nest = Slice(nest.outer, *bounds)
    else:
        nest = dataclasses.replace(nest, inner=nest.inner // lanes)
    return Folded(nest, lanes, 1, dtype=layer.inputs[0].dtype)


@folded.register
def _perm(nest: Perm, layer: Layer, factors: Factors, dtype: str) -> Folded:
    lanes_in, lanes = factors.lanes_in[0], factors.lanes_out
    nest = dataclasses.replace(nest, lanes_in=lanes_in, lanes_out=lanes)
    return Folded(nest, lanes, 3, dtype=layer.inputs[0].dtype)


@folded.register
def _gather(nest: Gather, layer: Layer, factors: Factors, dtype: str) -> Folded:
    nest = dataclasses.replace(nest, lanes=factors.lanes_out)
    return Folded(nest, nest.lanes, 4, _rows(layer, (nest.entries, nest.cf), nest.lanes, dtype))


@folded.register
def _const(nest: Const, layer: Layer, factors: Factors, dtype: str) -> Folded:
    nest = dataclasses.replace(nest, lanes=factors.lanes_out)
    return Folded(nest, nest.lanes, 2, _rows(layer, (nest.tokens,), nest.lanes, dtype))


def _rows(layer: Layer, tokens: tuple[int, ...], lanes: int, dtype: str) -> tuple[Weight]:
    """The table whose rows are looked up or written."""
    table, shape = layer.tables["table"], (*tokens, lanes)
    return (weight("table", shape, table, layer.dtype or dtype, lambda a: in_tokens(a, lanes)),)


@folded.register
def _repeat(nest: Repeat, layer: Layer, factors: Factors, dtype: str) -> Folded:
    lanes = factors.lanes_out
    inner = nest.inner // layer.channels * ceil_div(layer.channels, lanes)
    nest = dataclasses.replace(nest, inner=inner)
    return Folded(nest, lanes, 2, dtype=layer.inputs[0].dtype)
