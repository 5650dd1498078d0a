"""Measuring stages as they will run: the executor itself, on a transport without other devices."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from pipec.runtime.executor import Batch, Executor, Settings
from pipec.runtime.program import Program
from pipec.runtime.tensors import TensorType
from pipec.runtime.transport import Message
from pipec.schedule.action import ActionKind

Clock = Callable[[], float]


class Echo:
    """A transport for a device that runs alone: invents what it receives, forgets what it sends."""

    def __init__(self) -> None:
        self._types: dict[Message, TensorType] = {}
        self._random = torch.Generator().manual_seed(0)

    def expect(self, messages: Iterable[tuple[Message, TensorType]]) -> None:
        """Learn the types."""
        self._types = dict(messages)

    def send(self, message: Message, tensor: torch.Tensor) -> None:
        """Forget it."""

    def ready(self, message: Message) -> bool:
        """Always."""
        del message
        return True

    def receive(self, message: Message) -> torch.Tensor:
        """Small random numbers; zeros where the type has no fractions."""
        tensor = self._types[message].empty()
        if tensor.is_floating_point():
            return tensor.normal_(std=0.1, generator=self._random)
        return tensor.zero_()

    def reduce(
        self, key: str, tensors: Sequence[torch.Tensor], device: int, members: tuple[int, ...]
    ) -> list[torch.Tensor] | None:
        """The own part."""
        del key, device, members
        return list(tensors)

    def finish(self) -> None:
        """Nothing is under way."""


@dataclass
class Samples:
    """What one device's rows took.

    Attributes:
        seconds: (kind, stage) to the seconds of every such action.
        optimizer_bytes: Stage to what its optimizer keeps between steps.
    """

    seconds: dict[tuple[ActionKind, int], list[float]] = field(default_factory=dict)
    optimizer_bytes: dict[int, int] = field(default_factory=dict)


def measure_row(
    program: Program,
    device: int,
    batch: Batch,
    settings: Settings,
    *,
    budget: float,
    weights: Mapping[str, torch.Tensor] | None = None,
    clock: Clock = time.perf_counter,
) -> Samples:
    """Run one device's row again and again, and time its compute actions and steps.

    Steps that wait for the end of the row are timed there. The first round is not counted.

    Args:
        program: The plan under a schedule; the device should hold one stage.
        device: Whose row.
        batch: Inputs of a microbatch.
        settings: With the optimizer.
        budget: Seconds after which no further round begins; two are run at least.
        weights: By name; those of the plan if absent.
        clock: What is read before and after every action.
    """
    given = program.plan.graph.weights if weights is None else weights
    executor = Executor(program, device, Echo(), batch, settings, given)
    samples = Samples()
    begin, rounds = time.perf_counter(), 0
    while rounds < 3 or time.perf_counter() - begin < budget:
        executor.start()
        for key, seconds in _timed(executor, clock):
            if rounds:
                samples.seconds.setdefault(key, []).append(seconds)
        executor.end()
        rounds += 1
    for stage, held in executor.weights.items():
        samples.optimizer_bytes[stage] = held.optimizer_bytes
    return samples


def _timed(executor: Executor, clock: Clock) -> Iterator[tuple[tuple[ActionKind, int], float]]:
    """Every compute action and step of one round with its seconds."""
    steps: dict[int, float] = {}
    while not executor.finished:
        action = executor.next_action
        begin = clock()
        executor.advance()
        seconds = clock() - begin
        if action is None:  # what was put off until now, shared among the steps
            steps = {stage: s + seconds / len(steps) for stage, s in steps.items()}
        elif action.kind is ActionKind.STEP:
            steps[action.stage] = steps.get(action.stage, 0.0) + seconds
        elif action.kind.is_compute:
            yield (action.kind, action.stage), seconds
    yield from (((ActionKind.STEP, stage), seconds) for stage, seconds in steps.items())
