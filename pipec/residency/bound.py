"""A bound on the added time: whole values, but copies that flow like a fluid.

One period of the steady state, F s B t, where s and t are stalls. Each microbatch in flight keeps
the bytes K of what stays, and O of every microbatch leave and come back once per period:

```text
end of F      flight K + X + Y               <= cap     X: made here and before, not yet out
begin of B    flight K + X - out + Y + in    <= cap     Y: come back for this B and later ones
              Y + in >= O                               all that this B reads is there
end of B      ... + in - out                 <= cap
flows         out, in <= bandwidth x seconds of F, s, B with what it computes again, and t
least         s + t + what B computes again
```

The recomputed values of a backward take at least the bytes of those that are alive together. Any
schedule of whole-action copies satisfies these rows, so that nothing adds less. Where all forwards
come before all backwards, only two of them hold: K of all microbatches and one O fit at the turn,
and the copies fit into the time. Where the backward has a device of its own the rows are those of
`pipec.residency.play`, with s for what T is longer and x for the part that leaves first.
"""

import ctypes
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, OptimizeResult, milp

from pipec.residency.problem import KEEP, OFFLOAD, RECOMPUTE, FloatArray, IntArray, Problem, Working

WHOLE_UP_TO = 96
"""Values up to which decisions are whole; beyond, fractions of them bound nearly as well."""
TIGHT_UP_TO = 40
"""The same in programs with another cap or more rows, where one device's F and B take turns.

Equal layers make whole ones slow. GPipe needs them: 8.3 % added, not 11.0 % (16 layers, cap 60 %).
"""
NODES = 400
"""Most branch-and-bound nodes: a limit of work, so that results do not depend on the machine."""
GAP = 1e-3
"""Relative distance from the bound at which the search for whole decisions stops."""
NODES_REACHED = 1  # scipy's status


@cache
def _c() -> Any:
    return ctypes.CDLL(None)


@contextmanager
def _silent() -> Iterator[None]:
    """HiGHS prints from C++ now and then, whatever its options say: among a command's JSON."""
    _c().fflush(None)
    try:
        kept = os.dup(1)
    except OSError:  # closed: nothing can be printed
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        _c().fflush(None)
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


TIE = 1e-6
"""Weight of recomputed seconds where they are in T: what does not lower T is not recomputed."""


@dataclass(frozen=True, eq=False)
class Bound:
    """The optimum of the program.

    Attributes:
        added_seconds: Lower bound on recomputation and stalls per period; infinite if nothing
            fits.
        offload: Part of each value that leaves, [values].
        recompute: Part of each value that is computed again, [values].
    """

    added_seconds: float
    offload: FloatArray
    recompute: FloatArray

    def nearest(self) -> IntArray:
        """Each value by the larger of its parts, if that is above one half."""
        parts: FloatArray = np.stack([self.offload, self.recompute])
        found = np.where(parts.max(0) > 0.5, np.array([OFFLOAD, RECOMPUTE])[parts.argmax(0)], KEEP)
        return found.astype(np.int64)


class _Program:
    """Columns and rows; ``o`` and ``r`` come first, the others by name."""

    NAMES = ("s", "t", "x", "y", "w", "out_f", "out_s", "out_b", "out_t",
             "in_f", "in_s", "in_b", "in_t")  # fmt: skip

    def __init__(self, problem: Problem, cap: float) -> None:
        self.p, self.n = problem, problem.values
        self.unit = max(float(problem.nbytes.max(initial=0.0)), 1e-30)
        self.second = max(problem.step_seconds, 1e-30)
        self.cap = cap / self.unit
        self.size = problem.nbytes / self.unit
        self.again = np.where(np.isfinite(problem.recompute), problem.recompute, 0) / self.second
        self.rate = problem.bandwidth * self.second / self.unit
        self.weight = 1.0 if problem.behind is None else TIE
        self.columns = 2 * self.n + len(self.NAMES)
        self.splits = True  # x may be above 0
        self.rows: list[FloatArray] = []
        self.low: list[float] = []
        self.high: list[float] = []

    def at(self, name: str) -> int:
        return 2 * self.n + self.NAMES.index(name)

    def row(
        self, low: float, high: float, of: Mapping[str, float],
        o: FloatArray | float = 0, r: FloatArray | float = 0,
    ) -> None:  # fmt: skip
        """``low <= o . offload + r . recompute + of . others <= high``."""
        coefficients = np.zeros(self.columns)
        coefficients[: self.n] = o
        coefficients[self.n : 2 * self.n] = r
        for name, value in of.items():
            coefficients[self.at(name)] = value
        self.rows.append(coefficients)
        self.low.append(low)
        self.high.append(high)


