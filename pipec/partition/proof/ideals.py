"""All ideals of a DAG that may be cuts under a limit, level by level in numpy.

One unit after the other is put in or, with all its descendants, out. A row of such decisions lives
while some completion may still be a cut: the work that is in or not yet out is in a window, and the
values that are cut already, with a unit in and another out, leave the loads on both sides room.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from time import perf_counter
from typing import NamedTuple

import numpy as np

from pipec.partition.costgraph import BoolArray, FloatArray, IntArray, topological_order
from pipec.partition.units import Units


def closures(units: Units) -> tuple[BoolArray, BoolArray]:
    """(ancestors, descendants) of every unit, itself included, [units, units]."""
    n = units.size
    below = np.eye(n, dtype=bool)
    for u in reversed(topological_order(n, units.succ)):
        for v in units.succ[u]:
            below[u] |= below[v]
    return below.T.copy(), below


MayHold = Callable[[FloatArray, FloatArray, FloatArray], BoolArray]
"""(least work, most work, cost of the values cut for sure [kinds, rows]) -> rows to keep."""

BLOCK, BLOCK_CELLS = 4_096, 500_000  # partial sets that are extended at a time; what they hold
VISITS = 40  # partial sets looked at, per ideal that is wanted at most


@dataclass(frozen=True)
class Window:
    """A range of work that cuts may have on their left.

    Attributes:
        low: Least work.
        high: Most work.
        may_hold: Tells sets that cannot become a cut; None: all may.
    """

    low: float
    high: float
    may_hold: MayHold | None = None


def enumerate_ideals(
    units: Units, ref: FloatArray, windows: Sequence[Window], most: int, deadline: float = inf
) -> BoolArray | None:
    """The two ends, and all ideals that lie in one of the windows, [ideals, units].

    Args:
        units: The DAG.
        ref: Work measure, [units].
        windows: Disjoint.
        most: Gives up beyond this many.
        deadline: Gives up at this time (`time.perf_counter`).

    Returns:
        One row per ideal, or None if there are more than ``most`` or time is up.
    """
    closed = closures(units)
    order = np.array(topological_order(units.size, units.succ), np.int64)
    found = [np.zeros((1, units.size), bool), np.ones((1, units.size), bool)]
    for window in windows:
        search = _Search(units, ref, closed, order, window)
        rows = search.run(most, deadline)
        if rows is None:
            return None
        size = rows.sum(axis=1)
        found.append(rows[(size > 0) & (size < units.size)])
        most -= len(rows)
    return np.concatenate(found)


class _Partial(NamedTuple):
    """Sets that are decided up to some unit: one row each.

    Attributes:
        inside: Units that are in, [rows, free units].
        outside: Units that are out, with all descendants, [rows, free units].
        begun: Hyperedges with a unit in, [rows, hyperedges].
        ended: Hyperedges with a unit out, [rows, hyperedges].
        least: Work of what is in, [rows].
        most: Work of what is not out, [rows].
        cut: Cost of the hyperedges with a unit in and another out, [rows, kinds].
    """

    inside: BoolArray
    outside: BoolArray
    begun: BoolArray
    ended: BoolArray
    least: FloatArray
    most: FloatArray
    cut: FloatArray

    def take(self, rows: BoolArray | slice) -> "_Partial":
        """Only some rows."""
        return _Partial._make(each[rows] for each in self)


class _Search:
    """The decisions that a window leaves free, and what follows from each."""

    def __init__(
        self,
        units: Units,
        ref: FloatArray,
        closed: tuple[BoolArray, BoolArray],
        order: IntArray,
        window: Window,
    ) -> None:
        above, below = closed
        self._window = window
        # without v at most the rest outside its descendants; with v at least all its ancestors
        self._must = float(ref.sum()) - below @ ref < window.low
        never = above @ ref > window.high
        self.empty = bool((self._must & never).any())
        self._free = order[~self._must[order] & ~never[order]]
        self._ref = ref[self._free]
        self._down = below[np.ix_(self._free, self._free)]
        pins = np.zeros((units.size, len(units.pin_ptr) - 1), bool)
        pins[units.pin, units.pin_edge()] = True
        begun = np.asarray(pins[self._must].any(axis=0))
        ended = np.asarray(pins[never].any(axis=0))
        # what is decided from the start is cut everywhere or nowhere
        open_ = pins[self._free].any(axis=0)
        self._cut = units.cost[:, begun & ended].sum(axis=1)
        open_ &= ~(begun & ended)
        self._cost = units.cost[:, open_]
        self._pins = pins[np.ix_(self._free, open_)]
        self._begun, self._ended = begun[open_], ended[open_]
        self._start = float(ref[self._must].sum())

    def run(self, most: int, deadline: float) -> BoolArray | None:
        """Depth first in blocks of rows; None if there are too many or time is up."""
        if self.empty:
            return np.zeros((0, len(self._must)), bool)
        visits, count = VISITS * most, 0
        block = min(BLOCK, BLOCK_CELLS // (len(self._free) + len(self._begun) + 1) + 1)
        done: list[BoolArray] = []
        stack = [(0, self._keep(self._first()))]
        while stack:
            k, rows = stack.pop()
            while k < len(self._free) and len(rows.least):
                if len(rows.least) > block:
                    half = len(rows.least) // 2
                    stack.append((k, rows.take(slice(half, None))))
                    rows = rows.take(slice(half))
                visits -= len(rows.least)
                if visits < 0 or perf_counter() > deadline:
                    return None
                rows, k = self._decide(rows, k), k + 1
            done.append(rows.inside)
            count += len(rows.inside)
            if count > most:
                return None
        inside = np.concatenate(done)
        found = np.zeros((len(inside), len(self._must)), bool)
        found[:, self._must] = True
        found[:, self._free] = inside
        return found

    def _first(self) -> _Partial:
        """Nothing free decided."""
        none, least = np.zeros((1, len(self._free)), bool), np.array([self._start])
        ends, most = (self._begun[None], self._ended[None]), least + self._ref.sum()
        return _Partial(none, none, *ends, least, most, self._cut[None])

    def _keep(self, rows: _Partial) -> _Partial:
        """Rows of which some completion may be a cut."""
        window = self._window
        keep = (rows.least <= window.high) & (rows.most >= window.low)
        if window.may_hold is not None:
            keep &= window.may_hold(rows.least, rows.most, rows.cut.T)
        return rows if keep.all() else rows.take(keep)

    def _decide(self, rows: _Partial, k: int) -> _Partial:
        """Unit k is out already, is put in, or is put out with its descendants."""
        open_ = ~rows.outside[:, k]
        if not open_.any():
            return rows
        rest, grown, dropped = rows.take(~open_), rows.take(open_), rows.take(open_)
        grown.inside[:, k] = True
        grown.least[:] += self._ref[k]
        pins = np.flatnonzero(self._pins[k])
        fresh = grown.ended[:, pins] & ~grown.begun[:, pins]
        grown.cut[:] += fresh @ self._cost[:, pins].T
        grown.begun[:, pins] = True
        below = np.flatnonzero(self._down[k])
        gone = ~dropped.outside[:, below]
        dropped.outside[:, below] = True
        dropped.most[:] -= gone @ self._ref[below]
        pins = np.flatnonzero(self._pins[below].any(axis=0))
        fresh = dropped.begun[:, pins] & ~dropped.ended[:, pins]
        dropped.cut[:] += fresh @ self._cost[:, pins].T
        dropped.ended[:, pins] = True
        parts = (rest, self._keep(grown), self._keep(dropped))
        return _Partial._make(np.concatenate(each) for each in zip(*parts, strict=True))
