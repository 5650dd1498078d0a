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
from pipec.backends.fpga.lowering.layers import (
    Array,
    Broadcast,
    Constant,
    Cut,
    Dense,
    Depthwise,
    Elementwise,
    Join,
    Layer,
    Lookup,
    Pool,
    Product,
    Reorder,
    RowNorm,
    RowReduce,
    Table,
    Window,
)
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
    if isinstance(layer, Lookup) or not reads:
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


def _engine(
    layer: Layer, suffix: str, nest: Nest, inputs: tuple[str, ...], outputs: tuple[str, ...],
    **more: Any,
) -> Engine:  # fmt: skip
    return Engine(
        f"{layer.name}_{suffix}", nest, inputs, outputs,
        node=layer.node, origin=layer.origin, **more,
    )  # fmt: skip


def _inputs(layer: Layer) -> tuple[str, ...]:
    return tuple(f"{layer.name}_in{k}" for k in range(len(layer.inputs)))


def _output(layer: Layer, suffix: str, lanes: int, dtype: str) -> Stream:
    name = f"{layer.name}_{suffix}"
    return Stream(f"{layer.name}_out", layer.rows, layer.channels, lanes, dtype, producer=name)


def one(layer: Layer, suffix: str, nest: Nest, lanes: int, dtype: str, **more: Any) -> Built:
    """A layer that is one engine."""
    out = _output(layer, suffix, lanes, layer.dtype or dtype)
    numbers = _numbers(layer, dtype)
    engine = _engine(layer, suffix, nest, _inputs(layer), (out.name,), **numbers, **more)
    return Built((engine,), (), out)


@singledispatch
def build(layer: Layer, factors: Factors, dtype: str) -> Built:
    """The engines of a layer.

    Args:
        layer: Any layer.
        factors: Its unroll factors.
        dtype: Type of the data streams.
    """
    raise TypeError(f"no engines for {type(layer).__name__}")


