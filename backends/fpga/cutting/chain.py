"""The least interval of a chain of boards: bisection, each board reaching as far as it can.

For a target interval every board in turn takes as many units of a linear order as it holds: layers
to stream are chosen and memories placed (`Demand.fits`). A boundary whose values the link cannot
carry within the target is no place to cut. Reaching further never hurts, as every part of what fits
a board fits it too, so this decides a target exactly for this order, as far as the fit test is
exact. Where boards may stand in any order, a state is how many of each kind are used, and the
furthest reach of every state is kept.
"""

import itertools
import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from pipec.backends.fpga.demand import Demands, Numbers
from pipec.backends.fpga.search import Board

RATIO = 1.0025
"""Targets are powers of this times the bound."""
_MOST = 8_000
"""Exponent at which a frame takes a year: nothing fits."""

Order = NDArray[np.int64]
Reach = Callable[[int], int]
"""The furthest end of a run of units that a board holds, by its start."""


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


@dataclass
class Chain:
    """Boards, and the model to cut.

    Attributes:
        boards: In pipeline order.
        demands: What units take; one clock and precision for all boards of a kind.
        bound: Seconds that no cut beats.
        free: Whether boards may be put into another order.
    """

    boards: Sequence[Board]
    demands: Demands
    bound: float
    free: bool = False

    def seconds(self, step: int) -> float:
        """The target of a step."""
        return float(self.bound * RATIO**step)

    def find_best(self, orders: Iterable[tuple[Order, Numbers]]) -> tuple[int, Cut] | None:
        """The least step that some linear order of the units can be cut for, and the cut.

        Each order comes with the seconds that what crosses behind a position takes of a link,
        ``[links, positions]``.
        """
        least, found = _MOST, None
        for order, crossing in orders:
            if least == 0:
                break
            if found is not None and self.cut_at(least - 1, order, crossing) is None:
                continue
            least, found = self._find_least(order, crossing, least) or (least, found)
        return None if found is None else (least, found)

    def _find_least(self, order: Order, crossing: Numbers, most: int) -> tuple[int, Cut] | None:
        """The least step below ``most`` that an order can be cut for: growing steps first."""
        found, low, high, size = None, -1, -1, 8
        while found is None and high < most - 1:
            low, high, size = high, min(high + size, most - 1), 2 * size
            found = self.cut_at(high, order, crossing)
        while found is not None and high - low > 1:
            middle = (low + high) // 2
            better = self.cut_at(middle, order, crossing)
            low, high, found = (middle, high, found) if better is None else (low, middle, better)
        return None if found is None else (high, found)

    def cut_at(self, step: int, order: Order, crossing: Numbers) -> Cut | None:
        """A cut that keeps the target of a step; None if there is none.

        A dynamic program over how many boards of each kind are used, if that fits their order.
        """
        kinds = sorted({b.device.kind for b in self.boards})
        reach = [self._reach(step, kind, order) for kind in kinds]
        of_kind = [[k for k, b in enumerate(self.boards) if b.device.kind == x] for x in kinds]
        best: dict[tuple[int, ...], tuple[int, tuple[int, ...], tuple[int, ...]]] = {
            (0,) * len(kinds): (0, (), ())
        }
        for counts in itertools.product(*(range(len(own) + 1) for own in of_kind)):
            for k, own in enumerate(of_kind):
                before = (*counts[:k], counts[k] - 1, *counts[k + 1 :])
                if before not in best:
                    continue
                start, ends, boards = best[before]
                board = own[counts[k] - 1]
                if not self.free and board != len(ends):
                    continue
                end = self._end(len(ends), start, reach[k](start), crossing <= self.seconds(step))
                if end > best.get(counts, (-1, (), ()))[0] and end > 0:
                    best[counts] = (end, (*ends, end), (*boards, board))
        found = best.get(tuple(map(len, of_kind)))
        return None if found is None else Cut(found[2], found[1], order)

    def _end(self, position: int, start: int, furthest: int, allowed: NDArray[np.bool_]) -> int:
        """Where the board at a place in the chain ends; -1 if it cannot."""
        left = len(self.boards) - 1 - position
        if left == 0:
            return furthest if furthest == self.demands.units else -1
        end = min(furthest, self.demands.units - left)
        while end > start and not allowed[position, end - 1]:
            end -= 1
        return end if end > start else -1

    def _reach(self, step: int, kind: str, order: Order) -> Reach:
        """How far a board of one kind reaches at one target."""
        board = next(b for b in self.boards if b.device.kind == kind)
        cycles = max(math.floor(self.seconds(step) * board.fabric.clock_hz), 1)
        demand, room = self.demands.at(cycles), board.room(board.limits)

        def too_far(start: int, end: int) -> bool:
            """Whether a board does not hold the units between two positions."""
            run = np.zeros(self.demands.units, dtype=bool)
            run[order[start:end]] = True
            return bool(demand.late[run].any()) or not demand.part(run).fits(room)

        @cache
        def reach(start: int) -> int:
            ends = range(start + 1, len(order) + 1)
            return start + bisect_left(ends, x=True, key=partial(too_far, start))

        return reach
