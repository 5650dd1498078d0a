"""Measuring stages as they will run: the executor itself, on a transport without other devices."""

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from pipec.cost.stage import MessageCost
from pipec.runtime.allocations import counting
from pipec.runtime.device import Device
from pipec.runtime.executor import Batch, Executor, Settings
from pipec.runtime.program import Program
from pipec.runtime.tensors import TensorType
from pipec.runtime.transport import Incoming, Meeting, Message, Parts, Tensors, Transport
from pipec.schedule.action import COMPUTE, Action, ActionKind

Clock = Callable[[], float]
_TIMED = (*COMPUTE, ActionKind.SEND_F, ActionKind.SEND_B)
_TRIPS = 40
"""Round trips of each size; half as many sums."""


class Echo(Transport):
    """A transport for a device that runs alone: invents what it receives, forgets what it sends."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._types: dict[Message, TensorType] = {}
        self._random = torch.Generator(device).manual_seed(0)

    def expect(self, messages: Iterable[Incoming]) -> None:
        """Learn the types."""
        self._types = {c.message: c.type for c in messages}

    def send(self, message: Message, tensor: torch.Tensor) -> None:
        """Forget it."""

    def receive(self, message: Message) -> torch.Tensor:
        """Small random numbers; zeros where the type has no fractions."""
        tensor = self._types[message].empty(self._device)
        if tensor.is_floating_point():
            return tensor.normal_(std=0.1, generator=self._random)
        return tensor.zero_()

    def reduce(self, at: Meeting, tensors: Tensors) -> Parts:
        """The own part."""
        del at
        return list(tensors)

    def gather(self, at: Meeting, tensors: Tensors, owners: Sequence[int]) -> Parts:
        """What is here."""
        del at, owners
        return list(tensors)


@dataclass
class Samples:
    """What one device's rows took.

    Attributes:
        seconds: (kind, stage, whether it is the first of its kind in the row) to the seconds of
            every such action.
        optimizer_bytes: Stage to what its optimizer keeps between steps.
    """

    seconds: dict[tuple[ActionKind, int, bool], list[float]] = field(default_factory=dict)
    optimizer_bytes: dict[int, int] = field(default_factory=dict)


class Row:
    """One device's row, which runs alone a given number of times."""

    def __init__(
        self,
        program: Program,
        device: int,
        batch: Batch,
        settings: Settings,
        compute: Device | None = None,
        clock: Clock = time.perf_counter,
    ) -> None:
        where = compute or Device(torch.device("cpu"))
        transport, weights = Echo(where.torch), program.plan.graph.weights
        self._program, self._clock = program, clock
        self._executor = Executor(program, device, transport, batch, settings, weights, where)

    def round(self) -> list[tuple[ActionKind, int, float]]:
        """Run once: every compute action, send and step with its seconds, steps last.

        What is put off until the row is done (sums of shared gradients, clipping) is the last
        step's.
        """
        executor = self._executor
        executor.start()
        found: list[tuple[ActionKind, int, float]] = []
        steps: list[tuple[ActionKind, int, float]] = []
        while not executor.finished:
            action = executor.next_action
            seconds = _seconds(executor, self._clock)
            if action is None:
                if steps:
                    steps[-1] = (*steps[-1][:2], steps[-1][2] + seconds)
            elif action.kind is ActionKind.STEP:
                steps.append((action.kind, action.stage, seconds))
            elif action.kind in _TIMED:
                found.append((action.kind, action.stage, seconds))
        executor.end()
        return found + steps

    def measure(self, budget: float) -> Samples:
        """Run again and again; the first round does not count.

        Args:
            budget: Seconds after which no further round begins; four are run at least.
        """
        samples = Samples()
        begin, rounds = time.perf_counter(), 0
        while rounds < 4 or time.perf_counter() - begin < budget:
            seen = set[tuple[ActionKind, int]]()
            for kind, stage, seconds in self.round():
                if rounds:
                    key = kind, stage, (kind, stage) not in seen
                    samples.seconds.setdefault(key, []).append(seconds)
                seen.add((kind, stage))
            rounds += 1
        for stage, held in self._executor.weights.items():
            samples.optimizer_bytes[stage] = held.optimizer_bytes
        return samples

    def workspace(self) -> tuple[dict[str, int], Mapping[str, int]]:
        """Most bytes that actions allocate while they run, beyond what lives on after them.

        Not counted are what F saves, the gradients of an update's first backward, and the new
        version of a step that copies. The first of two rounds makes the optimizer's state and
        does not count.

        Returns:
            By name of the kind, such as ``B``; ``first B`` where no gradients were there before.
            And what kernels took that is more than they made, by `kernel_key`.
        """
        executor, program = self._executor, self._program
        found: dict[str, int] = {}
        with counting(executor) as memory:
            for number in range(2):
                executor.start()
                updates: set[int] = set()
                while not executor.finished:
                    action = executor.next_action
                    before = memory.reset()
                    executor.advance()
                    name, stays = _stays(program, action, updates)
                    if number and name:
                        found[name] = max(found.get(name, 0), memory.peak - before - stays)
                executor.end()
            return found, memory.kernels


