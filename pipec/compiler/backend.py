"""What a backend is: it checks, times, emits, and runs what it emitted."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Protocol, runtime_checkable

import torch

from pipec import registry
from pipec.cluster.cluster import Cluster
from pipec.compiler.comparison import Allowed
from pipec.compiler.cycles import StageCycles, TimedCheck
from pipec.cost.model import CostModel
from pipec.errors import BackendError
from pipec.partition.result import CutResult
from pipec.plan.model import Plan, StageTiming

StageRunner = Callable[[Mapping[str, torch.Tensor]], dict[str, torch.Tensor]]
"""One emitted stage as a function: names of its inputs and outputs (user inputs by their name,
values by the node of the whole model) to tensors."""


@runtime_checkable
class TrainingRunner(Protocol):
    """A `StageRunner` that has emitted code for the backward pass and the update too."""

    def __call__(self, values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """F of one microbatch by itself."""
        ...

    def begin(self, microbatches: int) -> None:
        """Start anew with updates of so many microbatches."""
        ...

    def forward(
        self, microbatch: int, values: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """F of a microbatch, whose saved values are kept."""
        ...

    def saved(self, microbatch: int) -> dict[str, torch.Tensor]:
        """What F saved of the last microbatch that it ran, under the names of the plan."""
        ...

    def backward(
        self, microbatch: int, gradients: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """B of a microbatch whose F has run; the gradients of the parameters are added up.

        Args:
            microbatch: Its number.
            gradients: Of the values that F yielded and that later stages used, by name; the
                gradient of the loss is 1.

        Returns:
            Gradients of the values that F received, by name.
        """
        ...

    def gradients(self) -> dict[str, torch.Tensor]:
        """The sums of the gradients over the microbatches of the update, by parameter."""
        ...

    def update(self) -> dict[str, torch.Tensor]:
        """One update with these sums; the new parameters by name."""
        ...

    @property
    def settings(self) -> Mapping[str, float]:
        """Of the update, SGD: ``rate``, ``momentum``, ``decay``, ``scale`` on the sums."""
        ...


class Backend(ABC):
    """One kind of artifact. Subclasses keep no state between calls but caches.

    Attributes:
        name: What ``--target`` calls it.
        route: How a value that skips stages travels: ``direct``, or ``relay`` from stage to stage
            where devices form a chain.
        fused_attention: Whether its stages can train with torch's fused kernels of attention.
        runs_emitted_code: Whether `run_stages` runs code out of the directory, such as C++, which
            a plan of somebody else may not; false where graphs are data that are interpreted.
        devices: What `pipec compile` plans for where no devices are named.
    """

    name: ClassVar[str]
    route: ClassVar[str] = "direct"
    fused_attention: ClassVar[bool] = True
    runs_emitted_code: ClassVar[bool] = True
    devices: ClassVar[str] = "2xcpu"

    @abstractmethod
    def check(self, plan: Plan) -> None:
        """See whether every stage can be emitted.

        Raises:
            BackendError: Something cannot; all findings are listed, by node and origin.
        """

    @abstractmethod
    def timing(self, plan: Plan) -> tuple[StageTiming, ...]:
        """Predict every stage on its device."""

    @abstractmethod
    def emit(self, plan: Plan, directory: Path) -> None:
        """Write the artifacts of all stages into ``directory``, which exists and is empty.

        The same plan gives the same bytes.
        """

    @abstractmethod
    def load(self, plan: Plan, directory: Path) -> Sequence[StageRunner]:
        """What was emitted, one runner per stage, reading nothing but ``directory``.

        Raises:
            BackendError: An artifact is damaged, or a tool that runs it is missing.
        """

    def stream(
        self, plan: Plan, directory: Path, frames: Sequence[Mapping[str, torch.Tensor]]
    ) -> Sequence[dict[str, torch.Tensor]]:
        """Run all stages at the same time, joined as their devices are, frame after frame.

        Args:
            plan: The plan that was emitted.
            directory: Where to.
            frames: Values of the model's inputs, by name, for each frame.

        Returns:
            The model's outputs, by name, of each frame.

        Raises:
            BackendError: Stages of this kind are no processes that can be joined, or one fails.
        """
        del plan, frames
        raise BackendError("stages of this target do not stream", where=directory, got=self.name)

    @abstractmethod
    def tolerance(self, plan: Plan) -> float:
        """Largest error of a boundary value relative to its largest magnitude."""

    def emitted_tolerance(self, plan: Plan, directory: Path) -> float:
        """The same for what was emitted, which may say so itself."""
        del directory
        return self.tolerance(plan)

    def emitted_bounds(self, plan: Plan, directory: Path) -> Mapping[str, Allowed]:
        """Boundary values of what was emitted for which a tolerance of their own is known."""
        del plan, directory
        return {}

    def sample_inputs(
        self, plan: Plan, directory: Path, seed: int
    ) -> dict[str, torch.Tensor] | None:
        """Inputs of the kind that what was emitted is made for, which keeps some of them.

        Args:
            plan: The plan that was emitted.
            directory: Where to.
            seed: Which ones.

        Returns:
            The model's inputs by name; None where any will do.
        """
        del plan, directory, seed
        return None

    def remarks(self, plan: Plan, directory: Path) -> Sequence[str]:
        """What a user should know of what was emitted, a line each."""
        del plan, directory
        return ()

    def cut(self, plan: Plan, count: int, *, free_order: bool) -> CutResult | None:
        """A cut by this backend's own search; None to cut by the costs of the nodes.

        Args:
            plan: A plan with costs, not cut yet.
            count: Number of stages, on the first devices of the cluster.
            free_order: The devices may be put into another order.
        """
        del plan, count, free_order
        return None

    def cycles(
        self, plan: Plan, directory: Path, *, together: bool = False
    ) -> Sequence[StageCycles]:
        """The cycles of what was emitted, one item per stage.

        Args:
            plan: The plan that was emitted.
            directory: Where to.
            together: One more item: all stages at once, joined by their links.

        Raises:
            BackendError: This kind of artifact has none, or it is damaged.
        """
        del plan, together
        raise BackendError("stages of this target have no cycles", where=directory, got=self.name)

    def check_cycles(self, plan: Plan, directory: Path) -> Sequence[TimedCheck]:
        """Run what was emitted, the cycle of every handshake noted, beside the simulator.

        Raises:
            BackendError: This kind of artifact has no cycles, or it is damaged.
        """
        del plan
        raise BackendError("stages of this target have no cycles", where=directory, got=self.name)

    def cost_model(self, cluster: Cluster) -> CostModel | None:
        """How this backend times a node on a device; None for the roofline."""
        del cluster
        return None


def load_backend(name: str) -> Backend:
    """The backend registered as ``name``.

    Raises:
        PipecError: There is none.
    """
    return registry.load_class("pipec.backends", name, Backend)()  # type: ignore[type-abstract]
