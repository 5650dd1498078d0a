"""All devices of a plan in one process: for tests, for debugging, and for exactness."""

from typing import Unpack

import torch

from pipec.plan.model import Plan
from pipec.runtime.device import device_of
from pipec.runtime.executor import Batch, Settings
from pipec.runtime.program import Program
from pipec.runtime.runner import Runner, RunnerArgs
from pipec.runtime.transport import Loopback


class LocalPipeline(Runner):
    """Runs a plan with one executor per device, taking turns.

    Args:
        plan: A plan with a schedule.
        batch: Inputs of a microbatch by its number.
        settings: Optimizer and so on.
        more: What else there is; it computes on the CPU by default.

    Example:
        ``LocalPipeline(plan, batch, Settings(lambda p: SGD(p, lr=0.1))).run(rounds=10)``
    """

    def __init__(
        self, plan: Plan, batch: Batch, settings: Settings | None = None, **more: Unpack[RunnerArgs]
    ) -> None:
        program = Program.of(plan, more.get("schedule"))
        super().__init__(
            program, range(program.schedule.devices), Loopback(), batch, settings or Settings(),
            more.get("weights"), device_of(more.get("device", "cpu")),
        )  # fmt: skip

    def state_dict(self) -> dict[str, torch.Tensor]:
        """All weights under their original names, aliases of shared ones included."""
        found = super().state_dict()
        assert found is not None
        return found
