"""All devices of a plan in one process: for tests, for debugging, and for exactness."""

from collections.abc import Mapping

import torch

from pipec.plan.model import Plan
from pipec.runtime.device import device_of
from pipec.runtime.executor import Batch, Settings
from pipec.runtime.program import Program
from pipec.runtime.runner import Runner
from pipec.runtime.transport import Loopback
from pipec.schedule.schedule import Schedule


class LocalPipeline(Runner):
    """Runs a plan with one executor per device, taking turns.

    Args:
        plan: A plan with a schedule.
        batch: Inputs of a microbatch by its number.
        settings: Optimizer and so on.
        schedule: Another schedule for the same stages.
        weights: Initial weights by name; those of the plan if absent.
        device: Where all of it runs, as torch calls it: several stages on one GPU, say.

    Example:
        ``LocalPipeline(plan, batch, Settings(lambda p: SGD(p, lr=0.1))).run(rounds=10)``
    """

    def __init__(
        self,
        plan: Plan,
        batch: Batch,
        settings: Settings | None = None,
        *,
        schedule: Schedule | None = None,
        weights: Mapping[str, torch.Tensor] | None = None,
        device: str = "cpu",
    ) -> None:
        program = Program.of(plan, schedule)
        super().__init__(
            program, range(program.schedule.devices), Loopback(), batch, settings or Settings(),
            weights, device_of(device),
        )  # fmt: skip

    def state_dict(self) -> dict[str, torch.Tensor]:
        """All weights under their original names, aliases of shared ones included."""
        found = super().state_dict()
        assert found is not None
        return found