def swg_of(
    layer: Layer, window: Window, channels: int, factors: Factors, dtype: str,
    groups: int, pad: float = 0.0,
) -> tuple[Engine, Stream]:  # fmt: skip
    """The window generator in front of a layer, and the stream of windows."""
    lanes, dtype = factors.lanes_in[0], layer.inputs[0].dtype if layer.dtype else dtype
    each = max(groups, 1)
    cf = each * ceil_div(channels // each, lanes)
    nest = Swg(
        window.batch, window.h, window.w, cf, lanes, window.kh, window.kw, window.sh, window.sw,
        window.dh, window.dw, window.pt, window.pl, window.oh, window.ow,
        groups=groups or cf, kp=factors.kp, pad_value=pad,
    )  # fmt: skip
    pixels = window.batch * window.oh * window.ow
    width = lanes * factors.kp
    if factors.kp == 1 and groups:
        rows, width_of_row = pixels * groups * nest.taps, channels // groups
    else:
        rows, width_of_row = pixels * cf * nest.taps // factors.kp, width
    name = f"{layer.name}_windows"
    windows = Stream(name, rows, width_of_row, width, dtype, producer=f"{layer.name}_swg")
    engine = _engine(layer, "swg", nest, _inputs(layer), (name,), depth=3, dtype=dtype)
    return engine, windows


def behind_window(
    layer: Layer, window: tuple[Engine, Stream], suffix: str, nest: Nest, lanes: int, dtype: str,
    **more: Any,
) -> Built:  # fmt: skip
    """Window generator, then one engine."""
    swg, windows = window
    out = _output(layer, suffix, lanes, layer.dtype or dtype)
    numbers = _numbers(layer, dtype)
    engine = _engine(layer, suffix, nest, (windows.name,), (out.name,), **numbers, **more)
    stream = Stream(
        windows.name, windows.rows, windows.channels, windows.lanes, windows.dtype,
        producer=swg.name, consumer=engine.name,
    )  # fmt: skip
    return Built((swg, engine), (stream,), out)


def mvu_depth(simd: int, partial: int, dtype: str) -> int:
    """Pipeline depth of a product: multiplier, adder tree, accumulator, partial sums.

    Example:
        >>> mvu_depth(8, 1, "int8")
        7
    """
    cost = arithmetic(dtype)
    levels = (simd - 1).bit_length() + 1 + (partial - 1).bit_length()
    return cost.mul_latency + cost.add_latency * levels + 1


@build.register
def _dense(layer: Dense, factors: Factors, dtype: str) -> Built:
    latency = arithmetic(dtype).add_latency
    nf = ceil_div(layer.out, factors.pe)
    order = "B" if latency > 1 and nf >= latency and factors.block <= 1 else "A"
    partial = latency if order == "A" and factors.block <= max(latency, 1) else 1
    nest = Mvu(
        layer.n, layer.out, layer.taps, layer.cin, factors.pe, factors.simd, factors.kp,
        layer.groups, order, partial, max(factors.block, 1),
        layer.bias is not None or dtype == "int8", factors.block > 0,
    )  # fmt: skip
    tables, shape = [_matrix(layer, nest, dtype)], (nest.groups, nest.nf, nest.pe)
    if dtype == "int8":
        tables.append(_rescaling(layer, shape, lambda a: in_tokens(a, nest.pe)))
    elif layer.bias is not None:
        tables.append(weight("bias", shape, layer.bias, dtype, lambda a: in_tokens(a, nest.pe)))
    more = {"depth": mvu_depth(nest.simd, partial, dtype), "weights": tuple(tables)}
    if layer.window is not None:
        channels = layer.cin * layer.groups
        window = swg_of(layer, layer.window, channels, factors, dtype, layer.groups)
        made = behind_window(layer, window, "mvu", nest, nest.pe, dtype, **more)
    else:
        made = one(layer, "mvu", nest, nest.pe, dtype, **more)
    return _with_load(layer, made, nest, dtype) if nest.streamed else made


def _matrix(layer: Dense, nest: Mvu, dtype: str) -> Weight:
    """The weight matrix as ``[groups][nf][sf][simd][pe]`` (streamed order B: sf before nf)."""
    lanes = nest.simd // nest.kp
    cf = ceil_div(layer.cin, lanes)
    swap = nest.streamed and nest.order == "B"

    def cut(w: Array) -> Array:
        """The matrix in the order in which the engine reads it, zeros behind."""
        pad_out, pad_in = nest.nf * nest.pe - layer.out, cf * lanes - layer.cin
        if pad_out or pad_in:
            w = np.pad(w, ((0, 0), (0, pad_out), (0, 0), (0, pad_in)))
        steps = layer.taps // nest.kp * cf
        w = w.reshape(nest.groups, nest.nf, nest.pe, steps, nest.simd)
        return np.ascontiguousarray(w.transpose((0, 3, 1, 4, 2) if swap else (0, 1, 3, 4, 2)))

    first = (nest.sf, nest.nf) if swap else (nest.nf, nest.sf)
    shape = (nest.groups, *first, nest.simd, nest.pe)
    return weight("weight", shape, layer.weight, dtype, cut)


def _with_load(layer: Dense, made: Built, nest: Mvu, dtype: str) -> Built:
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
    load = _engine(
        layer, "load", Load(words, lanes, repeat), (), (stream.name,),
        ii=word_interval(lanes, dtype), depth=4, dtype=dtype, weights=(stored,),
    )  # fmt: skip
    fed = _engine(
        layer, "mvu", nest, (*mvu.inputs, stream.name), mvu.outputs,
        depth=mvu.depth, weights=tuple(tables), **_numbers(layer, dtype),
    )  # fmt: skip
    return Built((*before, load, fed), (*made.streams, stream), made.output)


@build.register
def _depthwise(layer: Depthwise, factors: Factors, dtype: str) -> Built:
    lanes, taps = factors.lanes_out, layer.window.kh * layer.window.kw
    partial = arithmetic(dtype).add_latency if taps > factors.kp else 1
    bias = layer.bias is not None or dtype == "int8"
    nest = Vvu(layer.rows, layer.channels, taps, lanes, factors.kp, partial, bias)
    shape = (nest.cf, taps // nest.kp, nest.kp, lanes)

    def cut(w: Array) -> Array:  # [channels][taps]
        w = np.pad(w, ((0, nest.cf * lanes - layer.channels), (0, 0)))
        return w.reshape(nest.cf, lanes, taps).transpose(0, 2, 1)

    tables = [weight("weight", shape, layer.weight, dtype, cut)]
    if dtype == "int8":
        tables.append(_rescaling(layer, (nest.cf, lanes), lambda a: in_tokens(a[None], lanes)))
    elif layer.bias is not None:
        tables.append(
            weight("bias", (nest.cf, lanes), layer.bias, dtype, lambda a: in_tokens(a[None], lanes))
        )
    window = swg_of(layer, layer.window, layer.channels, factors, dtype, 0)
    depth = mvu_depth(nest.kp, partial, dtype)
    return behind_window(
        layer, window, "vvu", nest, lanes, dtype, depth=depth, weights=tuple(tables)
    )


@build.register
def _pool(layer: Pool, factors: Factors, dtype: str) -> Built:
    lanes, taps = factors.lanes_out, layer.window.kh * layer.window.kw
    cf = ceil_div(layer.channels, lanes)
    tables: tuple[Weight, ...] = ()
    if layer.scales is not None:
        period = layer.window.oh * layer.window.ow * cf
        tables = (weight("scale", (period,), layer.scales, dtype, lambda a: np.repeat(a, cf)),)
        if dtype == "int8":
            tables = (_rescaling(layer, (period,), lambda a: np.repeat(a, cf)),)
    sums = layer.op == "sum" and taps > factors.kp
    partial = arithmetic(dtype).add_latency if sums else 1
    nest = Reduce(
        layer.rows * cf, taps // factors.kp, 1, lanes, factors.kp, layer.op, layer.scale,
        tables[0].shape[0] if tables else 0, partial,
    )  # fmt: skip
    pad = float("-inf") if layer.op == "max" else 0.0
    window = swg_of(layer, layer.window, layer.channels, factors, dtype, 0, pad)
    depth = mvu_depth(factors.kp, partial, dtype)
    return behind_window(layer, window, "reduce", nest, lanes, dtype, depth=depth, weights=tables)


@build.register
def _row_reduce(layer: RowReduce, factors: Factors, dtype: str) -> Built:
    lanes = factors.lanes_out
    cf = ceil_div(layer.channels, lanes)
    latency = arithmetic(dtype).add_latency if layer.op == "sum" else 1
    partial = ceil_div(latency, cf)
    nest = Reduce(layer.rows, layer.window, cf, lanes, 1, layer.op, layer.scale, partial=partial)
    return one(layer, "reduce", nest, lanes, dtype, depth=mvu_depth(1, partial, dtype))


@build.register
def _elementwise(layer: Elementwise, factors: Factors, dtype: str) -> Built:
    lanes = factors.lanes_out
    cf = ceil_div(layer.channels, lanes)
    if dtype == "int8" and mode_of(layer.steps) is Mode.AFFINE:
        return _affine(layer, lanes, dtype)
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
    nest = Map(layer.rows, layer.channels, lanes, tuple(steps))
    dtype = dtype if steps else layer.inputs[0].dtype
    return one(layer, "map", nest, lanes, dtype, depth=depth, weights=tuple(tables))


def _affine(layer: Elementwise, lanes: int, dtype: str) -> Built:
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
    return one(layer, "map", nest, lanes, dtype, depth=4, weights=(table,))


@build.register
def _row_norm(layer: RowNorm, factors: Factors, dtype: str) -> Built:
    lanes = factors.lanes_out
    nest = Norm(
        layer.n, layer.cin, layer.taps, lanes, layer.op, layer.passes, gap_of(dtype), layer.eps,
        layer.size, layer.alpha, layer.beta, layer.k,
        layer.scale is not None, layer.shift is not None,
    )  # fmt: skip
    pairs = (("scale", layer.scale), ("shift", layer.shift))
    tables = tuple(
        weight(
            role, (nest.cf, lanes), table, _real_type(dtype),
            lambda a: in_tokens(a.reshape(layer.taps, layer.cin), lanes),
        )
        for role, table in pairs if table is not None
    )  # fmt: skip
    return one(layer, "norm", nest, lanes, dtype, depth=gap_of(dtype), weights=tables)


@build.register
def _product(layer: Product, factors: Factors, dtype: str) -> Built:
    latency = arithmetic(dtype).add_latency
    nest = Matmul(
        layer.blocks, layer.outer, layer.groups, layer.inner, layer.out, layer.taps, layer.cin,
        layer.b_sizes, layer.b_roles, factors.lanes_in[1], factors.pe, factors.simd, latency,
        layer.scale,
    )  # fmt: skip
    depth = mvu_depth(nest.simd, latency, dtype)
    return one(layer, "matmul", nest, nest.pe, dtype, depth=depth)


@build.register
def _join(layer: Join, factors: Factors, dtype: str) -> Built:
    lanes = factors.lanes_out
    sizes = tuple(
        s // u.channels * ceil_div(u.channels, lanes)
        for s, u in zip(layer.sizes, layer.inputs, strict=True)
    )
    dtype = layer.inputs[0].dtype
    return one(layer, "concat", Concat(layer.outer, sizes), lanes, dtype, depth=1)


@build.register
def _cut(layer: Cut, factors: Factors, dtype: str) -> Built:
    lanes, channels = factors.lanes_out, layer.inputs[0].channels
    if layer.inner % channels == 0:
        inner = layer.inner // channels * ceil_div(channels, lanes)
        nest = Slice(layer.outer, layer.size, layer.start, layer.stop, layer.step, inner)
    elif layer.step == 1:
        bounds = (n * layer.inner // lanes for n in (layer.size, layer.start, layer.stop))
        nest = Slice(layer.outer, *bounds)
    else:
        inner = layer.inner // lanes
        nest = Slice(layer.outer, layer.size, layer.start, layer.stop, layer.step, inner)
    return one(layer, "slice", nest, lanes, layer.inputs[0].dtype, depth=1)


@build.register
def _reorder(layer: Reorder, factors: Factors, dtype: str) -> Built:
    use = layer.inputs[0]
    nest = Perm(
        layer.blocks, layer.sizes, layer.order, use.channels, factors.lanes_in[0],
        layer.channels, factors.lanes_out,
    )  # fmt: skip
    return one(layer, "perm", nest, factors.lanes_out, use.dtype, depth=3)


@build.register
def _lookup(layer: Lookup, factors: Factors, dtype: str) -> Built:
    lanes = factors.lanes_out
    nest = Gather(layer.rows, layer.entries, layer.channels, lanes)
    shape = (layer.entries, nest.cf, lanes)
    table = weight("table", shape, layer.table, layer.dtype or dtype, lambda a: in_tokens(a, lanes))
    return one(layer, "gather", nest, lanes, dtype, depth=4, weights=(table,))


@build.register
def _constant(layer: Constant, factors: Factors, dtype: str) -> Built:
    lanes = factors.lanes_out
    nest = Const(layer.rows, layer.channels, lanes)
    shape = (nest.tokens, lanes)
    table = weight("table", shape, layer.table, layer.dtype or dtype, lambda a: in_tokens(a, lanes))
    return one(layer, "const", nest, lanes, dtype, depth=2, weights=(table,))


@build.register
def _broadcast(layer: Broadcast, factors: Factors, dtype: str) -> Built:
    lanes = factors.lanes_out
    inner = layer.inner * ceil_div(layer.channels, lanes)
    nest = Repeat(layer.outer, inner, layer.times)
    return one(layer, "repeat", nest, lanes, layer.inputs[0].dtype, depth=2)
