"""A plan's schedule without its drains, for runs that go on from round to round."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from pipec.compiler.complete import complete
from pipec.compiler.timeline import plan_timeline
from pipec.errors import PlanError, ScheduleError
from pipec.plan.model import Plan
from pipec.schedule.endless import check_round, window
from pipec.schedule.registry import generate
from pipec.schedule.schedule import Schedule


@dataclass(frozen=True)
class Round:
    """What one more round takes of a run that is not drained.

    Attributes:
        seconds: Between the ends of two rounds, once the pipeline is full.
        bubble: The share of device time then without compute or a step.
        peak_bytes: Most bytes held, per device.
    """

    seconds: float
    bubble: float
    peak_bytes: tuple[float, ...]


def endless(plan: Plan) -> Schedule:
    """One round of the schedule that a plan's own one is the beginning and the end of.

    A schedule with a flush is drained by its own definition and stays as it is.

    Raises:
        PlanError: The schedule is not what its generator gives, so nothing can make it longer.
        ScheduleError: A round is no whole number of updates.
    """
    own = plan.order
    return own if drains(own) else window(_lengthen(plan, own), own.microbatches)


def round_of(plan: Plan) -> Round:
    """A round of a run that goes on, as the predictor times it: the mean of the later half.

    Args:
        plan: Timed, with a schedule without a flush.

    Raises:
        PipecError: As `endless`.
    """
    own = plan.order
    check_round(own)
    make, half = _lengthen(plan, own), _rounds_to_fill(own)
    begun, whole = (plan_timeline(plan, make(n * own.microbatches)) for n in (half, 2 * half))
    seconds = whole.seconds - begun.seconds
    busy = float(whole.busy.sum() - begun.busy.sum())
    bubble = 1 - busy / (seconds * own.devices) if seconds else 0.0
    return Round(seconds / half, bubble, tuple(whole.peak_bytes))


def fill(schedule: Schedule) -> Schedule:
    """As many rounds as fill the pipeline of a run that goes on; what always drains as it is."""
    if drains(schedule):
        return schedule
    with suppress(ScheduleError):
        check_round(schedule)
        count = _rounds_to_fill(schedule) * schedule.microbatches
        return generate(schedule.name, schedule.stages, count, **schedule.options)
    return schedule


def _rounds_to_fill(schedule: Schedule) -> int:
    """Rounds of a schedule without a flush behind which its pipeline has long been full."""
    return 1 + 4 * schedule.stages // schedule.microbatches


def drains(schedule: Schedule) -> bool:
    """Whether every round of a schedule ends with an empty pipeline, whatever comes behind it."""
    return schedule.rule.flush or not schedule.training


def _lengthen(plan: Plan, own: Schedule) -> Callable[[int], Schedule]:
    """The plan's schedule with another number of microbatches, as the pass ``schedule`` does."""

    def make(microbatches: int) -> Schedule:
        return complete(generate(own.name, own.stages, microbatches, **own.options), plan)

    again, columns = make(own.microbatches).columns(), own.columns()
    if not all(np.array_equal(again[name], column) for name, column in columns.items()):
        raise PlanError(
            "the schedule is not what its generator makes, so it cannot go on without draining",
            where=f"schedule {own.name}",
            hint="drain the pipeline after every round: drain=True, --drain",
        )
    return make