def bound(
    problem: Problem,
    cap: float | None = None,
    cuts: Sequence[Working] = (),
    *,
    decides: bool = False,
) -> Bound:
    """Solve the program.

    Args:
        problem: What is saved.
        cap: Another cap than the problem's.
        cuts: More rows: recomputing these values takes these bytes, whatever else is recomputed.
        decides: Whether decisions are wanted, which have no part that leaves first where there are
            no parts. Two sets that never meet would need none: that is not relied on.
    """
    program = _Program(problem, problem.cap if cap is None else cap)
    program.splits = problem.parts or not decides
    apart = problem.behind is not None
    if apart:
        _add_apart(program)
    elif problem.alternates:
        _steady(program)
    else:
        _flush(program)
    for v in range(program.n):
        unit = np.zeros(program.n)
        unit[v] = 1.0
        program.row(1 if apart else -np.inf, 1, {}, o=unit, r=unit)
    for bytes_ in problem.alive:
        program.row(-np.inf, 0, {"w": -1}, r=bytes_ / program.unit)
    for cut in cuts:
        needs, need = np.zeros(program.n), cut.alive / program.unit
        needs[list(cut.values)] = need
        program.row(-np.inf, need * (len(cut.values) - 1), {"w": -1}, r=needs)
    tight = problem.alternates and not apart and (bool(cuts) or cap is not None)
    return _solve(program, whole=program.n <= (TIGHT_UP_TO if tight else WHOLE_UP_TO))


def _steady(c: _Program) -> None:
    k, size, rate = c.p.flight, c.size, c.rate
    kept = c.cap - k * float(size.sum())  # flight K = all of them less what leaves or is dropped
    end_of_f = {"x": 1, "out_f": -1, "y": 1, "in_f": 1}
    begin_of_b = {**end_of_f, "out_s": -1, "in_s": 1, "w": 1}
    end_of_b = {**begin_of_b, "out_b": -1, "in_b": 1}
    for moment in (end_of_f, begin_of_b, end_of_b):
        c.row(-np.inf, kept, moment, o=(1 - k) * size, r=-k * size)
    c.row(0, np.inf, {"y": 1, "in_f": 1, "in_s": 1}, o=-size)
    c.row(0, np.inf, {"x": 1, "out_f": -1})
    c.row(0, np.inf, {"x": 1, "out_f": -1, "out_s": -1, "out_b": -1}, o=size)
    for way in ("out", "in"):
        c.row(0, 0, {f"{way}_{part}": 1.0 for part in "fsbt"}, o=-size)
        c.row(-np.inf, rate * c.p.forward / c.second, {f"{way}_f": 1})
        c.row(-np.inf, 0, {f"{way}_s": 1, "s": -rate})
        c.row(-np.inf, 0, {f"{way}_t": 1, "t": -rate})
        c.row(-np.inf, rate * c.p.backward / c.second, {f"{way}_b": 1}, r=-rate * c.again)


def _flush(c: _Program) -> None:
    k, size = c.p.flight, c.size
    c.row(-np.inf, c.cap - k * float(size.sum()), {"w": 1}, o=(1 - k) * size, r=-k * size)
    time = c.rate * c.p.step_seconds / c.second
    c.row(-np.inf, time, {"s": -c.rate}, o=size, r=-c.rate * c.again)


def _add_apart(c: _Program) -> None:
    p, size, ends = c.p, c.size, {"s": c.rate, "x": -1.0}
    assert p.behind is not None
    behind = p.behind / c.unit
    c.row(c.rate * (p.forward / c.second - 1), np.inf, ends)
    c.row(c.rate * (p.backward / c.second - 1), np.inf, ends, r=-c.rate * c.again)
    c.row(-c.rate, np.inf, {"s": c.rate}, o=-size)
    c.row(-c.cap, np.inf, {"x": 1}, o=-2 * size)
    c.row(-behind, np.inf, {"x": 1, "w": -1}, o=-2 * size)
    c.row(-np.inf, c.cap, {}, o=size)
    c.row(-np.inf, behind, {"w": 1}, o=size)


def _solve(c: _Program, *, whole: bool) -> Bound:
    found = _milp(c, whole=whole)
    if found.status == NODES_REACHED:  # a bound, but perhaps no decision
        parts = _milp(c, whole=False)
        least = max(float(found.mip_dual_bound), float(parts.fun))
        found = parts
    elif found.success:
        least = float(found.fun) - GAP * abs(float(found.fun)) * whole
    else:
        return Bound(np.inf, np.zeros(c.n), np.zeros(c.n))
    if c.weight < 1:
        least -= c.weight * float(c.again.sum())
    x: FloatArray = np.asarray(found.x)
    return Bound(max(least, 0.0) * c.second, x[: c.n], x[c.n : 2 * c.n])


def _milp(c: _Program, *, whole: bool) -> OptimizeResult:
    cost = np.zeros(c.columns)
    cost[c.n : 2 * c.n] = c.again * c.weight
    cost[c.at("s")] = cost[c.at("t")] = 1
    top = np.full(c.columns, np.inf)
    top[: c.n] = 1.0 if c.p.moves else 0.0
    top[c.n : 2 * c.n] = np.isfinite(c.p.recompute)
    top[c.at("x")] = np.inf if c.splits else 0.0
    integral = np.zeros(c.columns, dtype=np.int64)
    integral[: 2 * c.n] = whole
    rows = LinearConstraint(sparse.csr_array(np.array(c.rows)), c.low, c.high)
    # without presolve HiGHS calls a worse decision the optimum, once in a while
    with _silent():
        return milp(
            cost,
            integrality=integral,
            bounds=Bounds(np.zeros(c.columns), top),
            constraints=rows,
            options={"node_limit": NODES, "mip_rel_gap": GAP, "presolve": whole},
        )
