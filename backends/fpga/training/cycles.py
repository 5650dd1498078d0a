"""Firings, memories and logic of the engines that only training needs."""

from pipec.backends.fpga.arithmetic import arithmetic, step_cost
from pipec.backends.fpga.memory import buffer
from pipec.backends.fpga.nests import ceil_div
from pipec.backends.fpga.resources import units
from pipec.backends.fpga.runs import Loop, Run, Table, runs
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


@runs.register
def _outer(nest: Outer, ii: int, inputs: int) -> Table:
    nf, sf, vectors = nest.nf, nest.sf, nest.n * nest.groups
    rest = (Run(sf - 1, ii, 1), Run(min(nf - 1, 1), ii, 2), Run(max(nf - 2, 0), sf * ii, 2))
    last = (sf if nf > 1 else 1) * ii  # what the silent firings of the last f take
    return (
        Run(1, ii, 3), *rest,
        Loop(vectors - 1, (Run(1, last, 3), *rest)),
        Run(1, last, 0, 1), Run(nest.writes - 1, ii, 0, 1),
    )  # fmt: skip


@runs.register
def _scatter(nest: Scatter, ii: int, inputs: int) -> Table:
    reads = Run(nest.ow * nest.cf, ii, 3)
    rows = [(reads, Run(end * nest.w * nest.cf, ii, 0, 1)) for end in nest.ends()]
    body: list[Run | Loop] = []
    for row in rows:
        if body and isinstance(body[-1], Loop) and body[-1].body == row:
            body[-1] = Loop(body[-1].times + 1, row)
        else:
            body.append(Loop(1, row))
    return (Loop(nest.batch, tuple(body)),)


@runs.register
def _arg_max(nest: ArgMax, ii: int, inputs: int) -> Table:
    results = nest.batch * nest.oh * nest.ow * nest.cf
    return (Loop(results, (Run(nest.kh * nest.kw - 1, ii, 1), Run(1, ii, 1, 1))),)


@runs.register
def _one_hot(nest: OneHot, ii: int, inputs: int) -> Table:
    return (Loop(nest.rows, (Run(1, ii, 1, 1), Run(nest.cf - 1, ii, 0, 1))),)


@runs.register
def _row_gradient(nest: RowGradient, ii: int, inputs: int) -> Table:
    silent = (nest.passes - 2) * (nest.gap + (nest.cf - 1) * ii)
    body = (Run(nest.cf, ii, 3), Run(1, nest.gap + silent, 0, 1), Run(nest.cf - 1, ii, 0, 1))
    return (Loop(nest.rows, body),)


@runs.register
def _spread(nest: Spread, ii: int, inputs: int) -> Table:
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


@runs.register
def _store(nest: Store | Accumulate, ii: int, inputs: int) -> Table:
    return (Run(nest.tokens, ii, 1),)


@runs.register
def _fetch(nest: Fetch, ii: int, inputs: int) -> Table:
    return (Run(nest.tokens, ii, 0, 1),)


@runs.register
def _spill(nest: Spill, ii: int, inputs: int) -> Table:
    return (Loop(nest.tokens // nest.chunk, (Run(nest.chunk - 1, ii, 1), Run(1, ii, 1, 1))),)


@runs.register
def _refill(nest: Refill, ii: int, inputs: int) -> Table:
    return (Loop(nest.tokens // nest.chunk, (Run(1, ii, 1, 1), Run(nest.chunk - 1, ii, 0, 1))),)


@buffer.register
def _outer_buffer(nest: Outer, bits: int) -> tuple[int, int]:
    words = nest.partial * nest.groups * nest.nf * nest.sf
    return (nest.pe * nest.simd * bits, words + ceil_div(nest.sf, nest.pe))


@buffer.register
def _scatter_buffer(nest: Scatter, bits: int) -> tuple[int, int]:
    return (nest.lanes * bits, nest.ring * nest.w * nest.cf)


@buffer.register
def _row_buffer(nest: RowGradient, bits: int) -> tuple[int, int]:
    return (2 * nest.lanes * bits, nest.cf)


@units.register
def _outer_units(nest: Outer, dtype: str) -> tuple[float, float]:
    cost, count = arithmetic(dtype), nest.pe * nest.simd
    final = nest.simd if nest.partial > 1 else 0
    return (count * cost.mac_dsp + final * cost.add_dsp, count * cost.mac_lut + 100 * final)


@units.register
def _scatter_units(nest: Scatter, dtype: str) -> tuple[float, float]:
    dsp, lut, _ = step_cost("add", dtype)
    return (nest.lanes * dsp, nest.lanes * (lut + 100))


@units.register
def _compare_units(nest: ArgMax | OneHot, dtype: str) -> tuple[float, float]:
    return (0.0, 120.0 * nest.lanes)


MOVER_LUT = 1_500.0
"""An m_axi adapter; as of weights that are streamed."""


@units.register
def _mover_units(nest: Store | Fetch | Spill | Refill, dtype: str) -> tuple[float, float]:
    return (0.0, MOVER_LUT)


@units.register
def _accumulate_units(nest: Accumulate, dtype: str) -> tuple[float, float]:
    dsp, lut, _ = step_cost("add", "float32")
    return (nest.lanes * dsp, 2 * MOVER_LUT + nest.lanes * lut)


_STEPS = {
    "softmax": ("mul", "add", "sub", "mul"),
    "log_softmax": ("add", "exp", "mul", "sub"),
    "layer_norm": ("add", "sub", "square", "add", "mul", "mul", "add", "add", "mul", "sub", "mul"),
}


@units.register
def _row_units(nest: RowGradient, dtype: str) -> tuple[float, float]:
    costs = [step_cost(op, dtype) for op in (*_STEPS[nest.op], *["mul"] * nest.scale)]
    return (nest.lanes * sum(c[0] for c in costs), nest.lanes * sum(c[1] for c in costs))
