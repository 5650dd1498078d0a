"""A candidate made into a plan, by the passes that ``pipec compile`` runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pipec.compiler.driver import make_plan
from pipec.compiler.pass_base import Pass
from pipec.compiler.pass_manager import Observer, parse_pipeline
from pipec.cost.model import Roofline
from pipec.cost.table import CostTable
from pipec.explore.candidate import Candidate
from pipec.explore.rebatch import Rebatched
from pipec.explore.workload import Workload
from pipec.plan.model import Plan
from pipec.schedule.registry import with_options


def passes_of(c: Candidate) -> list[Pass]:
    """The pass pipeline that lays a model out as a candidate says."""
    copies = {"replicas": c.replicas, "adjacent": c.adjacent} if c.replicas > 1 else {}
    name = with_options(c.schedule, **copies)
    count = f"microbatches={c.microbatches * c.replicas}"
    order = f"generator={name} {count}"
    split = f"split-layer{{node={c.split} share={c.share}}}," if c.split else ""
    fit = f"insert-offload{{recompute=true {order}}}," if c.fitted else ""
    if not c.trains:
        return parse_pipeline(
            f"simplify,annotate-cost,{split}partition{{stages={c.stages} schedule={name} {count}}},"
            f"insert-comm,time-stages,schedule{{{order}}},simulate"
        )
    again = "all" if c.recompute else "views"
    held = str(not (c.fitted or c.recompute)).lower()
    return parse_pipeline(
        f"simplify,annotate-cost,{split}"
        f"partition{{stages={c.stages} schedule={name} {count} activations={held}}},"
        f"insert-comm,differentiate{{recompute={again}}},time-stages,"
        f"{fit}schedule{{{order}}},simulate"
    )


@dataclass(frozen=True)
class Maker:
    """Makes plans of candidates.

    Attributes:
        model: The model at any microbatch.
        workload: Its costs and the cluster.
        target: Name of the backend.
        options: What passes and the backend must remember.
    """

    model: Rebatched
    workload: Workload
    target: str = "torch"
    options: Mapping[str, object] = field(default_factory=dict)

    def make(
        self,
        candidate: Candidate,
        observe: Observer | None = None,
        passes: Sequence[Pass] | None = None,
    ) -> Plan:
        """The plan of a candidate, simulated; by other passes than its own if they are given.

        Raises:
            PipecError: The model cannot be traced at its microbatch, or a pass refuses it.
        """
        return make_plan(
            self.model.at(candidate.microbatch),
            candidate.on(self.workload.cluster),
            self.target,
            passes=passes_of(candidate) if passes is None else passes,
            costs=self._costs(candidate.microbatch),
            options=self.options,
            observe=observe,
        )

    def _costs(self, samples: int) -> CostTable | None:
        """What was measured, scaled to the microbatch; None where a model will say."""
        table = self.workload.costs
        if samples == self.workload.traced_batch:
            return table
        modelled = all(m in (Roofline.name, "fpga") for m in table.method.values())
        return None if modelled else self.workload.scaled(samples / self.workload.traced_batch)
