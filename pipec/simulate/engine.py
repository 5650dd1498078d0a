"""When everything ends: the longest path through the order of lanes and the dependencies.

``end[a] = duration[a] + max(end of the one before on its lane, ends of what it waits for)``.
Two ways to one result. *Wavefront*: numpy takes the head of every lane at once, step by step; it
costs about 7 µs + 25 ns x lanes per step. *Worklist*: plain Python runs a lane until it blocks and
wakes it when what it misses ends; about 1 µs per action, better below some 64 lanes.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pipec.schedule.dependencies import Dependencies, dependencies
from pipec.schedule.lanes import Lanes, lanes
from pipec.schedule.schedule import Schedule
from pipec.simulate.compact import Compact, compact
from pipec.simulate.times import Float


@dataclass(frozen=True, eq=False)
class Prepared:
    """A schedule with what the engine needs of it; to simulate it at many times.

    Attributes:
        schedule: What will run.
        waits: Who waits for whom.
        queue: The lanes.
    """

    schedule: Schedule
    waits: Dependencies
    queue: Lanes

    @classmethod
    def of(cls, schedule: Schedule) -> "Prepared":
        """Find out who waits for whom, once."""
        return cls(schedule, dependencies(schedule), lanes(schedule))

    @cached_property
    def whole(self) -> Compact:
        """All actions, lane by lane."""
        return compact(self.schedule, self.waits, self.queue, drop=False)

    @cached_property
    def short(self) -> Compact:
        """Without receives that only pass a value on."""
        return compact(self.schedule, self.waits, self.queue, drop=True)


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


def run(prepared: Prepared, seconds: Float) -> Run:
    """Simulate; never raises: a deadlock leaves ``heads``."""
    short = prepared.short
    view = prepared.whole if seconds[short.dropped].any() else short
    engine = wavefront if (np.diff(view.start) > 0).sum() >= WAVEFRONT_FROM else worklist
    done, stuck = engine(view, seconds[view.rows])
    end = np.empty(len(seconds) + 2)
    end[view.rows] = done
    end[view.dropped] = end[view.sends]
    end[len(seconds) :] = 0.0, np.inf
    if len(stuck) and view is short and len(short.dropped):
        return _run_whole(prepared, seconds)  # so that the cycle of waits shows the receives
    return Run(end, tuple(view.rows[stuck].tolist()))


def _run_whole(prepared: Prepared, seconds: Float) -> Run:
    view = prepared.whole
    done, stuck = worklist(view, seconds[view.rows])
    end = np.empty(len(seconds) + 2)
    end[view.rows] = done
    end[len(seconds) :] = 0.0, np.inf
    return Run(end, tuple(view.rows[stuck].tolist()))


def wavefront(view: Compact, seconds: Float) -> tuple[Float, list[int]]:
    """All lane heads at once, in numpy: when each action ends, and the heads that are stuck."""
    count = len(seconds)
    end = np.full(count + 2, np.inf)
    end[count] = 0.0
    at, stop = view.start[:-1].copy(), view.start[1:]
    free = np.zeros(len(at))
    lane = np.flatnonzero(at < stop)
    head, begin, last = at[lane], free[lane], stop[lane]
    while len(lane):
        ready_at = begin
        for column in view.columns:
            ready_at = np.maximum(ready_at, end[column[head]])
        ready = (ready_at < np.inf).nonzero()[0]
        if not len(ready):
            return end[:count], head.tolist()
        done = head[ready]
        finish = ready_at[ready] + seconds[done]
        end[done] = finish
        begin[ready] = finish
        done += 1
        head[ready] = done
        if (done == last[ready]).any():
            going = head < last
            lane, head, begin, last = lane[going], head[going], begin[going], last[going]
    return end[:count], []


def worklist(view: Compact, seconds: Float) -> tuple[Float, list[int]]:
    """One lane after the other until it blocks, in plain Python; returns as `wavefront` does."""
    count = len(seconds)
    end: list[float | None] = [*(None for _ in range(count)), 0.0, None]
    columns = [c.tolist() for c in view.columns]
    awaited = list(zip(*columns, strict=True)) if columns else [()] * count
    took = seconds.tolist()
    at, stop = view.start[:-1].tolist(), view.start[1:].tolist()
    free = [0.0] * len(at)
    asleep: dict[int, list[int]] = {}
    awake = list(range(len(at)))
    while awake:
        lane = awake.pop()
        time, action, last = free[lane], at[lane], stop[lane]
        while action < last:
            for other in awaited[action]:
                ready = end[other]
                if ready is None:
                    asleep.setdefault(other, []).append(lane)
                    break
                time = max(time, ready)
            else:
                time += took[action]
                end[action] = time
                if action in asleep:
                    awake += asleep.pop(action)
                action += 1
                continue
            break
        free[lane], at[lane] = time, action
    result = np.array([np.inf if e is None else e for e in end[:count]])
    return result, [i for i, last in zip(at, stop, strict=True) if i < last]
