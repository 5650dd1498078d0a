"""All ideals of a DAG whose work lies in given windows, level by level in numpy."""

from dataclasses import dataclass
from math import inf

import numpy as np

from pipec.partition import clock
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


def merge_windows(low: FloatArray, high: FloatArray) -> list[tuple[float, float]]:
    """Overlapping intervals become one; empty ones vanish."""
    merged: list[tuple[float, float]] = []
    for a, b in sorted(zip(low.tolist(), high.tolist(), strict=True)):
        if a > b:
            continue
        if merged and a <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(b, merged[-1][1]))
        else:
            merged.append((a, b))
    return merged


def enumerate_ideals(
    units: Units,
    ref: FloatArray,
    windows: list[tuple[float, float]],
    most: int,
    deadline: float = inf,
) -> BoolArray | None:
    """Ideals whose ref lies in one of the windows, [ideals, units].

    Args:
        units: The DAG.
        ref: Work measure, [units].
        windows: Disjoint closed intervals.
        most: Gives up beyond this many.
        deadline: Gives up at this time (`pipec.partition.clock.now`).

    Returns:
        One row per ideal, or None if there are more than ``most`` or time is up.
    """
    above, below = closures(units)
    order = np.array(topological_order(units.size, units.succ), np.int64)
    found: list[BoolArray] = []
    for window in windows:
        rows = _in_window(order, above, below, ref, window, most, deadline)
        if rows is None:
            return None
        found.append(rows)
        most -= len(rows)
    return np.concatenate(found) if found else np.zeros((0, units.size), bool)


def _in_window(
    order: IntArray,
    above: BoolArray,
    below: BoolArray,
    ref: FloatArray,
    window: tuple[float, float],
    most: int,
    deadline: float,
) -> BoolArray | None:
    """Decides one free unit per level; a row lives while some completion may hit the window."""
    low, high = window
    total = float(ref.sum())
    # without v at most the rest outside its descendants; with v at least all its ancestors
    must = total - below @ ref < low
    never = above @ ref > high
    if (must & never).any():
        return np.zeros((0, len(ref)), bool)
    free = order[~must[order] & ~never[order]]
    start = float(ref[must].sum())
    active = _start(start, ref[free])
    down = below[np.ix_(free, free)]
    done: list[BoolArray] = []
    count = 0
    for k in range(len(free)):
        active = active.decide(k, np.flatnonzero(down[k]), ref[free], low, high)
        finished = active.undecided == 0
        hit = finished & (active.least >= low) & (active.least <= high)
        done.append(active.inside[hit])
        count += int(hit.sum())
        active = active.take(~finished)
        if count + len(active.inside) > most or clock.now() > deadline:
            return None
    if not len(free) and low <= start <= high:
        done.append(active.inside)
    inside = np.concatenate(done) if done else np.zeros((0, len(free)), bool)
    rows = np.zeros((len(inside), len(ref)), bool)
    rows[:, must] = True
    rows[:, free] = inside
    return rows


@dataclass(eq=False)
class _Partial:
    """Sets that are decided up to some unit: one row each.

    Attributes:
        inside: Units that are in, [rows, free units].
        outside: Units that are out, with all descendants, [rows, free units].
        least: Work of what is in, [rows].
        most: Work of what is not out, [rows].
        undecided: Units neither in nor out, [rows].
    """

    inside: BoolArray
    outside: BoolArray
    least: FloatArray
    most: FloatArray
    undecided: IntArray

    def take(self, rows: BoolArray) -> "_Partial":
        """Only some rows."""
        return _Partial(
            self.inside[rows],
            self.outside[rows],
            self.least[rows],
            self.most[rows],
            self.undecided[rows],
        )

    def decide(
        self, k: int, below: IntArray, weight: FloatArray, low: float, high: float
    ) -> "_Partial":
        """Rows in which unit k is out already, is put in, or is put out with its descendants."""
        open_ = ~self.outside[:, k]
        if not open_.any():
            return self
        rest, grown, dropped = self.take(~open_), self.take(open_), self.take(open_)
        grown.inside[:, k] = True
        grown.least += weight[k]
        grown.undecided -= 1
        gone = ~dropped.outside[:, below]
        dropped.outside[:, below] = True
        dropped.most -= gone @ weight[below]
        dropped.undecided -= gone.sum(axis=1)
        grown, dropped = grown.take(grown.least <= high), dropped.take(dropped.most >= low)
        parts = (rest, grown, dropped)
        return _Partial(
            np.concatenate([p.inside for p in parts]),
            np.concatenate([p.outside for p in parts]),
            np.concatenate([p.least for p in parts]),
            np.concatenate([p.most for p in parts]),
            np.concatenate([p.undecided for p in parts]),
        )


def _start(work: float, weight: FloatArray) -> _Partial:
    """Nothing decided."""
    n = len(weight)
    return _Partial(
        np.zeros((1, n), bool),
        np.zeros((1, n), bool),
        np.array([work]),
        np.array([work + float(weight.sum())]),
        np.array([n]),
    )
