"""Pass ``simulate``: the schedule proved free of deadlock, timed, and its memory followed."""

from dataclasses import dataclass
from typing import ClassVar

from pipec.compiler.pass_base import Pass
from pipec.compiler.reside import check_memory
from pipec.compiler.timeline import plan_timeline
from pipec.plan.model import Fact, Plan


@dataclass(frozen=True)
class Simulate(Pass):
    """Plays the schedule with the backend's stage times and the cluster's links.

    1. A forward takes the stage's interval, a backward what the backend's timing says.
    2. A transfer takes its channel's bytes over the link of the two devices.
    3. A deadlock at the channels' depths is an error that shows the shortest cycle of waits.
    4. So is a device that holds more than the limit of a memory pass before it, or
       more than it has in a run without a flush that goes on from round to round.
    """

    name: ClassVar[str] = "simulate"
    requires: ClassVar[frozenset[Fact]] = frozenset({Fact.SCHEDULE, Fact.TIMING})
    provides: ClassVar[frozenset[Fact]] = frozenset({Fact.TIMELINE})

    def run(self, plan: Plan) -> Plan:
        """The plan with its timeline.

        Raises:
            PipecError: The schedule comes to a standstill, or a device holds too much.
        """
        timeline = plan_timeline(plan, plan.order)
        check_memory(plan, timeline)
        return plan.replace(timeline=timeline)
