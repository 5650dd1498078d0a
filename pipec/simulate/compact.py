"""The engine's view of a schedule: lane by lane, with as little as possible left to wait for.

*Implied* waits, for an action that stands earlier on the same lane, go. *Passing* receives go:
a receive that takes no time of its own ends when its send ends. *Followers* lose their turns: a
send that waits for its producer alone is timed in the producer's turn. The last two need a lane
of nothing else, whose actions wait for actions of one other lane, in that lane's order. Of a 1F1B
schedule two turns in three go, and three lanes in five.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from pipec.schedule.dependencies import Dependencies
from pipec.schedule.lanes import Lanes
from pipec.schedule.schedule import Int32, Int64, Schedule

Bool = npt.NDArray[np.bool_]
BLOCK = 1 << 15


@dataclass(frozen=True, eq=False)
class Compact:
    """The turns that lanes take, numbered lane by lane.

    Attributes:
        rows: Position in the schedule of each of the n actions that take a turn.
        waits: What each turn waits for, (n, 2 or more) numbers: i < n is turn i, n + i what
            follows it, 2n nothing, 2n + 1 something that is missing. The last but one column is
            the turn before on the lane; the last one what the follower waits for on its lane.
        start: Where each lane begins, one more entry than lanes.
        followers: Positions of the followers.
        follows: Number of each, n more than that of its turn.
        dropped: Positions of the receives that were left out.
        sends: Positions of their sends.
    """

    rows: Int32
    waits: Int32
    start: Int64
    followers: Int32
    follows: Int32
    dropped: Int32
    sends: Int32

    @property
    def count(self) -> int:
        """Number of actions of the schedule."""
        return len(self.rows) + len(self.followers) + len(self.dropped)

    @cached_property
    def lists(self) -> tuple[list[int], list[int], list[int]]:
        """What turns wait for, nothing left out but "nothing", in Python's numbers.

        What all turns wait for, one behind the other, but for followers; where each turn's begin
        there; and what each follower waits for on its lane.
        """
        waits, nothing = self.waits[:, :-2], 2 * len(self.rows)
        real = waits != nothing
        first = [0, *real.sum(axis=1).cumsum().tolist()]
        return waits[real].tolist(), first, self.waits[:, -1].tolist()


def blocks(positions: Int32) -> Iterator[tuple[slice, Int32]]:
    """Positions, as many at a time as stay in the caches; numpy makes wide copies of them."""
    for begin in range(0, len(positions), BLOCK):
        part = slice(begin, min(begin + BLOCK, len(positions)))
        yield part, positions[part]


def compact(schedule: Schedule, waits: Dependencies, queue: Lanes, *, whole: bool) -> Compact:
    """Number turns lane by lane."""
    places = _Places(schedule, waits, queue)
    passing, following = np.zeros((2, len(queue.names)), dtype=bool)
    if not whole and places.columns:
        dependent = places.find_dependent()
        passing = dependent & np.array([lane.receives for lane in queue.names])
        following = places.followers(dependent, passing)
    return places.renumber(passing, following)


class _Places:
    """A schedule in the order of its lanes; a *place* is an index in that order."""

    def __init__(self, schedule: Schedule, waits: Dependencies, queue: Lanes) -> None:
        self.queue, self.start = queue, queue.start
        self.count, self.size = len(schedule), np.diff(queue.start)
        self.lane = np.repeat(np.arange(len(self.size), dtype=queue.of.dtype), self.size)
        place = np.empty(self.count + 2, dtype=np.int32)
        place[self.count :] = self.count, self.count + 1
        self.columns: list[Int32] = []
        for part, rows in blocks(queue.order):
            at = rows.astype(np.int64)  # indexes faster
            place[at] = np.arange(part.start, part.stop, dtype=np.int32)
            for column in waits.columns:
                self._pack(part, self._find_needed(part, at, column[at]))
        for column in self.columns:
            for part, awaited in blocks(column):
                column[part] = place[awaited]

    def _find_needed(self, part: slice, at: Int64, awaited: Int32) -> Int32:
        """What actions ``at`` wait for, less what is implied."""
        same = self.queue.of.take(awaited, mode="clip") == self.lane[part]
        awaited[same & (awaited < at)] = self.count
        return awaited

    def _pack(self, part: slice, awaited: Int32) -> None:
        """Put waits into the first column that is free there."""
        for column in self.columns:
            waits = column[part]
            free = (waits == self.count) & (awaited != self.count)
            waits[free] = awaited[free]
            awaited[free] = self.count
        if (awaited != self.count).any():
            self.columns.append(np.full(self.count, self.count, dtype=np.int32))
            self.columns[-1][part] = awaited

    def find_dependent(self) -> Bool:
        """Lanes whose actions wait for actions of one other lane each, in that lane's order."""
        first, *others = self.columns
        good = first < self.count
        for column in others:
            good &= column == self.count
        leader = self.lane.take(first, mode="clip")
        onward = (leader[1:] == leader[:-1]) & (first[1:] > first[:-1])
        onward |= self.lane[1:] != self.lane[:-1]
        good[1:] &= onward
        return self._lanes_where(good)

    def _lanes_where(self, holds: Bool) -> Bool:
        """Lanes on which it holds for every action."""
        found = np.zeros(len(self.size), dtype=bool)
        taken = np.flatnonzero(self.size)
        found[taken] = np.logical_and.reduceat(holds, self.start[taken])
        return found

    def followers(self, dependent: Bool, passing: Bool) -> Bool:
        """Of the other lanes that follow one, those whose leaders take turns and lead only them."""
        first = self.columns[0]
        own = self._on(dependent & ~passing)
        own = own[~dependent[self.lane[first[own]]]]
        leads = np.full(self.count, -1, dtype=self.lane.dtype)
        leads[first[own[::-1]]] = self.lane[own[::-1]]  # of several, the last to be written stays
        only = np.zeros(self.count, dtype=bool)
        only[own] = leads[first[own]] == self.lane[own]
        return self._lanes_where(only)

    def renumber(self, passing: Bool, following: Bool) -> Compact:
        """With the receives of some lanes left out, and the actions of others as followers."""
        turning = ~(passing | following)
        turns, start = self._on(turning), np.append(0, np.cumsum(np.where(turning, self.size, 0)))
        n = len(turns)
        number = np.empty(self.count + 2, dtype=np.int32)
        number[turns] = np.arange(n, dtype=np.int32)
        number[self.count :] = 2 * n, 2 * n + 1
        hosts, hosted = self._find_leaders(following)
        number[hosted] = follows = number[hosts] + np.int32(n)
        sends, dropped = self._find_leaders(passing)
        number[dropped] = number[sends]
        waits = np.full((n, len(self.columns) + 2), 2 * n, dtype=np.int32)
        for k, column in enumerate(self.columns):
            waits[:, k] = number[column[turns]]
        waits[1:, -2] = np.arange(n - 1, dtype=np.int32)
        waits[start[:-1][turning & (self.size > 0)], -2] = 2 * n
        onward = self.lane[hosted[1:]] == self.lane[hosted[:-1]]
        waits[follows[1:][onward] - n, -1] = follows[:-1][onward]
        order = self.queue.order
        return Compact(
            order[turns], waits, start, order[hosted], follows, order[dropped], order[sends]
        )

    def _find_leaders(self, lanes: Bool) -> tuple[Int32, Int64]:
        """What the actions on some following lanes wait for, and where these are."""
        places = self._on(lanes)
        first = self.columns[0] if self.columns else np.empty(0, np.int32)
        return first[places], places

    def _on(self, lanes: Bool) -> Int64:
        """The places on some lanes."""
        return np.flatnonzero(np.repeat(lanes, self.size))
