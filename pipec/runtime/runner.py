"""The devices of a plan that one process runs: all of them, or those of one rank."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from datetime import timedelta
from typing import Self, TypedDict, Unpack

import torch

from pipec.graph.ir import InputKind
from pipec.plan.model import Plan
from pipec.runtime.device import Device, device_of
from pipec.runtime.executor import Batch, Executor, Settings, deadlock
from pipec.runtime.program import Program
from pipec.runtime.result import Result
from pipec.runtime.scaling import check_scaled
from pipec.runtime.shares import Shares
from pipec.runtime.stored import name_weights
from pipec.runtime.transport import Loopback, Transport
from pipec.schedule.schedule import Schedule


class RunnerArgs(TypedDict, total=False):
    """Arguments of a runner besides plan, data and settings.

    Attributes:
        schedule: Another schedule for the same stages.
        weights: Initial weights by name; those of the plan if absent.
        device: Where it computes, as torch calls it: several stages on one GPU, say. Of ranks
            ``cpu``, ``cuda``, or ``auto`` for ``cuda`` where there is one.
        timeout: In which a rank that does not answer is named.
    """

    schedule: Schedule | None
    weights: Mapping[str, torch.Tensor] | None
    device: str
    timeout: timedelta


class Runner:
    """Runs a plan round by round, its devices here taking turns.

    Initial weights are those of the plan where none are given by name.

    Attributes:
        program: What is run.
        executors: One per device.

    Raises:
        PlanError: The weights do not fit, or float16 is trained without a scale on the loss.
    """

    def __init__(
        self,
        program: Program,
        devices: Iterable[int],
        transport: Transport,
        batch: Batch,
        settings: Settings,
        weights: Mapping[str, torch.Tensor] | None,
        compute: Device,
    ) -> None:
        self.program = program
        if settings.optimizer is not None and settings.loss_scale is None:
            check_scaled(program)
        self.connect()
        plan = program.plan
        source = plan.graph.weights if weights is None else name_weights(weights, plan)
        self.executors = [
            Executor(program, d, transport, batch, settings, source, compute) for d in devices
        ]

    def load(self, schedule: Schedule) -> None:
        """Continue with another schedule of the same devices, from an empty pipeline."""
        self.drain()
        self.program = Program.of(self.program.plan, schedule)
        self.connect()
        for e in self.executors:
            e.load(self.program)

    def connect(self) -> None:
        """Get ready to reach the other devices of the program, if they are elsewhere."""

    @contextmanager
    def locate_failure(self) -> Iterator[None]:
        """What fails inside says where the devices were."""
        yield

    def round(self, shares: Shares | None = None) -> Result:
        """Run the schedule once: one step if it flushes, else all of its microbatches.

        What is left of an endless schedule's microbatches then waits for the next round.

        Args:
            shares: How much each microbatch counts, and its shape; all alike if absent. The same
                in all processes.

        Raises:
            ScheduleError: No device can go on.
            BackendError: Another rank did not answer in time.
        """
        return self._round(shares, draining=False)

    def drain(self) -> None:
        """Finish all microbatches that are under way; nothing is where the schedule drains.

        All ranks must call.
        """
        while not self.executors[0].rounds.empty:
            self._round(draining=True)

    def _round(self, shares: Shares | None = None, *, draining: bool) -> Result:
        with self.locate_failure():
            self.play(shares, draining=draining)
            found, *others = [e.end() for e in self.executors]
        for other in others:
            found.add(other)
        return found

    def play(self, shares: Shares | None = None, *, draining: bool = False) -> None:
        """Run the schedule to the end of every row; weights and gradients are as they are then.

        Args:
            shares: As for `round`.
            draining: Take no new microbatches.

        Raises:
            ScheduleError: No device can go on.
        """
        for e in self.executors:
            e.start(shares, draining=draining)
        while not all(e.finished for e in self.executors):
            moved = False
            for e in self.executors:
                while e.advance():
                    moved = True
            if not moved:
                raise deadlock(self.executors)

    def beside(self, programs: Sequence[Program], batch: Batch) -> Self:
        """What runs other graphs of the same stages on the weights as they are now, not copied.

        All ranks must call.
        """
        made = copy(self)
        made.program = programs[0]
        made.connect()
        made.executors = [e.beside(programs, batch) for e in self.executors]
        return made

    def run(self, rounds: int) -> list[float]:
        """Run several rounds and drain; the losses that are known here, in order."""
        losses: list[float] = []
        for _ in range(rounds):
            found = self.round().losses
            losses += [float(found[m]) for m in sorted(found)]
        self.drain()
        return losses

    def collect(self, tensors: dict[str, torch.Tensor]) -> list[dict[str, torch.Tensor]] | None:
        """Tensors of every process, on the first rank; None elsewhere. All ranks must call."""
        return [tensors]

    def state_dict(self) -> dict[str, torch.Tensor] | None:
        """Copies of all weights under their original names, aliases of shared ones included.

        Returns:
            On the first rank; None elsewhere. All ranks must call.
        """
        entries: dict[str, torch.Tensor] = {}
        for e in reversed(self.executors):
            for stage in reversed(e.weights):
                entries |= {n: t.detach().clone() for n, t in e.read_state(stage).items()}
        parts = self.collect(entries)
        return None if parts is None else gather(parts, self.program.plan)

    def outputs(self, found: dict[str, torch.Tensor]) -> dict[str, torch.Tensor] | None:
        """What all ranks found on the first one; None elsewhere. All ranks must call."""
        parts = self.collect(found)
        return None if parts is None else {n: t for part in parts for n, t in part.items()}


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


class LocalPipeline(Runner):
    """Runs a plan with one executor per device, taking turns; on the CPU by default.

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
