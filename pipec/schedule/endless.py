"""One round of a schedule that never ends: what runs from one batch to the next, undrained.

```text
six microbatches       0: F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 B5    1: F0 B0 F1 B1 F2 B2 ... F5 B5
two of them, a round   0: F2 B1 F3 B2, then receives B3          1: F2 B2 F3 B3
```

A window is all that needs no forward of a later round, less what the windows before it hold; what
another device has sent by then is received at its end, so that no message is under way between two
rounds. Once versions and microbatches lag as far as they ever will, windows differ in their numbers
alone, by the microbatches and updates of a round. So one of them stands for all: in the first
rounds some of what it does is not there yet, and while the pipeline drains some of it is no more.
"""

from collections.abc import Callable
from dataclasses import replace
from math import lcm

import numpy as np

from pipec.errors import ScheduleError
from pipec.schedule.acknowledgements import NONE, other_ends
from pipec.schedule.action import COMPUTE, OF_UPDATES
from pipec.schedule.channels import ChannelKind
from pipec.schedule.dependencies import dependencies
from pipec.schedule.schedule import Int64, Schedule

VERSIONED = (*COMPUTE, *OF_UPDATES)
"""Kinds of actions whose version is one of their stage's."""
_MOST = 64
"""Rounds after which a window must be like the one before: no pipeline is longer."""


def window(make: Callable[[int], Schedule], microbatches: int) -> Schedule:
    """One round of an endless schedule.

    ``make`` gives the complete schedule of a number of microbatches.

    Returns:
        The window; its new microbatches are numbered from `Schedule.first` on.

    Raises:
        ScheduleError: A round is no whole number of updates, or rounds never become alike.
    """
    once = make(microbatches)
    check_round(once)
    for lag in range(1, _MOST):
        whole = make((2 * lag + 1) * microbatches)  # its own end is as long as its beginning
        first = (lag - 1) * microbatches
        ends = [_find_reached(whole, first + k * microbatches) for k in range(3)]
        before = _select_between(whole, ends[0], ends[1], first, microbatches)
        found = _select_between(whole, ends[1], ends[2], first + microbatches, microbatches)
        if len(found) and _is_repeat(before, found, updates_per_round(found)):
            return found
    raise ScheduleError("rounds of the schedule never become alike", where=once.name)


def check_round(schedule: Schedule) -> None:
    """Refuse a round behind which a run cannot go on undrained.

    Raises:
        ScheduleError: It is no whole number of updates.
    """
    size = schedule.rule.update_every * lcm(*map(len, schedule.placement.backward))
    if not size or schedule.microbatches % size:
        raise ScheduleError(
            "without draining, a round must be a whole number of updates",
            where=f"schedule {schedule.name}",
            got=f"{schedule.microbatches} microbatches",
            want=f"a multiple of {size}" if size else "several microbatches per update",
            hint="drain the pipeline after every round: drain=True, --drain",
        )


def updates_per_round(schedule: Schedule) -> Int64:
    """Updates that every stage makes of a window's new microbatches."""
    found: Int64 = (schedule.microbatches - schedule.first) // (
        schedule.replicas * schedule.rule.update_every
    )
    return found


def _find_reached(schedule: Schedule, end: int) -> np.ndarray:
    """By action whether it can be done without any forward from microbatch ``end`` on.

    Sends wait for no slot: a row is done in its order, and what it sends is under way beside it.
    """
    roomy = tuple(replace(c, depth=None) for c in schedule.channels)
    awaited = np.array(dependencies(schedule.replace(channels=roomy)).columns).T.tolist()
    done = [False] * len(schedule) + [True, False]  # nothing to wait for; a missing action
    computes = np.isin(schedule.kind, COMPUTE)  # a B that reads nothing waits for no forward
    late = (computes & (schedule.microbatch >= end)).tolist()
    at = schedule.device_ptr[:-1].tolist()
    moved = True
    while moved:
        moved = False
        for device, stop in enumerate(schedule.device_ptr[1:].tolist()):
            i = at[device]
            while i < stop and not late[i] and all(done[j] for j in awaited[i]):
                done[i] = moved = True
                i += 1
            at[device] = i
    return np.array(done[:-2])


def _select_between(
    schedule: Schedule, before: np.ndarray, reached: np.ndarray, first: int, microbatches: int
) -> Schedule:
    """What is reached and was not before; behind it the receives of what has been sent by then."""
    other = other_ends(schedule)
    receives = np.isin(schedule.kind, [c.receive for c in ChannelKind])
    receives &= (other != NONE) & (schedule.device[other] != schedule.device)
    early = [receives & done[other] & ~done for done in (before, reached)]
    inside = reached & ~before & ~early[0]
    late = early[1] & ~early[0]
    rows = [
        np.concatenate([begin + np.flatnonzero(part[begin:end]) for part in (inside, late)])
        for begin, end in zip(schedule.device_ptr[:-1], schedule.device_ptr[1:], strict=True)
    ]
    order = np.concatenate(rows)
    return schedule.replace(
        microbatches=first + microbatches,
        first=first,
        device_ptr=np.cumsum([0, *map(len, rows)]),
        **{name: column[order] for name, column in schedule.columns().items()},
    )


def _is_repeat(before: Schedule, found: Schedule, updates: Int64) -> bool:
    """Whether a window is the one before it, a round later."""
    if not np.array_equal(before.device_ptr, found.device_ptr):
        return False
    moved = before.columns()
    microbatches = found.first - before.first
    moved["microbatch"] = before.microbatch + microbatches * (before.microbatch >= 0)
    moved["version"] = before.version + updates[before.stage] * np.isin(before.kind, VERSIONED)
    return all(np.array_equal(moved[name], c) for name, c in found.columns().items())
