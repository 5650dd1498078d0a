"""Engines that only training needs, kind by kind: layer, factors, engine, firings, memory, logic.

Every kind is registered where those of inference are (`factors.fold`, `build.build`, `runs.runs`,
`memory.buffer`, `resources.units`); their loop nests are in `training.nests`, and what all layers
have is in `lowering.layers`.
"""

import dataclasses
from dataclasses import dataclass

from pipec.backends.fpga.arithmetic import arithmetic, step_cost
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
from pipec.backends.fpga.design import Engine, Stream
from pipec.backends.fpga.factors import (
    LOAD_SHARES,
    Factors,
    ceil_tiles,
    fold,
    gap_of,
    lanes_for,
    window_reads,
)
from pipec.backends.fpga.lowering.layers import (
    Broadcast,
    Layer,
    Lookup,
    RowNorm,
    Table,
    Window,
)
from pipec.backends.fpga.memory import buffer
from pipec.backends.fpga.nests import Norm, ceil_div
from pipec.backends.fpga.resources import units
from pipec.backends.fpga.routing import Const
from pipec.backends.fpga.runs import Loop, Run, runs
from pipec.backends.fpga.runs import Table as Runs
from pipec.backends.fpga.training.nests import (
    Accumulate,
    ArgMax,
    Fetch,
    OneHot,
    Outer,
    Refill,
    RowGradient,
    Scatter,
    Spill,
    Spread,
    Store,
)

# Gradient of a convolution's or linear layer's weight: outer products.


@dataclass(frozen=True)
class WeightGradient(Layer):
    """Gradient of a convolution's or linear layer's weight; inputs x, dy.

    Writes ``groups*out*taps`` rows of ``cin``. Attributes as of `lowering.layers.Dense`.
    """

    n: int
    groups: int
    out: int
    taps: int
    cin: int
    window: Window | None = None


