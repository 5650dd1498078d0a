"""Pass ``partition``: the cut whose slowest stage is fastest."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from pipec.compiler.pass_base import Pass
from pipec.compiler.problem import placement_problem
from pipec.cost.table import CostTable
from pipec.errors import PartitionError
from pipec.graph.extract import extract
from pipec.graph.ir import Graph, OutputKind
from pipec.graph.structure import structural_key
from pipec.partition.devices import Device, Link
from pipec.partition.result import CutResult
from pipec.partition.solve import solve_contiguous
from pipec.plan.model import Fact, Partition, Plan, Stage
from pipec.schedule.schedule import Placement


@dataclass(frozen=True)
class PartitionPass(Pass):
    """Cuts the graph into contiguous stages, minimising the slowest stage with its transfers.

    1. One stage per device, in the order of the cluster; if the order is ``free``, the cluster's
       devices are put into the best order first.
    2. Nodes that must stay together do (`pipec.graph.units`).
    3. A value that skips stages pays at every boundary that it crosses.
    4. A training graph counts backward work and gradients on the links too.
    5. No stage holds more than its device's memory.

    Attributes:
        stages: Number of stages; as many as devices if not given.
        order: Whether devices keep their ``fixed`` order.
        overlap: Transfers hide behind compute: a stage takes the larger of the two.
        time_limit: Seconds for the proof of optimality.
    """

    name: ClassVar[str] = "partition"
    requires: ClassVar[frozenset[Fact]] = frozenset({Fact.COST})
    provides: ClassVar[frozenset[Fact]] = frozenset({Fact.PARTITION})
    stages: int | None = None
    order: Literal["fixed", "free"] = "fixed"
    overlap: bool = False
    time_limit: float = 5.0

    def run(self, plan: Plan) -> Plan:
        if plan.stages:
            return plan
        assert plan.costs is not None
        count = self._count(plan)
        cut = self._cut(plan, plan.costs, count)
        names = [n.name for n in plan.graph.calls]
        stage_of = dict(zip(names, cut.stage.tolist(), strict=True))
        return plan.replace(
            partition=_partition(cut, stage_of),
            cluster=plan.cluster.reordered(cut.device_order),
            placement=_placement(plan.graph, count),
            stages=tuple(_stage(plan.graph, stage_of, k) for k in range(count)),
        )

    def _count(self, plan: Plan) -> int:
        count = plan.cluster.size if self.stages is None else self.stages
        if not 1 <= count <= plan.cluster.size:
            raise PartitionError(
                "the number of stages does not fit the cluster",
                got=count,
                want=f"1 to {plan.cluster.size} ({plan.cluster})",
                hint="name more devices" if count > 0 else None,
            )
        return count

    def _cut(self, plan: Plan, costs: CostTable, count: int) -> CutResult:
        devices = plan.cluster.devices[:count]
        links = [plan.cluster.link(k, k + 1) for k in range(count - 1)]
        return solve_contiguous(
            placement_problem(plan.graph, costs),
            [Device(d.kind, d.memory_bytes) for d in devices],
            free_order=self.order == "free",
            links=[Link(v.bytes_per_second, v.latency_seconds) for v in links],
            overlap=self.overlap,
            time_limit=self.time_limit,
        )


def _partition(cut: CutResult, stage_of: dict[str, int]) -> Partition:
    return Partition(
        stage_of=stage_of,
        seconds=tuple(cut.loads),
        lower_bound=cut.lower_bound,
        proven=cut.proven,
        answers="contiguous stages, slowest stage with its transfers",
        method=cut.method,
    )


def _placement(graph: Graph, count: int) -> Placement:
    """Stage k on device k, forward and, in training, backward together."""
    devices = tuple((k,) for k in range(count))
    return Placement.together(devices) if graph.outputs_of(OutputKind.LOSS) else Placement(devices)


def _stage(graph: Graph, stage_of: dict[str, int], index: int) -> Stage:
    mine = {name for name, stage in stage_of.items() if stage == index}
    part = extract(graph, mine, f"Stage{index}")
    return Stage(index, part, structural_key(part))
