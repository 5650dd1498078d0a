"""When everything ends: the longest path through the order of lanes and the dependencies.

``end[a] = duration[a] + max(end of the one before on its lane, ends of what it waits for)``.
Two ways to one result. *Wavefront*: numpy takes the turn of every lane at once, step by step; it
costs about 7 µs + 25 ns x lanes per step. *Worklist*: plain Python runs a lane until it blocks and
wakes it when what it misses ends; about 1 µs per turn, better below some 16 lanes.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pipec.schedule.channels import Channel
from pipec.schedule.dependencies import Dependencies, dependencies
from pipec.schedule.lanes import Lanes, assign_lanes
from pipec.schedule.schedule import Schedule
from pipec.schedule.tables import Tables
from pipec.simulate.compact import Compact, blocks, compact
from pipec.simulate.times import Float, Positions


@dataclass(frozen=True, eq=False)
class Prepared:
    """A schedule with what follows from it, found once: to check it, and simulate it at many times.

    Attributes:
        schedule: What will run.
    """

    schedule: Schedule

    @classmethod
    def of(cls, schedule: "Schedule | Prepared") -> "Prepared":
        """Of a schedule; what is prepared stays as it is."""
        return schedule if isinstance(schedule, Prepared) else cls(schedule)

    @cached_property
    def waits(self) -> Dependencies:
        """Who waits for whom."""
        return dependencies(self.schedule)

    @cached_property
    def queue(self) -> Lanes:
        """The lanes."""
        return assign_lanes(self.schedule)

    @cached_property
    def at(self) -> Tables:
        """Where its actions are; of a schedule with other bytes too."""
        return Tables(self.schedule)

    def resize(self, channels: Sequence[Channel]) -> "Prepared":
        """The same with other bytes of its channels."""
        made = Prepared(self.schedule.replace(channels=tuple(channels)))
        made.schedule.memo.update(self.schedule.memo)  # routes have no bytes
        kept = {"waits": self.waits, "queue": self.queue, "at": self.at}
        made.__dict__.update(kept, whole=self.whole, short=self.short)
        return made

    @cached_property
    def whole(self) -> Compact:
        """All actions, lane by lane."""
        return compact(self.schedule, self.waits, self.queue, whole=True)

    @cached_property
    def short(self) -> Compact:
        """Without receives that only pass a value on, and with followers."""
        return compact(self.schedule, self.waits, self.queue, whole=False)


WAVEFRONT_FROM = 16  # lanes that take turns


@dataclass(frozen=True)
class Run:
    """What came out.

    Attributes:
        end: When each action ends; infinity where it never starts. Two more entries: 0 for
            "nothing to wait for", infinity for "what is missing".
        heads: Positions of the actions on which lanes are stuck, empty if all ran.
    """

    end: Float
    heads: tuple[int, ...]


def run(prepared: Prepared, seconds: Callable[[Positions], Float]) -> Run:
    """Simulate; never raises: a deadlock leaves ``heads``."""
    short, found = prepared.short, None
    if not any(seconds(rows).any() for _, rows in blocks(short.dropped)):
        found = _run(short, seconds)
    # a deadlock is run again, so that the cycle of waits shows everything
    found = _run(prepared.whole, seconds) if found is None or found.heads else found
    _join_steps(prepared, found.end, seconds)
    return found


def _join_steps(prepared: Prepared, end: Float, seconds: Callable[[Positions], Float]) -> None:
    """Let joint steps, which nothing waits for, begin when all that they wait for has ended."""
    for steps, awaited in prepared.waits.joint:
        ready, device = end[awaited].max(), prepared.schedule.device[steps]
        for own in np.split(steps, np.flatnonzero(np.diff(device)) + 1):
            end[own] = np.append(ready, seconds(own)).cumsum()[1:]


def _run(view: Compact, seconds: Callable[[Positions], Float]) -> Run:
    n, count = len(view.rows), view.count
    took = np.zeros(2 * n)
    for part, rows in blocks(view.rows):
        took[part] = seconds(rows)
    for part, rows in blocks(view.followers):
        took[view.follows[part]] = seconds(rows)
    lanes = np.count_nonzero(np.diff(view.start))
    engine = wavefront if lanes >= WAVEFRONT_FROM else worklist
    done, stuck = engine(view, took.reshape(2, n))
    del took
    end = np.empty(count + 2)
    end[count:] = 0.0, np.inf
    for part, rows in blocks(view.rows):
        end[rows] = done[part]
    for part, rows in blocks(view.followers):
        end[rows] = done[view.follows[part]]
    for part, rows in blocks(view.dropped):
        end[rows] = end[view.sends[part]]
    return Run(end, tuple(view.rows[stuck].tolist()))


def wavefront(view: Compact, took: Float) -> tuple[Float, list[int]]:
    """The turns of all lanes at once, in numpy.

    Args:
        view: The turns.
        took: Seconds of the turns and of their followers, (2, n).

    Returns:
        When each turn and each follower ends, (2n,); and the turns at which lanes are stuck.
    """
    waits, flat, n = view.waits, took.ravel(), took.shape[1]
    last_wait = waits.shape[1] - 2
    end = np.full(2 * n + 2, np.inf)
    end[2 * n] = 0.0
    lane = np.flatnonzero(np.diff(view.start))
    stop = view.start[1:][lane]
    turns = np.stack([view.start[lane], view.start[lane] + n])
    while len(stop):
        head, found = turns[0], np.empty(turns.shape)
        done, followed = found
        for _ in range((stop - head).min()):  # no lane ends sooner
            ready, seconds = end[waits.take(head, axis=0)], flat[turns]
            np.maximum(ready[:, 0], ready[:, last_wait], out=done)
            for k in range(1, last_wait):
                np.maximum(done, ready[:, k], out=done)
            going = done < np.inf
            np.add(done, seconds[0], out=done)
            np.maximum(done, ready[:, -1], out=followed)
            np.add(followed, seconds[1], out=followed)
            end[turns] = found  # what is not ready stays at infinity
            moved = np.count_nonzero(going)
            if not moved:
                return end[: 2 * n], head.tolist()
            turns += 1 if moved == len(head) else going
        left = head < stop
        turns, stop = turns[:, left], stop[left]
    return end[: 2 * n], []


def worklist(view: Compact, took: Float) -> tuple[Float, list[int]]:
    """One lane after the other until it blocks, in plain Python; as `wavefront`."""
    n = took.shape[1]
    end = [math.inf] * (2 * n) + [0.0, math.inf]
    others, first, before = view.lists
    seconds, seconds_then = took.tolist()
    at, stop = view.start[:-1].tolist(), view.start[1:].tolist()
    free = [0.0] * len(at)
    asleep: dict[int, list[int]] = {}  # lanes, by the turn that they or whose follower they miss
    awake = list(range(len(at)))
    while awake:
        lane = awake.pop()
        time, turn, last = free[lane], at[lane], stop[lane]
        while turn < last:
            for other in others[first[turn] : first[turn + 1]]:
                ready = end[other]
                if ready == math.inf:
                    asleep.setdefault(other % n, []).append(lane)
                    break
                if ready > time:  # noqa: PLR1730, max() takes three times as long
                    time = ready
            else:
                time += seconds[turn]
                end[turn] = time
                then = end[before[turn]]
                end[n + turn] = (then if then > time else time) + seconds_then[turn]  # noqa: FURB136
                if turn in asleep:
                    awake += asleep.pop(turn)
                turn += 1
                continue
            break
        free[lane], at[lane] = time, turn
    return np.array(end[: 2 * n]), [i for i, last in zip(at, stop, strict=True) if i < last]
