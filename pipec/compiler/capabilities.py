"""What some targets can do besides: the core looks for it by type, and knows no target by name."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch

from pipec.cluster.cluster import Cluster
from pipec.compiler.cycles import StageCycles, TimedCheck
from pipec.cost.model import CostModel, Roofline
from pipec.graph.ir import Graph
from pipec.partition.result import CutResult
from pipec.plan.model import Plan, Stage


@runtime_checkable
class Prepares(Protocol):
    """Its options depend on the model's example inputs."""

    def prepare(
        self, settings: Mapping[str, object], example_inputs: Mapping[str, torch.Tensor]
    ) -> dict[str, object]:
        """What the plan must remember, of the options that were given."""


@runtime_checkable
class Costs(Protocol):
    """It times nodes in its own way, where the roofline is wrong for it."""

    def cost_model(self, cluster: Cluster) -> CostModel:
        """How it times a node on a device."""


@runtime_checkable
class TimesNodes(Protocol):
    """Its engine measures what each node of a model takes, where torch's kernels are others."""

    def node_seconds(
        self, graph: Graph, inputs: Mapping[str, torch.Tensor], runs: int
    ) -> dict[str, float]:
        """Seconds of every call on this machine's processor; nothing where torch may time it."""


@runtime_checkable
class Cuts(Protocol):
    """It has a search of its own for the cut."""

    def cut(self, plan: Plan, count: int, *, free_order: bool) -> CutResult | None:
        """Cut a plan with costs into stages; None to cut by the costs of the nodes.

        Args:
            plan: Not cut yet.
            count: Number of stages, on the first devices of the cluster.
            free_order: The devices may be put into another order.
        """


@runtime_checkable
class Keeps(Protocol):
    """It cannot compute some calls apart, such as a comparison and what chooses by it."""

    def keep_together(self, plan: Plan) -> Iterable[Sequence[str]]:
        """Names of calls of a plan, cut or not, that one stage must have, a row for each such."""


@runtime_checkable
class Remarks(Protocol):
    """It has remarks about what it emitted."""

    def remarks(self, plan: Plan, directory: Path) -> Sequence[str]:
        """What a user should know, a line each."""


@runtime_checkable
class Draws(Protocol):
    """It can show one stage as a file of its own kind, such as one for a viewer of models.

    Attributes:
        draws: The file's ending, with the dot.
    """

    draws: str

    def draw(self, stage: Stage, path: Path) -> None:
        """Write the stage."""


@runtime_checkable
class Cycles(Protocol):
    """What it emits has cycles, and engines that wait for each other."""

    def cycles(
        self, plan: Plan, directory: Path, *, together: bool = False
    ) -> Sequence[StageCycles]:
        """The cycles of what was emitted, one item per stage; ``together``: one more of all.

        Raises:
            BackendError: An artifact is damaged.
        """

    def check_cycles(self, plan: Plan, directory: Path) -> Sequence[TimedCheck]:
        """Run what was emitted, the cycle of every handshake noted, beside the simulator.

        Raises:
            BackendError: An artifact is damaged.
        """

    def engines(
        self,
        plan: Plan,
        directory: Path,
        simulated: Sequence[StageCycles],
        reports: Path | None = None,
    ) -> list[dict[str, Any]]:
        """The engines and streams of every kernel, with what was simulated.

        Args:
            plan: What was emitted.
            directory: The folder that it was emitted to.
            simulated: What `cycles` found, or nothing.
            reports: Where a vendor's tool left its reports; within the directory if not given.
        """


def model_of(target: object, cluster: Cluster) -> CostModel:
    """How a target times nodes on a cluster: the roofline, unless it has a model of its own."""
    return target.cost_model(cluster) if isinstance(target, Costs) else Roofline()