@fold.register
def _weight_gradient(layer: WeightGradient, target: int, dtype: str, block: int = 0) -> Factors:
    """Cheapest PE and SIMD: products per vector, and the matrix written at the end."""
    best: tuple[tuple[float, ...], Factors] | None = None
    window, vectors = layer.window, layer.n * layer.groups
    sides = [(simd, 1) for simd in ceil_tiles(layer.cin)]
    if window is not None and layer.groups == 1:
        sides += [(kp * layer.cin, kp) for kp in sorted({window.kw, layer.taps} - {1})]
    for simd, kp in sides:
        lanes, sf = simd // kp, layer.taps // kp * ceil_div(layer.cin, simd // kp)
        drain = layer.groups * layer.out * sf
        reading = window_reads(window, layer.cin, lanes) * layer.groups if window else 0
        left = max(target - drain, 1)
        pe = ceil_div(layer.out, max(left // (vectors * sf), 1))
        pe = min(pe, layer.out)
        cycles = max(vectors * ceil_div(layer.out, pe) * sf + drain, reading)
        score = (max(cycles - target, 0), pe * simd, pe + simd)
        if best is None or score < best[0]:
            best = (score, Factors((lanes, pe), simd, pe, simd, kp))
    assert best is not None
    return best[1]


@build.register
def _outer_unit(layer: WeightGradient, factors: Factors, dtype: str) -> Built:
    latency = arithmetic(dtype).add_latency
    nest = Outer(
        layer.n, layer.out, layer.taps, layer.cin, factors.pe, factors.simd, factors.kp,
        layer.groups,
    )  # fmt: skip
    partial = min(ceil_div(latency, nest.groups * nest.nf * nest.sf), max(layer.n, 1))
    nest = dataclasses.replace(nest, partial=partial)
    name, first = f"{layer.name}_outer", f"{layer.name}_in0"
    rows = layer.groups * layer.out * layer.taps // nest.kp
    out = Stream(f"{layer.name}_out", rows, layer.cin * nest.kp, nest.simd, dtype, producer=name)
    before: tuple[Engine, ...] = ()
    streams: tuple[Stream, ...] = ()
    if layer.window is not None:
        channels = layer.cin * layer.groups
        swg, windows = swg_of(layer, layer.window, channels, factors, dtype, layer.groups)
        before = (dataclasses.replace(swg, inputs=(first,)),)  # it reads x alone
        streams, first = (dataclasses.replace(windows, consumer=name),), windows.name
    engine = Engine(
        name, nest, (first, f"{layer.name}_in1"), (out.name,), depth=mvu_depth(1, partial, dtype),
        dtype=dtype, node=layer.node, origin=layer.origin,
    )  # fmt: skip
    return Built((*before, engine), streams, out)


@runs.register
def _outer_runs(nest: Outer, ii: int, inputs: int) -> Runs:
    nf, sf, vectors = nest.nf, nest.sf, nest.n * nest.groups
    rest = (Run(sf - 1, ii, 1), Run(min(nf - 1, 1), ii, 2), Run(max(nf - 2, 0), sf * ii, 2))
    last = (sf if nf > 1 else 1) * ii  # what the silent firings of the last f take
    return (
        Run(1, ii, 3), *rest,
        Loop(vectors - 1, (Run(1, last, 3), *rest)),
        Run(1, last, 0, 1), Run(nest.writes - 1, ii, 0, 1),
    )  # fmt: skip


@buffer.register
def _outer_buffer(nest: Outer, bits: int) -> tuple[int, int]:
    words = nest.partial * nest.groups * nest.nf * nest.sf
    return (nest.pe * nest.simd * bits, words + ceil_div(nest.sf, nest.pe))


@units.register
def _outer_units(nest: Outer, dtype: str) -> tuple[float, float]:
    cost, count = arithmetic(dtype), nest.pe * nest.simd
    final = nest.simd if nest.partial > 1 else 0
    return (count * cost.mac_dsp + final * cost.add_dsp, count * cost.mac_lut + 100 * final)


# Max pooling: where the maxima lie, and the gradients added there.


@dataclass(frozen=True)
class PoolIndex(Layer):
    """Places of the maxima of a max pooling."""

    window: Window


@fold.register
def _pool_index(layer: PoolIndex, target: int, dtype: str, block: int = 0) -> Factors:
    w = layer.window
    rows = max(w.batch * w.oh * w.ow * w.kh * w.kw, w.batch * w.h * w.w)
    lanes = lanes_for(layer.channels, rows, target)
    return Factors((lanes,), lanes)


@build.register
def _arg_max(layer: PoolIndex, factors: Factors, dtype: str) -> Built:
    w, lanes = layer.window, factors.lanes_out
    cf = ceil_div(layer.channels, lanes)
    nest = ArgMax(
        w.batch, w.w, cf, lanes, w.kh, w.kw, w.sh, w.sw, w.dh, w.dw, w.pt, w.pl, w.oh, w.ow
    )
    window = swg_of(layer, w, layer.channels, factors, dtype, 0, float("-inf"))
    return behind_window(layer, window, "argmax", nest, lanes, "int32", depth=4)


@runs.register
def _arg_max_runs(nest: ArgMax, ii: int, inputs: int) -> Runs:
    results = nest.batch * nest.oh * nest.ow * nest.cf
    return (Loop(results, (Run(nest.kh * nest.kw - 1, ii, 1), Run(1, ii, 1, 1))),)


@dataclass(frozen=True)
class PoolGradient(Layer):
    """Gradient of max pooling; inputs dy and the places of the maxima."""

    window: Window


@fold.register
def _pool_gradient(layer: PoolGradient, target: int, dtype: str, block: int = 0) -> Factors:
    w = layer.window
    pixels = w.batch * (w.oh * w.ow + w.h * w.w)
    lanes = lanes_for(layer.channels, pixels, target)
    return Factors((lanes, lanes), lanes)


@build.register
def _scatter(layer: PoolGradient, factors: Factors, dtype: str) -> Built:
    """Neighbouring windows may add to one pixel."""
    w, lanes = layer.window, factors.lanes_out
    cf = ceil_div(layer.channels, lanes)
    nest = Scatter(w.batch, w.h, w.w, cf, lanes, w.kh, w.sh, w.pt, w.oh, w.ow)
    ii = 1 if w.kw <= w.sw else ceil_div(arithmetic(dtype).add_latency, cf)
    return one(layer, "scatter", nest, lanes, dtype, ii=ii, depth=mvu_depth(1, 1, dtype))


@runs.register
def _scatter_runs(nest: Scatter, ii: int, inputs: int) -> Runs:
    reads = Run(nest.ow * nest.cf, ii, 3)
    rows = [(reads, Run(end * nest.w * nest.cf, ii, 0, 1)) for end in nest.ends()]
    body: list[Run | Loop] = []
    for row in rows:
        if body and isinstance(body[-1], Loop) and body[-1].body == row:
            body[-1] = Loop(body[-1].times + 1, row)
        else:
            body.append(Loop(1, row))
    return (Loop(nest.batch, tuple(body)),)


@buffer.register
def _scatter_buffer(nest: Scatter, bits: int) -> tuple[int, int]:
    return (nest.lanes * bits, nest.ring * nest.w * nest.cf)


@units.register
def _scatter_units(nest: Scatter, dtype: str) -> tuple[float, float]:
    dsp, lut, _ = step_cost("add", dtype)
    return (nest.lanes * dsp, nest.lanes * (lut + 100))


# Windows of maps, one after the other.


@dataclass(frozen=True)
class Windows(Layer):
    """Windows of maps, one after the other: ``taps`` rows of ``channels`` each."""

    window: Window


@fold.register
def _windows(layer: Windows, target: int, dtype: str, block: int = 0) -> Factors:
    # a product loads them in bursts, for which they would otherwise wait in a FIFO
    rows = max(layer.rows, layer.inputs[0].rows)
    lanes = lanes_for(layer.channels, rows, target // max(LOAD_SHARES))
    return Factors((lanes,), lanes)


@build.register
def _window_generator(layer: Windows, factors: Factors, dtype: str) -> Built:
    swg, windows = swg_of(layer, layer.window, layer.channels, factors, dtype, 1)
    return Built((swg,), (), windows)


# Class numbers to rows.


@dataclass(frozen=True)
class OneHotRows(Layer):
    """Class numbers to one-hot rows; rows of zeros where the class is ``ignored``."""

    ignored: int = -1


@build.register
def _one_hot_unit(layer: OneHotRows, factors: Factors, dtype: str) -> Built:
    nest = OneHot(layer.rows, layer.channels, factors.lanes_out, layer.ignored)
    return one(layer, "one_hot", nest, factors.lanes_out, dtype, depth=2)


@runs.register
def _one_hot_runs(nest: OneHot, ii: int, inputs: int) -> Runs:
    return (Loop(nest.rows, (Run(1, ii, 1, 1), Run(nest.cf - 1, ii, 0, 1))),)


@units.register
def _compare_units(nest: ArgMax | OneHot, dtype: str) -> tuple[float, float]:
    return (0.0, 120.0 * nest.lanes)


# Gradients of row ops.


@dataclass(frozen=True)
class RowDerivative(Layer):
    """Gradient of a row op; see `training.nests.RowGradient`. Table ``[taps*cin]``."""

    n: int
    taps: int
    cin: int
    op: str
    eps: float = 0.0
    scale: Table | None = None

    @property
    def passes(self) -> int:
        """Passes over a row, reading and writing included."""
        return 4 if self.op == "layer_norm" else 2


@build.register
def _row_gradient(layer: RowDerivative, factors: Factors, dtype: str) -> Built:
    lanes, gap, table = factors.lanes_out, gap_of(dtype), layer.scale
    nest = RowGradient(
        layer.n, layer.cin, layer.taps, lanes, layer.op, layer.passes, gap, layer.eps,
        table is not None,
    )  # fmt: skip
    shape = (nest.cf, lanes)
    tables = () if table is None else (
        weight("scale", shape, table, dtype,
               lambda a: in_tokens(a.reshape(layer.taps, layer.cin), lanes)),
    )  # fmt: skip
    return one(layer, "grad", nest, lanes, dtype, depth=gap, weights=tables)


@buffer.register
def _row_gradient_buffer(nest: RowGradient, bits: int) -> tuple[int, int]:
    return (2 * nest.lanes * bits, nest.cf)


_STEPS = {
    "softmax": ("mul", "add", "sub", "mul"),
    "log_softmax": ("add", "exp", "mul", "sub"),
    "layer_norm": ("add", "sub", "square", "add", "mul", "mul", "add", "add", "mul", "sub", "mul"),
}


@units.register
def _row_gradient_units(nest: RowGradient, dtype: str) -> tuple[float, float]:
    costs = [step_cost(op, dtype) for op in (*_STEPS[nest.op], *["mul"] * nest.scale)]
    return (nest.lanes * sum(c[0] for c in costs), nest.lanes * sum(c[1] for c in costs))


# Pixels put apart.


@dataclass(frozen=True)
class ZeroInsert(Layer):
    """Pixels put ``window.sh`` rows and ``window.sw`` columns apart, zeros between.

    ``window.h x window.w`` are the maps that come out.
    """

    window: Window


@build.register
def _spread(layer: ZeroInsert, factors: Factors, dtype: str) -> Built:
    w, lanes = layer.window, factors.lanes_out
    nest = Spread(w.batch, w.h, w.w, ceil_div(layer.channels, lanes), lanes, w.sh, w.sw)
    return one(layer, "spread", nest, lanes, dtype, depth=2)


@runs.register
def _spread_runs(nest: Spread, ii: int, inputs: int) -> Runs:
    full, rest = divmod(nest.w, nest.sw)
    kept, zeros = Run(nest.cf, ii, 1, 1), Run((nest.sw - 1) * nest.cf, ii, 0, 1)
    tail = (kept, Run((rest - 1) * nest.cf, ii, 0, 1)) if rest else ()
    row = (Loop(full, (kept, zeros)), *tail)
    blank = nest.w * nest.cf
    rows, left = divmod(nest.h, nest.sh)
    image: list[Run | Loop] = [Loop(rows, (*row, Run((nest.sh - 1) * blank, ii, 0, 1)))]
    if left:
        image += [*row, Run((left - 1) * blank, ii, 0, 1)]
    return (Loop(nest.batch, tuple(image)),)


# What is folded, and fires, as an engine of inference.

fold.register(OneHotRows, fold.dispatch(Lookup))
fold.register(RowDerivative, fold.dispatch(RowNorm))
fold.register(ZeroInsert, fold.dispatch(Broadcast))
runs.register(RowGradient, runs.dispatch(Norm))
runs.register(Fetch, runs.dispatch(Const))


# Movers, which stand for no layer: `training.movers` puts them at ports, `waiting` in FIFOs.


@runs.register
def _store(nest: Store | Accumulate, ii: int, inputs: int) -> Runs:
    return (Run(nest.tokens, ii, 1),)


@runs.register
def _spill(nest: Spill, ii: int, inputs: int) -> Runs:
    return (Loop(nest.tokens // nest.chunk, (Run(nest.chunk - 1, ii, 1), Run(1, ii, 1, 1))),)


@runs.register
def _refill(nest: Refill, ii: int, inputs: int) -> Runs:
    return (Loop(nest.tokens // nest.chunk, (Run(1, ii, 1, 1), Run(nest.chunk - 1, ii, 0, 1))),)


MOVER_LUT = 1_500.0
"""An m_axi adapter; as of weights that are streamed."""


@units.register
def _mover_units(nest: Store | Fetch | Spill | Refill, dtype: str) -> tuple[float, float]:
    return (0.0, MOVER_LUT)


@units.register
def _accumulate_units(nest: Accumulate, dtype: str) -> tuple[float, float]:
    dsp, lut, _ = step_cost("add", "float32")
    return (nest.lanes * dsp, 2 * MOVER_LUT + nest.lanes * lut)
