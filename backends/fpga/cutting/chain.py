"""The least interval of a chain of boards: bisection, each board reaching as far as it can.

For a target interval every board in turn takes as many units of a linear order as fit it; a
boundary whose values the link cannot carry within the target is no place to cut. Reaching further
never hurts, as every part of what fits a board fits it too, so this answers the target exactly
for this order, as far as the fit test is exact. Where boards may stand in any order, a state is
how many of each kind are used, and the furthest reach of every state is kept.

There are two fit tests. By *shares*, a run fits unless a weighting of the resources excludes it:
quick and never wrong in excluding. By *choice*, layers to stream are chosen and memories placed
(`Demand.fits`). The least target is searched for by shares, then confirmed, or
raised, by choice.
"""

import itertools
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from pipec.backends.fpga.demand import RESOURCES, Demands, Numbers
from pipec.backends.fpga.search import Board

RATIO = 1.0025
"""Targets are powers of this times the bound."""
_STEPS = 4
_MOST = 8_000
"""Exponent at which a frame takes a year: nothing fits."""
_RAISED = 510
"""Steps by which a target may be raised until boards hold the stages."""

Order = NDArray[np.int64]
T = TypeVar("T")


def weightings(steps: int = _STEPS) -> Numbers:
    """Weightings of the resources on a grid, [weightings, resources].

    Example:
        >>> weightings(1).tolist()[:2]
        [[0.0, 0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 1.0, 0.0]]
    """
    grid = itertools.product(range(steps + 1), repeat=len(RESOURCES))
    return np.array([w for w in grid if sum(w) == steps]) / steps


@dataclass(frozen=True)
class Cut:
    """Boards in order and where each one's units end.

    Attributes:
        boards: Index of the board of each stage.
        ends: One past its last position in the order.
        order: The linear order of the units.
    """

    boards: tuple[int, ...]
    ends: tuple[int, ...]
    order: Order


def _least(
    probe: Callable[[int], T | None], low: int, size: int, most: int
) -> tuple[int, T] | None:
    """The least step above ``low``, at most ``most``, that yields a result: growing steps first."""
    found, high = None, low
    while found is None and high < most:
        low, high, size = high, min(high + size, most), 2 * size
        found = probe(high)
    while found is not None and high - low > 1:
        middle = (low + high) // 2
        better = probe(middle)
        low, high, found = (middle, high, found) if better is None else (low, middle, better)
    return None if found is None else (high, found)


@dataclass(frozen=True)
class Reach:
    """How far a board of one kind reaches at one target.

    Attributes:
        totals: Shares of a board up to each position, one array per way of using it,
            [weightings, positions + 1].
        stops: Positions of units that no board can hold, and the end.
        holds: Whether a board holds the run between two positions; None to go by shares alone.
    """

    totals: tuple[Numbers, ...]
    stops: Order
    holds: Callable[[int, int], bool] | None = None

    def end(self, start: int) -> int:
        """The furthest end of a run from ``start`` that fits."""
        furthest, holds = self._by_shares(start), self.holds
        if holds is None or holds(start, furthest):
            return furthest
        less = _least(lambda k: holds(start, furthest - k) or None, 0, 1, furthest - start - 1)
        return start if less is None else furthest - less[0]

    def _by_shares(self, start: int) -> int:
        """The furthest end of a run from ``start`` that no weighting excludes."""
        stop = int(self.stops[np.searchsorted(self.stops, start)])
        runs = range(start, stop)
        return start + max(
            bisect_right(runs, 1.0 + 1e-9, key=lambda k: (total[:, k + 1] - total[:, start]).max())
            for total in self.totals
        )


