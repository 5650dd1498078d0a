"""Linear and integer programs for the contiguous cut, where ideals are too many.

Order encoding: ``y[v, p]`` says that unit v sits at place p or before, so ``x[v, p] = y[v, p] -
y[v, p-1]`` that it sits there. A value with pins on both sides of a device is paid for there::

    load[p] = sum of work[v] * x[v, p] + sum of cost[h] * (max - min over pins v of h of x[v, p])

On its own the relaxation knows no more than work / devices: every unit may be spread over all
places. Under a limit it knows a lot: a unit whose producers are more work than the first places
hold is not there, and what holds the ends of the graph apart costs a minimum cut at least. A limit
below which even the relaxation finds nothing is a bound; the integer program goes on from there.
"""

from dataclasses import dataclass
from math import inf
from time import perf_counter
from typing import TYPE_CHECKING, cast

import numpy as np

from pipec.partition.bounds import TOLERANCE
from pipec.partition.closure import cheapest_ideals
from pipec.partition.costgraph import BoolArray, FloatArray, IntArray
from pipec.partition.units import Units

if TYPE_CHECKING:
    from scipy.sparse import csr_array

OPTIMAL, INFEASIBLE = 0, 2  # status of scipy's solvers
ACCURACY = 1e-6
"""How far the solver may be from a row or from its optimum, relative to the limit."""