def _wait_for(device: torch.device) -> None:
    """Until it is idle: a GPU computes and receives while the processor goes on."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _seconds(executor: Executor, clock: Clock) -> float:
    _wait_for(executor.compute.torch)
    begin = clock()
    executor.advance()
    _wait_for(executor.compute.torch)
    return clock() - begin


def _stays(program: Program, action: Action | None, updates: set[int]) -> tuple[str, int]:
    """What to call an action, and the bytes of what it makes that live on; no name if not ours."""
    if action is None:
        return "STEP" if program.schedule.training else "", 0
    stage, kind, schedule = program.stages[action.stage], action.kind, program.schedule
    if kind is ActionKind.STEP:
        return "STEP", 0 if program.flush else _count_trained(program, action.stage)
    if not kind.is_compute:
        return "", 0
    if kind is ActionKind.F:
        return "F", stage.training.saved_bytes if stage.training else 0
    if kind is ActionKind.I:
        return "I", 0
    assert action.microbatch is not None
    replicas = len(schedule.placement.backward[action.stage])
    update = schedule.rule.update_of(action.microbatch, replicas)
    first = update not in updates
    updates.add(update)
    return (
        (f"first {kind.name}", _count_trained(program, action.stage)) if first else (kind.name, 0)
    )


def _count_trained(program: Program, stage: int) -> int:
    return sum(program.stages[stage].type_of(n).nbytes for n in program.parameters(stage))


def measure_messages(
    transport: Transport,
    rank: int,
    sizes: Sequence[int],
    *,
    device: torch.device | None = None,
    handling: float = 0.0,
) -> MessageCost | None:
    """Messages to and fro between ranks 0 and 1, and sums of theirs; the others get None.

    Half of a round trip is one way. What the processor spent, in all threads, is half for sending
    and half for receiving: each rank does as many of one as of the other. It is 0 where something
    else computes: a GPU.

    Args:
        transport: Transport of this rank; ranks 0 and 1 are a group of it. All ranks must call.
        rank: Number of this rank.
        sizes: Bytes of the messages.
        device: The device that holds them; the CPU if absent.
        handling: Seconds of the interpreter for each end of a message.
    """
    if rank > 1:
        return None
    where, sizes = device or torch.device("cpu"), sorted(set(sizes))
    trips = [_round_trips(transport, rank, size, where, _TRIPS) for size in sizes]
    sums = [_sums(transport, rank, size, where, _TRIPS // 2) for size in sizes]
    share, handling = (0.5, handling) if where.type == "cpu" else (0.0, 0.0)
    ends = tuple(share * processor + handling for _, processor in trips)
    one_way = tuple(trip / 2 + 2 * handling for trip, _ in trips)
    return MessageCost(tuple(sizes), one_way, ends, ends, tuple(sums))


def _sums(transport: Transport, rank: int, size: int, where: torch.device, repeats: int) -> float:
    """Median seconds of adding a tensor of ``size`` bytes of rank 0 to one of rank 1."""
    tensor = torch.zeros(-(-size // 4), device=where)
    found: list[float] = []
    for k in range(repeats):
        begin = time.perf_counter()
        transport.reduce(Meeting(f"sum{size} {k}", rank, (0, 1)), [tensor])
        _wait_for(where)
        found.append(time.perf_counter() - begin)
    return statistics.median(found[1:])


def _round_trips(
    transport: Transport, rank: int, size: int, where: torch.device, repeats: int
) -> tuple[float, float]:
    """Median seconds of a round trip, and median processor seconds of one."""
    kind = TensorType((size,), "uint8")
    there = [Message(f"there{size}", k, 0, 1) for k in range(repeats)]
    back = [Message(f"back{size}", k, 1, 0) for k in range(repeats)]
    sent, received = (there, back) if rank == 0 else (back, there)
    transport.expect(Incoming(m, kind) for m in received)
    tensor = kind.empty(where).zero_()
    trips, spent = list[float](), list[float]()
    for out, come in zip(sent, received, strict=True):
        started, begin = time.perf_counter(), time.process_time()
        if rank:
            transport.receive(come)
            _wait_for(where)
            transport.send(out, tensor)
        else:
            transport.send(out, tensor)
            transport.receive(come)
        _wait_for(where)
        trips.append(time.perf_counter() - started)
        spent.append(time.process_time() - begin)
    transport.finish()
    return statistics.median(trips[1:]), statistics.median(spent[1:])
