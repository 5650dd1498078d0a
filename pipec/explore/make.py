"""A candidate made into a plan, by the passes that ``pipec compile`` runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pipec.cluster.cluster import Cluster
from pipec.compiler.backend import load_backend
from pipec.compiler.capabilities import model_of
from pipec.compiler.pass_base import Pass
from pipec.compiler.pass_manager import Observer, parse_pipeline, run_passes
from pipec.cost.model import Roofline
from pipec.cost.table import CostTable, scale_costs
from pipec.errors import PipecError, PlanError
from pipec.explore.candidate import Candidate
from pipec.explore.rebatch import Rebatched
from pipec.graph.ir import OutputKind
from pipec.plan.model import Plan
from pipec.schedule.registry import with_options


def passes_of(c: Candidate) -> list[Pass]:
    """The pass pipeline that lays a model out as a candidate says, its costs known."""
    copies = {"replicas": c.replicas, "adjacent": c.adjacent} if c.replicas > 1 else {}
    name = with_options(c.schedule, **copies)
    count = f"microbatches={c.microbatches * c.replicas}"
    order = f"generator={name} {count}"
    split = f"split-layer{{node={c.split} share={c.share}}}," if c.split else ""
    held = str(not c.eased).lower()
    cut = f"{split}partition{{stages={c.stages} schedule={name} {count} activations={held}}}"
    end = f"schedule{{{order}}},simulate"
    if not c.trains:
        return parse_pipeline(f"{cut},insert-comm,time-stages,{end}")
    again = "all" if c.recompute else "views"
    fit = f"insert-offload{{recompute=true {order}}}," if c.fitted else ""
    return parse_pipeline(
        f"{cut},insert-comm,differentiate{{recompute={again}}},time-stages,{fit}{end}"
    )


@dataclass(frozen=True)
class Maker:
    """Makes plans of candidates.

    Attributes:
        model: The model at any microbatch.
        cluster: The devices, as they are listed.
        target: Name of the backend.
        costs: What was measured at the traced batch; a model says if nothing was.
        options: What passes and the backend must remember.
    """

    model: Rebatched
    cluster: Cluster
    target: str = "torch"
    costs: CostTable | None = None
    options: Mapping[str, object] = field(default_factory=dict)
    _known: dict[int, Plan | PipecError] = field(default_factory=dict, compare=False)

    @property
    def traced_batch(self) -> int:
        """Samples of the inputs that the model was traced with.

        Raises:
            PlanError: No input has a dimension.
        """
        if rows := self.model.graph.rows:
            return rows
        raise PlanError("no input has a batch dimension", where=self.model.graph.source.location)

    @property
    def trains(self) -> bool:
        """Whether the model has a loss."""
        return bool(self.model.graph.outputs_of(OutputKind.LOSS))

    def cost_model(self, samples: int) -> Plan:
        """The model at a microbatch of ``samples`` with its costs, not cut yet.

        Raises:
            PipecError: It cannot be traced with that many.
        """
        if samples not in self._known:
            try:
                self._known[samples] = self._cost_model(samples)
            except PipecError as error:  # it is refused again
                self._known[samples] = error
        found = self._known[samples]
        if isinstance(found, PipecError):
            raise found
        return found

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
        base = self.cost_model(candidate.microbatch).replace(cluster=candidate.on(self.cluster))
        return run_passes(passes_of(candidate) if passes is None else passes, base, observe)

    def _cost_model(self, samples: int) -> Plan:
        graph, table = self.model.trace_at(samples), self.costs
        model = model_of(load_backend(self.target), self.cluster)
        if table is not None and samples != self.traced_batch:
            measured = any(m not in (model.name, Roofline.name) for m in table.method.values())
            table = scale_costs(table, samples / self.traced_batch) if measured else None
        plan = Plan(graph, self.cluster, self.target, costs=table, options=dict(self.options))
        return run_passes(parse_pipeline("simplify,annotate-cost"), plan)
