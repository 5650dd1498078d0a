"""Pass ``annotate-cost``: what every node computes and moves, and its seconds per device kind."""

from dataclasses import dataclass
from typing import ClassVar

from pipec.compiler.backend import load_backend
from pipec.compiler.capabilities import model_of
from pipec.compiler.pass_base import Pass
from pipec.cost.count import count
from pipec.cost.table import CostTable
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
        """The plan with a cost per node and device type."""
        if plan.costs is not None:
            return plan
        model = model_of(load_backend(plan.target), plan.cluster)
        counted = count(plan.graph)
        kinds = {d.kind: d for d in plan.cluster.devices}
        seconds = {
            kind: {n.name: model.seconds(n, counted[n.name], device) for n in plan.graph.calls}
            for kind, device in kinds.items()
        }
        return plan.replace(costs=CostTable(counted, seconds, dict.fromkeys(kinds, model.name)))
