"""The linear relaxation: fractions of values move, and copies flow like a fluid.

Cumulative quantities are variables of their own, so that every row of the program is sparse.

```text
per value        o + r <= 1                          offloaded and recomputed fractions
forward slot e   z_e <= bw (f_e + s_e)               bytes copied out, s: stall
                 Z_e <= O_{e-1}                      only what was produced before the slot
                 P_e - R_{e-1} - Z_e <= cap
turn             Z_last + bw s_turn >= O_last        all copies out end before the backward
backward slot l  y_l <= bw (g_l + recompute_l + b_l) bytes fetched beside it, b: stall before it
                 U_l <= Y_{l+1} + bw b_l             what l reads has come back
                 left_l - O - R + V_l + Y_l <= cap   kept + fetched - freed + renewed
```

Its value is a lower bound on the time that any decision adds: copies of whole values can only be
later than the fluid.
"""

from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.optimize import linprog

from pipec.residency.problem import FloatArray, Problem


@dataclass(frozen=True, eq=False)
class Relaxed:
    """The optimum of the relaxation.

    Attributes:
        added_seconds: Lower bound on recomputation and stalls; infinite if nothing fits.
        offload: Fraction of each value that leaves, [values].
        recompute: Fraction of each value that is computed again, [values].
    """

    added_seconds: float
    offload: FloatArray
    recompute: FloatArray


class _Rows:
    """Rows ``sum(coefficient * variable) <= bound`` of a sparse program."""

    def __init__(self) -> None:
        self.row: list[int] = []
        self.column: list[int] = []
        self.coefficient: list[float] = []
        self.bounds: list[float] = []

    def add(self, terms: list[tuple[int, float]], bound: float) -> None:
        for column, coefficient in terms:
            self.row.append(len(self.bounds))
            self.column.append(column)
            self.coefficient.append(coefficient)
        self.bounds.append(bound)

    def matrix(self, columns: int) -> sparse.csr_matrix:
        shape = (len(self.bounds), columns)
        return sparse.csr_matrix((self.coefficient, (self.row, self.column)), shape=shape)


class _Columns:
    """Where each kind of variable starts; capitals are the running sums of the small ones."""

    def __init__(self, values: int, slots: int) -> None:
        starts = np.cumsum([0, values, values, *[slots] * 10, 1])
        (self.o, self.r, self.O, self.R, self.z, self.Z, self.s, self.y, self.Y, self.U, self.V,
         self.b, self.turn, self.count) = map(int, starts)  # fmt: skip


def relax(problem: Problem, cap: float | None = None) -> Relaxed:
    """Solve the relaxation.

    Args:
        problem: What is saved.
        cap: Another cap than the problem's.
    """
    limit = problem.cap if cap is None else cap
    at = _Columns(problem.values, problem.slots)
    upper, equal = _Rows(), _Rows()
    for v in range(problem.values):
        upper.add([(at.o + v, 1), (at.r + v, 1)], 1)
    _forward(problem, limit, at, upper, equal)
    _backward(problem, limit, at, upper, equal)
    cost = np.zeros(at.count)
    possible = np.isfinite(problem.recompute)
    cost[at.r : at.r + problem.values] = np.where(possible, problem.recompute, 0)
    cost[at.s : at.s + problem.slots] = 1
    cost[at.b : at.b + problem.slots] = 1
    cost[at.turn] = 1
    top = np.full(at.count, np.inf)
    top[at.o : at.o + problem.values] = 1 if problem.bandwidth > 0 else 0
    top[at.r : at.r + problem.values] = np.where(possible, 1, 0)
    solved = linprog(  # type: ignore[call-overload]  # its stubs know no sparse rows
        cost, upper.matrix(at.count), upper.bounds, equal.matrix(at.count), equal.bounds,
        bounds=np.stack([np.zeros(at.count), top], axis=1), method="highs",
    )  # fmt: skip
    if not solved.success:
        nothing = np.zeros(problem.values)
        return Relaxed(np.inf, nothing, nothing)
    x = np.asarray(solved.x)
    return Relaxed(float(solved.fun), x[at.o : at.o + problem.values], x[at.r : at.O])


def _forward(problem: Problem, cap: float, at: _Columns, upper: _Rows, equal: _Rows) -> None:
    unit = _unit(problem)
    rate, total = problem.bandwidth / unit, 0.0
    for e in range(problem.slots):
        mine = np.flatnonzero(problem.produced == e).tolist()
        _running(equal, at.O, e, e - 1, [(at.o + v, problem.nbytes[v] / unit) for v in mine])
        _running(equal, at.R, e, e - 1, [(at.r + v, problem.nbytes[v] / unit) for v in mine])
        _running(equal, at.Z, e, e - 1, [(at.z + e, 1.0)])
        upper.add([(at.z + e, 1), (at.s + e, -rate)], rate * problem.forward[e])
        upper.add([(at.Z + e, 1), *_at(at.O, e - 1, -1)], 0)
        total += float(problem.nbytes[mine].sum())
        upper.add([(at.Z + e, -1), *_at(at.R, e - 1, -1)], (cap - total) / unit)
    end = problem.slots - 1
    upper.add([(at.O + end, 1), (at.Z + end, -1), (at.turn, -rate)], 0)


def _backward(problem: Problem, cap: float, at: _Columns, upper: _Rows, equal: _Rows) -> None:
    unit, end = _unit(problem), problem.slots - 1
    rate, left = problem.bandwidth / unit, float(problem.nbytes.sum())
    for e in range(end, -1, -1):
        before = e + 1 if e < end else -1
        mine = np.flatnonzero(problem.used == e).tolist()
        sizes = [(v, float(problem.nbytes[v]) / unit) for v in mine]
        again = [(v, float(problem.recompute[v])) for v in mine if problem.recompute[v] < np.inf]
        _running(equal, at.U, e, before, [(at.o + v, size) for v, size in sizes])
        _running(equal, at.V, e, before, [(at.r + v, size) for v, size in sizes])
        _running(equal, at.Y, e, before, [(at.y + e, 1.0)])
        beside = [(at.b + e, -rate), *((at.r + v, -rate * seconds) for v, seconds in again)]
        upper.add([(at.y + e, 1), *beside], rate * problem.backward[e])
        upper.add([(at.U + e, 1), (at.b + e, -rate), *_at(at.Y, before, -1)], 0)
        upper.add([(at.U + e, 1), (at.Y + e, -1)], 0)
        held = [(at.O + end, -1.0), (at.R + end, -1.0), (at.V + e, 1.0), (at.Y + e, 1.0)]
        upper.add(held, (cap - left) / unit)
        left -= float(problem.nbytes[mine].sum())


def _running(
    equal: _Rows, sum_: int, slot: int, before: int, parts: list[tuple[int, float]]
) -> None:
    """sum[slot] = sum[before] + parts; a slot before the first counts as nothing."""
    terms = [(sum_ + slot, 1.0), *((column, -size) for column, size in parts)]
    equal.add(terms + _at(sum_, before, -1.0), 0)


def _at(start: int, slot: int, coefficient: float) -> list[tuple[int, float]]:
    return [] if slot < 0 else [(start + slot, coefficient)]


def _unit(problem: Problem) -> float:
    """Bytes per unit of the program: keeps its numbers near one."""
    return float(problem.nbytes.mean()) if problem.values else 1.0
