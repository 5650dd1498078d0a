"""All devices of a plan in one process: for tests, for debugging, and for exactness."""

from collections.abc import Iterator, Mapping, Sequence
from copy import copy

import torch

from pipec.errors import PlanError
from pipec.graph.ir import InputKind
from pipec.plan.model import Plan
from pipec.runtime.device import device_of
from pipec.runtime.executor import Batch, Executor, Result, Settings, deadlock
from pipec.runtime.program import Program
from pipec.runtime.shares import Shares
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
        source = plan.graph.weights if weights is None else named(weights, plan)
        self.executors = [
            Executor(self.program, d, transport, batch, settings or Settings(), source, compute)
            for d in range(self.program.schedule.devices)
        ]

    def load(self, schedule: Schedule) -> None:
        """Continue with another schedule of the same devices, from an empty pipeline."""
        self.drain()
        self.program = Program.of(self.program.plan, schedule)
        for e in self.executors:
            e.load(self.program)

    def round(self, shares: Shares | None = None) -> Result:
        """Run the schedule once: one step if it flushes, else all of its microbatches.

        What is left of an endless schedule's microbatches then waits for the next round.

        Args:
            shares: How much each microbatch counts, and its shape; all alike if absent.

        Raises:
            ScheduleError: No device can go on.
        """
        self.play(shares)
        merged = Result()
        for e in self.executors:
            found = e.end()
            merged.losses |= found.losses
            merged.outputs |= found.outputs
            merged.versions += found.versions
            merged.busy += found.busy
            merged.norm = found.norm if merged.norm is None else merged.norm
            merged.skipped |= found.skipped
            merged.rescaled |= found.rescaled
        return merged

    def play(self, shares: Shares | None = None) -> None:
        """Run the schedule to the end of every row; weights and gradients are as they are then.

        Args:
            shares: As for `round`.

        Raises:
            ScheduleError: No device can go on.
        """
        self._play(shares, draining=False)

    def drain(self) -> None:
        """Finish all microbatches that are under way; nothing is where the schedule drains."""
        while not self.executors[0].rounds.empty:
            self._play(draining=True)
            for e in self.executors:
                e.end()

    def _play(self, shares: Shares | None = None, *, draining: bool) -> None:
        for e in self.executors:
            e.start(shares, draining=draining)
        while not all(e.finished for e in self.executors):
            moved = False
            for e in self.executors:
                while e.advance():
                    moved = True
            if not moved:
                raise deadlock(self.executors)

    def beside(self, programs: Sequence[Program], batch: Batch) -> "LocalPipeline":
        """What runs other graphs of the same stages on the weights as they are now, not copied."""
        made = copy(self)
        made.program = programs[0]
        made.executors = [e.beside(programs, batch) for e in self.executors]
        return made

    def run(self, rounds: int) -> list[float]:
        """Run several rounds and drain; the losses of all microbatches in order."""
        losses: list[float] = []
        for _ in range(rounds):
            found = self.round().losses
            losses += [float(found[m]) for m in sorted(found)]
        self.drain()
        return losses

    def state_dict(self) -> dict[str, torch.Tensor]:
        """All weights under their original names, aliases of shared ones included."""
        return gather([e.state_dict() for e in self.executors], self.program.plan)

    def outputs(self, found: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """What was found, all of it being here."""
        return found


def named(weights: Mapping[str, torch.Tensor], plan: Plan) -> Mapping[str, torch.Tensor]:
    """Weights that a user gives, with every name that the plan has; nothing is read.

    Raises:
        PlanError: A name is missing, or unknown.
    """
    graph = plan.graph
    others = {alias: name for name, aliases in graph.tied.items() for alias in aliases}
    wanted = {i.name for i in graph.inputs_of(InputKind.PARAMETER, InputKind.BUFFER)}
    unknown = [n for n in weights if n not in wanted and n not in others and n not in graph.weights]
    first = {others[n]: n for n in weights if n in others}
    missing = [n for n in wanted if n not in weights and n not in first]
    if unknown or missing:
        raise PlanError(
            "the weights are not those of the model",
            got=f"unknown: {', '.join(unknown[:3])}" if unknown else "too few",
            want=f"{', '.join(sorted(missing)[:3])}" if missing else f"{len(wanted)} names",
        )
    return _Named(weights, graph.weights, first)


class _Named(Mapping[str, torch.Tensor]):
    """A user's weights, then the plan's constants; read only when they are asked for."""

    def __init__(
        self,
        given: Mapping[str, torch.Tensor],
        others: Mapping[str, torch.Tensor],
        first: Mapping[str, str],
    ) -> None:
        self._given, self._others, self._first = given, others, first

    def __getitem__(self, name: str) -> torch.Tensor:
        place = name if name in self._given else self._first.get(name)
        return self._others[name] if place is None else self._given[place]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self._given, *self._first, *self._others]))

    def __len__(self) -> int:
        return len(list(iter(self)))


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
