"""Pass ``time-stages``: what the backend predicts for every stage on its device."""

from dataclasses import dataclass
from typing import ClassVar

from pipec.compiler.backend import load_backend
from pipec.compiler.pass_base import Pass
from pipec.compiler.problem import check_together
from pipec.plan.model import Fact, Plan


@dataclass(frozen=True)
class TimeStages(Pass):
    """Lets the backend check and time every stage: interval, latency, bottleneck, memory."""

    name: ClassVar[str] = "time-stages"
    requires: ClassVar[frozenset[Fact]] = frozenset({Fact.COMM})
    provides: ClassVar[frozenset[Fact]] = frozenset({Fact.TIMING})

    def run(self, plan: Plan) -> Plan:
        backend = load_backend(plan.target)
        check_together(plan)
        backend.check(plan)
        return plan.replace(timing=backend.stage_seconds(plan))
