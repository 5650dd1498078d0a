"""The engine's view of a schedule: lane by lane, with as little as possible left to wait for.

*Implied* waits, for an action that stands earlier on the same lane, go. *Passing* receives go:
a receive that takes no time of its own ends when its send ends. *Followers* lose their turns: a
send that waits for its producer alone is timed in the producer's turn. The last two need a lane
of nothing else, whose actions wait for actions of one other lane, in that lane's order. Of a 1F1B
schedule two turns in three go, and three lanes in five.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipec.schedule.action import ActionKind
from pipec.schedule.channels import ChannelKind
from pipec.schedule.dependencies import Dependencies
from pipec.schedule.lanes import Lanes
from pipec.schedule.schedule import Int32, Int64, Schedule

_RECEIVES = np.isin(
    np.arange(len(ActionKind)), [c.receive for c in ChannelKind if c is not ChannelKind.H]
)
Bool = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Compact:
    """The turns that lanes take, numbered lane by lane.

    Attributes:
        rows: Position in the schedule of each of the n actions that take a turn.
        waits: What each turn waits for, (n, 2 or more) numbers: i < n is turn i, n + i what
            follows it, 2n nothing, 2n + 1 something that is missing. The last but one column is
            the turn before on the lane; the last one what the follower waits for on its lane.
        start: Where each lane begins, one more entry than lanes.
        hosts: Turns that have a follower.
        followers: Positions of their followers.
        dropped: Positions of the receives that were left out.
        sends: Positions of their sends.
    """

    rows: Int32
    waits: Int32
    start: Int64
    hosts: Int64
    followers: Int32
    dropped: Int32
    sends: Int32


def compact(schedule: Schedule, waits: Dependencies, queue: Lanes, *, whole: bool) -> Compact:
    """Number turns lane by lane.

    Args:
        schedule: Whose actions.
        waits: Who waits for whom.
        queue: The lanes.
        whole: Whether every action is to take a turn of its own.
    """
    places = _Places(schedule, waits, queue)
    passing, following = np.zeros((2, len(queue.names)), dtype=bool)
    if not whole and places.columns:
        passing, following = places.led()
    return places.numbered(passing, following)


class _Places:
    """A schedule in the order of its lanes; a *place* is an index in that order."""

    def __init__(self, schedule: Schedule, waits: Dependencies, queue: Lanes) -> None:
        self.order, self.start = queue.order, queue.start
        self.count, self.size = len(schedule), np.diff(queue.start)
        self.receives = _RECEIVES[schedule.kind[queue.order]]
        self.lane = np.repeat(np.arange(len(self.size), dtype=queue.of.dtype), self.size)
        self.index = np.arange(self.count, dtype=np.int32)
        place = np.empty(self.count + 2, dtype=np.int32)
        place[queue.order] = self.index
        place[self.count :] = self.count, self.count + 1
        first = np.repeat(self.start[:-1].astype(np.int32), self.size)
        self.columns: list[Int32] = []
        for column in waits.columns:
            awaited = place[column[queue.order]]
            awaited[(awaited >= first) & (awaited < self.index)] = self.count
            self._pack(awaited)

    def _pack(self, awaited: Int32) -> None:
        """Put waits into the first column that is free there."""
        for column in self.columns:
            free = (column == self.count) & (awaited != self.count)
            column[free] = awaited[free]
            awaited[free] = self.count
        if (awaited != self.count).any():
            self.columns.append(awaited)

    def led(self) -> tuple[Bool, Bool]:
        """Lanes of passing receives, and lanes of followers."""
        first, *others = self.columns
        good = first < self.count
        for column in others:
            good &= column == self.count
        leader = self.lane[np.minimum(first, self.count - 1)]
        onward = (leader[1:] == leader[:-1]) & (first[1:] > first[:-1])
        onward |= self.lane[1:] != self.lane[:-1]
        good[1:] &= onward
        led = self._throughout(good)
        passing = led & self._throughout(self.receives)
        return passing, self._apart(led & ~self._throughout(self.receives, some=True))

    def _throughout(self, holds: Bool, *, some: bool = False) -> Bool:
        """Lanes on which it holds for every action (or for some)."""
        found = np.zeros(len(self.size), dtype=bool)
        taken = np.flatnonzero(self.size)
        reduce = np.logical_or if some else np.logical_and
        found[taken] = reduce.reduceat(holds, self.start[taken])
        return found

    def _apart(self, led: Bool) -> Bool:
        """Of lanes that are led those whose leaders take turns and lead no other of them."""
        first = self.columns[0]
        own = led[self.lane]
        own[own] = ~led[self.lane[first[own]]]
        mine = np.flatnonzero(own)[::-1]
        leads = np.empty(self.count, dtype=self.lane.dtype)
        leads[first[mine]] = self.lane[mine]  # of several the last one that is written stays
        own[mine] = leads[first[mine]] == self.lane[mine]
        return led & self._throughout(own)

    def numbered(self, passing: Bool, following: Bool) -> Compact:
        """With the receives of some lanes left out, and the actions of others as followers."""
        turns = np.flatnonzero(~(passing | following)[self.lane])
        n = len(turns)
        number = np.empty(self.count + 2, dtype=np.int32)
        number[turns] = self.index[:n]
        number[self.count :] = 2 * n, 2 * n + 1
        after = np.flatnonzero(following[self.lane])
        hosts = number[self.columns[0][after]] if len(after) else after
        number[after] = hosts + n
        left_out = np.flatnonzero(passing[self.lane])
        sends = self.columns[0][left_out] if len(left_out) else left_out
        number[left_out] = number[sends]
        waits = np.full((n, len(self.columns) + 2), 2 * n, dtype=np.int32)
        for k, column in enumerate(self.columns):
            waits[:, k] = number[column[turns]]
        lane = self.lane[turns]
        waits[1:, -2] = np.where(lane[1:] == lane[:-1], self.index[: n - 1], 2 * n)
        joined = np.flatnonzero(self.lane[after[1:]] == self.lane[after[:-1]]) + 1
        waits[hosts[joined], -1] = hosts[joined - 1] + n
        size = np.where(passing | following, 0, self.size)
        return Compact(
            self.order[turns],
            waits,
            np.concatenate([[0], np.cumsum(size)]),
            hosts,
            self.order[after],
            self.order[left_out],
            self.order[sends],
        )