@dataclass
class Chain:
    """Boards, and the model to cut.

    Attributes:
        boards: In pipeline order.
        demands: What units take; one clock and precision for all boards of a kind.
        bound: Seconds that no cut beats.
        free: Whether boards may be put into another order.
        weights: Weightings of the resources that the test by shares asks.
    """

    boards: Sequence[Board]
    demands: Demands
    bound: float
    free: bool = False
    weights: Numbers = field(default_factory=weightings)
    _tables: dict[tuple[int, str], tuple[list[Numbers], NDArray[np.bool_]]] = field(
        default_factory=dict, init=False
    )

    def seconds(self, step: int) -> float:
        """The target of a step."""
        return float(self.bound * RATIO**step)

    def best(self, orders: Iterable[tuple[Order, Numbers]]) -> tuple[int, Cut] | None:
        """The least step that some order can be cut for, and the cut.

        Args:
            orders: Linear orders of the units, each with the seconds that what crosses behind a
                position takes of a link, ``[links, positions]``.
        """
        least, found = _MOST, None
        for order, crossing in orders:
            if least == 0:
                break
            if found is not None and self.at(least - 1, order, crossing) is None:
                continue
            better = _least(partial(self.at, order=order, crossing=crossing), -1, 8, least - 1)
            least, found = (least, found) if better is None else better
        return None if found is None else (least, found)

    def confirmed(self, step: int, cut: Cut, crossing: Numbers) -> tuple[int, Cut]:
        """The least step, from a given one, at which boards hold a cut by choice, and the cut.

        Args:
            step: Below it there is no cut.
            cut: Of that step, by shares; the answer where nothing is found above it.
            crossing: As of `best`, of the cut's order.
        """
        probe = partial(self.at, order=cut.order, crossing=crossing, by_choice=True)
        return _least(probe, step - 1, 1, step + _RAISED) or (step, cut)

    def at(
        self, step: int, order: Order, crossing: Numbers, *, by_choice: bool = False
    ) -> Cut | None:
        """A cut that keeps the target of a step; None if there is none."""
        kinds = sorted({b.device.kind for b in self.boards})
        reach = {kind: self._reach(step, kind, order, by_choice=by_choice) for kind in kinds}
        return self._walk(kinds, reach, list(crossing <= self.seconds(step)), order)

    def _end(
        self, position: int, start: int, furthest: int, allowed: Sequence[NDArray[np.bool_]]
    ) -> int:
        """Where the board at a place in the chain ends; -1 if it cannot."""
        left = len(self.boards) - 1 - position
        if left == 0:
            return furthest if furthest == self.demands.units else -1
        end = min(furthest, self.demands.units - left)
        while end > start and not allowed[position][end - 1]:
            end -= 1
        return end if end > start else -1

    def _walk(
        self,
        kinds: Sequence[str],
        reach: Mapping[str, Reach],
        allowed: Sequence[NDArray[np.bool_]],
        order: Order,
    ) -> Cut | None:
        """Dynamic program over how many boards of each kind are used, if that fits their order."""
        of_kind = [
            [k for k, b in enumerate(self.boards) if b.device.kind == kind] for kind in kinds
        ]
        best: dict[tuple[int, ...], tuple[int, tuple[int, ...], tuple[int, ...]]] = {
            (0,) * len(kinds): (0, (), ())
        }
        for counts in itertools.product(*(range(len(found) + 1) for found in of_kind)):
            for k, kind in enumerate(kinds):
                before = (*counts[:k], counts[k] - 1, *counts[k + 1 :])
                if before not in best:
                    continue
                start, ends, boards = best[before]
                board = of_kind[k][counts[k] - 1]
                if not self.free and board != len(ends):
                    continue
                end = self._end(len(ends), start, reach[kind].end(start), allowed)
                if end > best.get(counts, (-1, (), ()))[0] and end > 0:
                    best[counts] = (end, (*ends, end), (*boards, board))
        found = best.get(tuple(len(f) for f in of_kind))
        return None if found is None else Cut(found[2], found[1], order)

    def _reach(self, step: int, kind: str, order: Order, *, by_choice: bool) -> Reach:
        tables, late = self._table(step, kind)
        ahead = [np.pad(np.cumsum(t[:, order], axis=1), ((0, 0), (1, 0))) for t in tables]

        def holds(start: int, end: int) -> bool:
            """Whether a choice of options for the units between two positions fits the board."""
            run = np.zeros(self.demands.units, dtype=bool)
            run[order[start:end]] = True
            demand = self.demands.at(self._cycles(step, kind)).part(run)
            return demand.fits(self._board(kind).room)

        stops = np.append(np.flatnonzero(late[order]), len(order))
        return Reach(tuple(ahead), stops, holds if by_choice else None)

    def _board(self, kind: str) -> Board:
        return next(b for b in self.boards if b.device.kind == kind)

    def _cycles(self, step: int, kind: str) -> int:
        return max(math.floor(self.seconds(step) * self._board(kind).fabric.clock_hz), 1)

    def _table(self, step: int, kind: str) -> tuple[list[Numbers], NDArray[np.bool_]]:
        """Least shares of a board per unit, without and with streaming; and units that are late."""
        key = (step, kind)
        if key not in self._tables:
            room = self._board(kind).room
            demand = self.demands.at(self._cycles(step, kind)).on(room)
            shares = [demand.weighed(self.weights, room, streams=s) for s in (False, True)]
            self._tables[key] = (shares, demand.late)
        return self._tables[key]
