"""Simulate: a schedule and its times in, a timeline out."""

from collections.abc import Mapping
from typing import Any

from pipec.schedule.schedule import Schedule
from pipec.simulate.deadlock import check_done
from pipec.simulate.engine import Prepared, run
from pipec.simulate.memory import Memory
from pipec.simulate.timeline import Timeline
from pipec.simulate.times import Times


def simulate(schedule: Schedule | Prepared, times: Times, memory: Memory | None = None) -> Timeline:
    """When everything starts and ends; `Prepared.of` a schedule to simulate it many times.

    An action starts when its lane is free and everything that it waits for has ended.

    Raises:
        ScheduleError: The schedule deadlocks; the shortest cycle of waits is shown.

    Example:
        >>> from pipec.schedule.registry import generate
        >>> times = Times.uniform(4, F=1, B=2)
        >>> simulate(generate("1f1b", stages=4, microbatches=8), times).seconds
        33.0
    """
    prepared = Prepared.of(schedule)
    result = run(prepared, times.durations(prepared.schedule))
    check_done(prepared, result)
    return Timeline(prepared, times, memory or Memory(), result.end[:-2])


def from_json(schedule: Schedule, data: Mapping[str, Any]) -> Timeline:
    """The timeline that `Timeline.to_json` describes: the same schedule simulated again."""
    times = Times.from_json(data["times"])
    return simulate(schedule, times, Memory.from_json(data["memory"]))