@dataclass(eq=False)
class Program:
    """The program for one order of the devices.

    Attributes:
        units: What is cut; values are priced in seconds.
        work: Seconds of every unit at every place, [places, units].
        pays: Whether the device at a place pays for values, [places].
        ref: Work measure, [units].
        held: Work measure that the devices up to a place hold per second of load, [places].
        price: Work measure that a second of transfer takes from every device.
        room: Work measure that the memory of the devices up to a place adds, [places].
        seconds: What the last relaxation took.
    """

    units: Units
    work: FloatArray
    pays: BoolArray
    ref: FloatArray
    held: FloatArray
    price: float
    room: FloatArray | None = None
    seconds: float = 0.0

    def __post_init__(self) -> None:
        units, k = self.units, len(self.work)
        degree = np.diff(units.pin_ptr)
        self._y = np.arange(units.size * k).reshape(units.size, k)
        shape = (len(degree), k)
        self._most = self._y.size + np.arange(degree.size * k).reshape(shape)
        self._least = np.where((degree > 2)[:, None], self._most + degree.size * k, -1)
        self.columns = self._y.size + 2 * degree.size * k + 1
        self._parts: list[tuple[IntArray, FloatArray]] = []
        self._order_rows()
        self._value_rows()
        self._load_rows()
        self._matrix = self._rows()
        self._objective = np.zeros(self.columns)
        self._objective[-1] = 1.0
        self._above = cheapest_ideals(units, self.ref, self.price, right=False)
        self._below = cheapest_ideals(units, self.ref, self.price, right=True)

    @staticmethod
    def size(units: Units, places: int) -> int:
        """Variables that a program would have."""
        return places * (units.size + 2 * (len(units.pin_ptr) - 1))

    def _add(self, *terms: tuple[IntArray, float]) -> None:
        """Rows ``sum of factor * column <= 0``, one per entry; a column below 0 is nothing."""
        columns = np.stack([column.ravel() for column, _ in terms], axis=1)
        factors = np.broadcast_to([factor for _, factor in terms], columns.shape)
        self._parts.append((columns, factors))

    def _order_rows(self) -> None:
        """Placed stays placed; a consumer is not placed before its producer; some never run."""
        y, edges = self._y, self.units.edges
        self._add((y[:, :-1], 1.0), (y[:, 1:], -1.0))
        self._add((y[edges[:, 1], :-1], 1.0), (y[edges[:, 0], :-1], -1.0))
        place, unit = np.nonzero(np.isinf(self.work))
        self._add((y[unit, place], 1.0), (self._before(unit, place), -1.0))

    def _before(self, unit: IntArray, place: IntArray) -> IntArray:
        return np.where(place > 0, self._y[unit, place - 1], -1)

    def _value_rows(self) -> None:
        """Most and least presence of the pins of a value; of two pins, only the difference."""
        units, k = self.units, len(self.work)
        degree = np.diff(units.pin_ptr)
        edge = units.pin_edge()
        big = np.flatnonzero(degree[edge] > 2)
        places = np.tile(np.arange(k), len(big))
        unit, value = np.repeat(units.pin[big], k), np.repeat(edge[big], k)
        here, before = self._y[unit, places], self._before(unit, places)
        most, least = self._most[value, places], self._least[value, places]
        self._add((here, 1.0), (before, -1.0), (most, -1.0))
        self._add((here, -1.0), (before, 1.0), (least, 1.0))
        pairs = np.flatnonzero(degree == 2)
        places = np.tile(np.arange(k), len(pairs))
        first = np.repeat(units.pin[units.pin_ptr[pairs]], k)
        second = np.repeat(units.pin[units.pin_ptr[pairs] + 1], k)
        most = self._most[np.repeat(pairs, k), places]
        for a, b in ((first, second), (second, first)):
            self._add(
                (self._y[a, places], 1.0),
                (self._before(a, places), -1.0),
                (self._y[b, places], -1.0),
                (self._before(b, places), 1.0),
                (most, -1.0),
            )

    def _load_rows(self) -> None:
        cost = self.units.cost[0]
        for p, row in enumerate(self.work):
            work = np.where(np.isfinite(row), row, 0.0)
            price = cost * self.pays[p]
            before = self._y[:, p - 1] if p else np.full(len(work), -1)
            last = np.array([self.columns - 1])
            columns = (self._y[:, p], before, self._most[:, p], self._least[:, p], last)
            factors = (work, -work, price, -price, np.array([-1.0]))
            self._parts.append((np.concatenate(columns)[None], np.concatenate(factors)[None]))

    def _rows(self) -> "csr_array":
        from scipy.sparse import csr_array

        start, x, row, column = 0, [], [], []
        for columns, factors in self._parts:
            at = np.arange(len(columns))[:, None] + start
            real = columns >= 0
            x.append(factors[real])
            row.append(np.broadcast_to(at, columns.shape)[real])
            column.append(columns[real])
            start += len(columns)
        entries = (np.concatenate(x), (np.concatenate(row), np.concatenate(column)))
        return csr_array(entries, shape=(start, self.columns))

    def _bounds(self, limit: float) -> tuple[FloatArray, FloatArray] | None:
        """Least and most of every variable if every load is below a limit; None if none is."""
        total, k = float(self.ref.sum()), len(self.work)
        slack = TOLERANCE * total
        left = self.held * limit + (0.0 if self.room is None else self.room)
        most = left + slack
        least = total - (left[-1] - left) - slack
        low, high = np.zeros(self.columns), np.ones(self.columns)
        never = self._above[:, None] > most
        must = (total - self._below)[:, None] < least
        must[:, k - 1] = True
        high[self._y[never]], low[self._y[must]] = 0.0, 1.0
        high[-1] = inf
        return None if (never & must).any() else (low, high)

    def relaxed(self, limit: float, seconds: float) -> float:
        """A load that no cut can beat that stays below the limit; infinite if none does.

        Args:
            limit: Every load is below.
            seconds: When to stop; 0 is returned if nothing is known by then.
        """
        from scipy.optimize import linprog

        bounds = self._bounds(limit)
        if bounds is None:
            return inf
        began = perf_counter()
        found = linprog(
            self._objective,
            A_ub=cast("FloatArray", self._matrix),  # the stubs do not know sparse rows
            b_ub=np.zeros(self._matrix.shape[0]),
            bounds=list(zip(*(side.tolist() for side in bounds), strict=True)),
            method="highs-ipm",
            options={"time_limit": max(seconds, 0.01)},
        )
        self.seconds = perf_counter() - began
        if found.status not in (OPTIMAL, INFEASIBLE):
            return 0.0
        if found.status == INFEASIBLE:
            return inf
        return 0.0 if found.fun is None else max(0.0, float(found.fun) - ACCURACY * limit)

    def solved(self, limit: float, seconds: float) -> tuple[float, IntArray | None]:
        """The same for the integer program, and the place of every unit in the best cut found."""
        from scipy.optimize import Bounds, LinearConstraint, milp

        bounds = self._bounds(limit)
        if bounds is None:
            return inf, None
        whole = np.zeros(self.columns, np.int64)
        whole[: self._y.size] = 1
        found = milp(
            self._objective,
            constraints=LinearConstraint(self._matrix, ub=np.zeros(self._matrix.shape[0])),
            bounds=Bounds(*bounds),
            integrality=whole,
            options={"time_limit": max(seconds, 0.01), "mip_rel_gap": 0.0},
        )
        if found.status == INFEASIBLE:
            return inf, None
        bound = found.mip_dual_bound
        lower = 0.0 if bound is None else float(bound) - ACCURACY * limit
        if found.x is None:
            return lower, None
        placed = found.x[self._y] > 0.5
        return lower, np.asarray(len(self.work) - placed.sum(axis=1), np.int64)
