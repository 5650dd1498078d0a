"""A saved plan as a cost graph for ``pipec partition``."""

from dataclasses import dataclass, field
from math import prod
from pathlib import Path

from pipec.cluster.cluster import Cluster
from pipec.compiler.problem import TRAINING_COPIES, build_problem, chain_of
from pipec.compiler.replicate import check_alike, flat_rate
from pipec.errors import PartitionError
from pipec.partition.devices import Device
from pipec.partition.formats.workload import Workload
from pipec.plan.store import load_plan


@dataclass(frozen=True)
class PlanWorkload(Workload):
    """The cost graph of a plan, with the plan's own devices and links.

    Attributes:
        cluster: The plan's cluster.
    """

    cluster: Cluster = field(default_factory=lambda: Cluster(()))

    def devices(self, accelerators: int | None = None, cpus: int | None = None) -> list[Device]:
        """The first ``accelerators`` devices of the plan's cluster; all of them by default.

        Raises:
            PartitionError: The cluster has fewer devices, or CPUs are asked for.
        """
        count = self.cluster.size if accelerators is None else accelerators
        if cpus or count > self.cluster.size:
            raise PartitionError(
                "the plan's cluster has no such devices",
                got=f"{count} devices, {cpus or 0} CPUs",
                want=f"at most {self.cluster.size} devices ({self.cluster})",
            )
        return chain_of(self.cluster, count)[0]

    def replicas(self, workers: tuple[int, ...]) -> tuple[list[Device], tuple[float, ...]]:
        """The rate is that of the slowest link; of several levels a user names the rates.

        Raises:
            PartitionError: The devices are too few, or of several kinds.
        """
        count = prod(workers)
        devices = self.devices(count)
        check_alike(self.cluster, count)
        return devices, (flat_rate(self.cluster, count),) if len(workers) == 1 else ()


def plan_workload(path: Path, *, replicated: bool = False) -> PlanWorkload:
    """The cost graph of a saved plan, for replicas with weights counted once.

    Raises:
        PlanError: The plan is damaged.
        PartitionError: It has no costs.
    """
    directory = path.parent if path.name == "plan.json" else path
    plan = load_plan(directory, check_weights=False)
    if plan.costs is None:
        raise PartitionError("the plan has no costs", where=directory)
    problem = build_problem(plan, plan.schedule, copies=1.0 if replicated else TRAINING_COPIES)
    _, links = chain_of(plan.cluster, plan.cluster.size)
    return PlanWorkload(problem, priced=False, links=tuple(links), cluster=plan.cluster)
