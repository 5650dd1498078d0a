"""Engines that only training needs, kind by kind: factors, engine, firings, memory, logic.

Every kind is registered where those of inference are (`factors.factors_of`, `build.folded`,
`runs.runs`, `memory.buffer`, `resources.units`); their loop nests are in `training.nests`.
"""

import dataclasses

from pipec.backends.fpga.arithmetic import arithmetic, step_cost
from pipec.backends.fpga.build import Folded, folded, mvu_depth
from pipec.backends.fpga.factors import (
    LOAD_SHARES,
    Factors,
    factors_of,
    input_tokens,
    lanes_for,
    window_reads,
)
from pipec.backends.fpga.lowering.layers import Layer
from pipec.backends.fpga.memory import buffer
from pipec.backends.fpga.nests import Norm, Swg, ceil_div
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


@factors_of.register
def _outer_factors(nest: Outer, layer: Layer, target: int, dtype: str, block: int) -> Factors:
    """Cheapest PE and SIMD: products per vector, and the matrix written at the end."""
    best: tuple[tuple[float, ...], Factors] | None = None
    window, vectors = layer.window, nest.n * nest.groups
    for simd, kp in input_tokens(nest, window):
        lanes, sf = simd // kp, nest.taps // kp * ceil_div(nest.channels, simd // kp)
        drain = nest.groups * nest.rows * sf
        reading = window_reads(window, nest.channels, lanes) * nest.groups if window else 0
        left = max(target - drain, 1)
        pe = ceil_div(nest.rows, max(left // (vectors * sf), 1))
        pe = min(pe, nest.rows)
        cycles = max(vectors * ceil_div(nest.rows, pe) * sf + drain, reading)
        score = (max(cycles - target, 0), pe * simd, pe + simd)
        if best is None or score < best[0]:
            best = (score, Factors((lanes, pe), simd, pe, simd, kp))
    assert best is not None
    return best[1]


@folded.register
def _outer(nest: Outer, layer: Layer, factors: Factors, dtype: str) -> Folded:
    latency = arithmetic(dtype).add_latency
    nest = dataclasses.replace(nest, pe=factors.pe, simd=factors.simd, kp=factors.kp)
    partial = min(ceil_div(latency, nest.groups * nest.nf * nest.sf), max(nest.n, 1))
    nest = dataclasses.replace(nest, partial=partial)
    return Folded(nest, nest.simd, mvu_depth(1, partial, dtype), merged=nest.kp)


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


@factors_of.register
def _arg_max_factors(nest: ArgMax, layer: Layer, target: int, dtype: str, block: int) -> Factors:
    assert layer.window is not None
    w = layer.window
    rows = max(w.batch * w.oh * w.ow * w.taps, w.batch * w.h * w.w)
    lanes = lanes_for(layer.channels, rows, target)
    return Factors((lanes,), lanes)


@folded.register
def _arg_max(nest: ArgMax, layer: Layer, factors: Factors, dtype: str) -> Folded:
    return Folded(_widened(nest, factors), factors.lanes_out, 4, dtype="int32")


def _widened(nest: ArgMax | Scatter | Spread, factors: Factors) -> ArgMax | Scatter | Spread:
    """An engine of maps with so many channels at a time."""
    lanes = factors.lanes_out
    return dataclasses.replace(nest, cf=ceil_div(nest.cf, lanes), lanes=lanes)


@runs.register
def _arg_max_runs(nest: ArgMax, ii: int, inputs: int) -> Runs:
    results = nest.batch * nest.oh * nest.ow * nest.cf
    return (Loop(results, (Run(nest.kh * nest.kw - 1, ii, 1), Run(1, ii, 1, 1))),)


@factors_of.register
def _scatter_factors(nest: Scatter, layer: Layer, target: int, dtype: str, block: int) -> Factors:
    pixels = nest.batch * (nest.oh * nest.ow + nest.h * nest.w)
    lanes = lanes_for(layer.channels, pixels, target)
    return Factors((lanes, lanes), lanes)


@folded.register
def _scatter(nest: Scatter, layer: Layer, factors: Factors, dtype: str) -> Folded:
    """Neighbouring windows may add to one pixel."""
    wide = _widened(nest, factors)
    ii = ceil_div(arithmetic(dtype).add_latency, wide.cf) if layer.overlaps else 1
    return Folded(wide, wide.lanes, mvu_depth(1, 1, dtype), ii=ii)


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


@factors_of.register
def _windows(nest: Swg, layer: Layer, target: int, dtype: str, block: int) -> Factors:
    # a product loads them in bursts, for which they would otherwise wait in a FIFO
    rows = max(layer.rows, layer.inputs[0].rows)
    lanes = lanes_for(layer.channels, rows, target // max(LOAD_SHARES))
    return Factors((lanes,), lanes)


# Class numbers to rows.


@folded.register
def _one_hot(nest: OneHot, layer: Layer, factors: Factors, dtype: str) -> Folded:
    nest = dataclasses.replace(nest, lanes=factors.lanes_out)
    return Folded(nest, nest.lanes, 2)


@runs.register
def _one_hot_runs(nest: OneHot, ii: int, inputs: int) -> Runs:
    return (Loop(nest.rows, (Run(1, ii, 1, 1), Run(nest.cf - 1, ii, 0, 1))),)


@units.register
def _compare_units(nest: ArgMax | OneHot, dtype: str) -> tuple[float, float]:
    return (0.0, 120.0 * nest.lanes)


# Gradients of row ops.


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


@folded.register
def _spread(nest: Spread, layer: Layer, factors: Factors, dtype: str) -> Folded:
    return Folded(_widened(nest, factors), factors.lanes_out, 2)


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
