"""When everything ends: the longest path through the order of lanes and the dependencies.

``end[a] = duration[a] + max(end of the one before on its lane, ends of what it waits for)``.
Two ways to one result. *Wavefront*: numpy takes the next action of every lane at once, step by
step; it costs about 10 µs + 40 ns x lanes per step. *Worklist*: plain Python runs a lane until it
blocks and wakes it when what it misses ends; about 1 µs per action, better below some 64 lanes.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pipec.schedule.channels import Channel
from pipec.schedule.dependencies import Dependencies, dependencies
from pipec.schedule.lanes import Lanes, assign_lanes, previous_in_lane
from pipec.schedule.schedule import Int32, Schedule
from pipec.schedule.tables import Tables
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

    @cached_property
    def awaited(self) -> Int32:
        """What each action waits for, (1 or more, actions); last the one before it on its lane.

        Numbers are those of `Dependencies.columns`.
        """
        return np.stack([*self.waits.columns, previous_in_lane(self.queue)])

    @cached_property
    def lists(self) -> tuple[list[int], list[int], list[int]]:
        """What actions wait for but for their lane, in Python's numbers, "nothing" left out.

        What all of them wait for, one behind the other; where each one's begins there; and the
        actions, lane by lane.
        """
        waits = self.awaited[:-1].T
        real = waits != len(self.schedule)
        first = [0, *real.sum(axis=1).cumsum().tolist()]
        return waits[real].tolist(), first, self.queue.order.tolist()

    def resize(self, channels: Sequence[Channel]) -> "Prepared":
        """The same with other bytes of its channels."""
        made = Prepared(self.schedule.replace(channels=tuple(channels)))
        made.schedule.memo.update(self.schedule.memo)  # routes have no bytes
        kept = {"waits": self.waits, "queue": self.queue, "at": self.at}
        made.__dict__.update(kept, awaited=self.awaited, lists=self.lists)
        return made


WAVEFRONT_FROM = 64  # lanes


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
    took = seconds(np.arange(len(prepared.schedule)))
    lanes = np.count_nonzero(np.diff(prepared.queue.start))
    found = (wavefront if lanes >= WAVEFRONT_FROM else worklist)(prepared, took)
    _join_steps(prepared, found.end, took)
    return found


def _join_steps(prepared: Prepared, end: Float, took: Float) -> None:
    """Let joint steps, which nothing waits for, begin when all that they wait for has ended."""
    for steps, awaited in prepared.waits.joint:
        ready, device = end[awaited].max(), prepared.schedule.device[steps]
        for own in np.split(steps, np.flatnonzero(np.diff(device)) + 1):
            end[own] = np.append(ready, took[own]).cumsum()[1:]


def wavefront(prepared: Prepared, took: Float) -> Run:
    """The next actions of all lanes at once, in numpy, from the seconds of every action."""
    awaited, queue, n = prepared.awaited, prepared.queue, len(took)
    end = np.full(n + 2, np.inf)
    end[n] = 0.0
    lane = np.flatnonzero(np.diff(queue.start))
    turn, stop = queue.start[lane], queue.start[lane + 1]
    while len(stop):
        for _ in range((stop - turn).min()):  # no lane ends sooner
            heads = queue.order[turn]
            ready = end[awaited.take(heads, axis=1)].max(axis=0)
            end[heads] = ready + took[heads]  # what is not ready stays at infinity
            going = ready < np.inf
            moved = np.count_nonzero(going)
            if not moved:
                return Run(end, tuple(heads.tolist()))
            turn += 1 if moved == len(turn) else going
        left = turn < stop
        turn, stop = turn[left], stop[left]
    return Run(end, ())


def worklist(prepared: Prepared, took: Float) -> Run:
    """One lane after the other until it blocks, in plain Python; as `wavefront`."""
    others, first, order = prepared.lists
    end, seconds = [math.inf] * len(took) + [0.0, math.inf], took.tolist()
    at, stop = prepared.queue.start[:-1].tolist(), prepared.queue.start[1:].tolist()
    free = [0.0] * len(at)
    asleep: dict[int, list[int]] = {}  # lanes, by the action that they miss
    awake = list(range(len(at)))
    while awake:
        lane = awake.pop()
        time, turn, last = free[lane], at[lane], stop[lane]
        while turn < last:
            action = order[turn]
            for other in others[first[action] : first[action + 1]]:
                ready = end[other]
                if ready == math.inf:
                    asleep.setdefault(other, []).append(lane)
                    break
                if ready > time:  # noqa: PLR1730, max() takes three times as long
                    time = ready
            else:
                time += seconds[action]
                end[action] = time
                if action in asleep:
                    awake += asleep.pop(action)
                turn += 1
                continue
            break
        free[lane], at[lane] = time, turn
    stuck = [order[i] for i, last in zip(at, stop, strict=True) if i < last]
    return Run(np.array(end), tuple(stuck))
