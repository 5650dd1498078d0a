"""Pass ``annotate-cost``: what every node computes and moves, and its seconds per device kind."""

from dataclasses import dataclass
from typing import ClassVar

from pipec.compiler.costing import make_cost_table
from pipec.compiler.pass_base import Pass
from pipec.plan.model import Fact, Plan


@dataclass(frozen=True)
class AnnotateCost(Pass):
    """Counts FLOPs and bytes of every node and times it on every kind of device of the cluster.

    1. Counts come from shapes alone.
    2. Seconds come from the backend's own model where it has one (FPGA cycles), else from the
       roofline.
    3. Costs that the plan has already (a measured file) are kept.
    """

    name: ClassVar[str] = "annotate-cost"
    provides: ClassVar[frozenset[Fact]] = frozenset({Fact.COST})

    def run(self, plan: Plan) -> Plan:
        if plan.costs is not None:
            return plan
        return plan.replace(costs=make_cost_table(plan, plan.graph))
