"""A plan's schedule without its drains, for runs that go on from round to round."""

import numpy as np

from pipec.compiler.complete import completed
from pipec.errors import PlanError
from pipec.plan.model import Plan
from pipec.schedule.endless import window
from pipec.schedule.registry import generate
from pipec.schedule.schedule import Schedule


def endless(plan: Plan) -> Schedule:
    """One round of the schedule that a plan's own one is the beginning and the end of.

    A schedule with a flush is drained by its own definition and stays as it is.

    Args:
        plan: A plan with a schedule.

    Raises:
        PlanError: The schedule is not what its generator gives, so nothing can make it longer.
        ScheduleError: A round is no whole number of updates.
    """
    own = plan.schedule
    assert own is not None
    if own.rule.flush or not own.training:
        return own

    def make(microbatches: int) -> Schedule:
        """As the pass ``schedule`` does."""
        return completed(generate(own.name, own.stages, microbatches, **own.options), plan)

    again, mine = make(own.microbatches).columns(), own.columns()
    if not all(np.array_equal(again[name], column) for name, column in mine.items()):
        raise PlanError(
            "the schedule is not what its generator makes, so it cannot go on without draining",
            where=f"schedule {own.name}",
            hint="drain the pipeline after every round: drain=True, --drain",
        )
    return window(make, own.microbatches)
