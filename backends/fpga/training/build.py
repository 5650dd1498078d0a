"""The engines of the layers that only training needs; see `pipec.backends.fpga.build`."""

from pipec.backends.fpga.arithmetic import arithmetic
from pipec.backends.fpga.build import (
    Built,
    behind_window,
    build,
    in_tokens,
    mvu_depth,
    one,
    swg_of,
    weight,
)
from pipec.backends.fpga.design import Engine, Stream, Weight
from pipec.backends.fpga.factors import Factors, gap_of
from pipec.backends.fpga.nests import ceil_div
from pipec.backends.fpga.training.factors import scatter_interval
from pipec.backends.fpga.training.layers import (
    OneHotRows,
    PoolGradient,
    PoolIndex,
    RowDerivative,
    WeightGradient,
    Windows,
    ZeroInsert,
)
from pipec.backends.fpga.training.nests import (
    ArgMax,
    OneHot,
    Outer,
    RowGradient,
    Scatter,
    Spread,
)


@build.register
def _weight_gradient(layer: WeightGradient, factors: Factors, dtype: str) -> Built:
    latency = arithmetic(dtype).add_latency
    nest = Outer(
        layer.n, layer.out, layer.taps, layer.cin, factors.pe, factors.simd, factors.kp,
        layer.groups,
    )  # fmt: skip
    partial = min(ceil_div(latency, nest.groups * nest.nf * nest.sf), max(layer.n, 1))
    nest = Outer(
        layer.n, layer.out, layer.taps, layer.cin, factors.pe, factors.simd, factors.kp,
        layer.groups, partial,
    )  # fmt: skip
    name, depth = f"{layer.name}_outer", mvu_depth(1, partial, dtype)
    rows = layer.groups * layer.out * layer.taps // nest.kp
    out = Stream(f"{layer.name}_out", rows, layer.cin * nest.kp, nest.simd, dtype, producer=name)
    first, second = f"{layer.name}_in0", f"{layer.name}_in1"
    before: tuple[Engine, ...] = ()
    streams: tuple[Stream, ...] = ()
    if layer.window is not None:
        swg, windows = swg_of(
            layer, layer.window, layer.cin * layer.groups, factors, dtype, layer.groups
        )
        windows = Stream(
            windows.name, windows.rows, windows.channels, windows.lanes, dtype,
            producer=swg.name, consumer=name,
        )  # fmt: skip
        before, streams, first_read = (_reading(swg, first),), (windows,), windows.name
    else:
        first_read = first
    engine = Engine(
        name, nest, (first_read, second), (out.name,), depth=depth, dtype=dtype,
        node=layer.node, origin=layer.origin,
    )  # fmt: skip
    return Built((*before, engine), streams, out)


def _reading(engine: Engine, stream: str) -> Engine:
    """The window generator reading the first of the layer's inputs only."""
    return Engine(
        engine.name, engine.nest, (stream,), engine.outputs, depth=engine.depth,
        dtype=engine.dtype, node=engine.node, origin=engine.origin,
    )  # fmt: skip


@build.register
def _pool_gradient(layer: PoolGradient, factors: Factors, dtype: str) -> Built:
    w, lanes = layer.window, factors.lanes_out
    cf = ceil_div(layer.channels, lanes)
    nest = Scatter(w.batch, w.h, w.w, cf, lanes, w.kh, w.sh, w.pt, w.oh, w.ow)
    ii = scatter_interval(w.kw, w.sw, cf, dtype)
    return one(layer, "scatter", nest, lanes, dtype, ii=ii, depth=mvu_depth(1, 1, dtype))


@build.register
def _pool_index(layer: PoolIndex, factors: Factors, dtype: str) -> Built:
    w, lanes = layer.window, factors.lanes_out
    cf = ceil_div(layer.channels, lanes)
    nest = ArgMax(
        w.batch, w.w, cf, lanes, w.kh, w.kw, w.sh, w.sw, w.dh, w.dw, w.pt, w.pl, w.oh, w.ow
    )
    window = swg_of(layer, w, layer.channels, factors, dtype, 0, float("-inf"))
    return behind_window(layer, window, "argmax", nest, lanes, "int32", depth=4)


@build.register
def _windows(layer: Windows, factors: Factors, dtype: str) -> Built:
    swg, windows = swg_of(layer, layer.window, layer.channels, factors, dtype, 1)
    return Built((swg,), (), windows)


@build.register
def _one_hot(layer: OneHotRows, factors: Factors, dtype: str) -> Built:
    nest = OneHot(layer.rows, layer.channels, factors.lanes_out, layer.ignored)
    return one(layer, "one_hot", nest, factors.lanes_out, dtype, depth=2)


@build.register
def _row_derivative(layer: RowDerivative, factors: Factors, dtype: str) -> Built:
    lanes = factors.lanes_out
    nest = RowGradient(
        layer.n, layer.cin, layer.taps, lanes, layer.op, layer.passes, gap_of(dtype), layer.eps,
        layer.scale is not None,
    )  # fmt: skip
    tables: tuple[Weight, ...] = ()
    if layer.scale is not None:
        tables = (
            weight(
                "scale", (nest.cf, lanes), layer.scale, dtype,
                lambda a: in_tokens(a.reshape(layer.taps, layer.cin), lanes),
            ),
        )  # fmt: skip
    return one(layer, "grad", nest, lanes, dtype, depth=gap_of(dtype), weights=tables)


@build.register
def _zero_insert(layer: ZeroInsert, factors: Factors, dtype: str) -> Built:
    w, lanes = layer.window, factors.lanes_out
    cf = ceil_div(layer.channels, lanes)
    nest = Spread(w.batch, w.h, w.w, cf, lanes, w.sh, w.sw)
    return one(layer, "spread", nest, lanes, dtype, depth=2)
