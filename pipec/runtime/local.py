"""All devices of a plan in one process: for tests, for debugging, and for exactness."""

from collections.abc import Mapping

import torch

from pipec.graph.ir import InputKind
from pipec.plan.model import Plan
from pipec.runtime.device import device_of
from pipec.runtime.executor import Batch, Executor, Result, Settings, deadlock
from pipec.runtime.program import Program
from pipec.runtime.transport import Loopback
from pipec.schedule.schedule import Schedule


class LocalPipeline:
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
        self.program = Program.of(plan, schedule)
        compute = device_of(device)
        transport = Loopback()
        source = plan.graph.weights if weights is None else weights
        self.executors = [
            Executor(self.program, d, transport, batch, settings or Settings(), source, compute)
            for d in range(self.program.schedule.devices)
        ]

    def load(self, schedule: Schedule) -> None:
        """Continue with another schedule of the same devices."""
        self.program = Program.of(self.program.plan, schedule)
        for e in self.executors:
            e.load(self.program)

    def round(self) -> Result:
        """Run the schedule once: one step if it flushes, else all of its microbatches.

        Raises:
            ScheduleError: No device can go on.
        """
        self.play()
        merged = Result()
        for e in self.executors:
            found = e.end()
            merged.losses |= found.losses
            merged.outputs |= found.outputs
            merged.versions += found.versions
            merged.busy += found.busy
        return merged

    def play(self) -> None:
        """Run the schedule to the end of every row; weights and gradients are as they are then.

        Raises:
            ScheduleError: No device can go on.
        """
        for e in self.executors:
            e.start()
        while not all(e.finished for e in self.executors):
            moved = False
            for e in self.executors:
                while e.advance():
                    moved = True
            if not moved:
                raise deadlock(self.executors)

    def run(self, rounds: int) -> list[float]:
        """Run several rounds; the losses of all microbatches in order."""
        losses: list[float] = []
        for _ in range(rounds):
            found = self.round().losses
            losses += [float(found[m]) for m in sorted(found)]
        return losses

    def state_dict(self) -> dict[str, torch.Tensor]:
        """All weights under their original names, aliases of shared ones included."""
        return gather([e.state_dict() for e in self.executors], self.program.plan)

    def outputs(self, found: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """What was found, all of it being here."""
        return found


def gather(parts: list[dict[str, torch.Tensor]], plan: Plan) -> dict[str, torch.Tensor]:
    """One state dict of those of all devices; earlier devices win where several hold a weight."""
    found: dict[str, torch.Tensor] = {}
    for part in reversed(parts):
        found |= part
    for i in plan.graph.inputs_of(InputKind.PARAMETER, InputKind.BUFFER):
        if i.name not in found:
            found[i.name] = plan.graph.weights[i.name].detach().clone()
    for name, aliases in plan.graph.tied.items():
        if name in found:
            found |= dict.fromkeys(aliases, found[name])
    return found
