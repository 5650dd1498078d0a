"""The cycle simulator: engines as static processes over FIFOs with credits.

It visits handshakes, not cycles, and the result does not depend on the order of visits, because
every time is a maximum of sums of earlier times (`pipec.backends.fpga.runs`). A process is
advanced until it needs a token that nobody has produced yet, or a slot that nobody has freed;
whoever it could now unblock is queued. When nothing moves and something is unfinished, the chain
of waits closes into the deadlock that is reported.
"""

import dataclasses
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from pipec.backends.fpga.design import StageDesign
from pipec.backends.fpga.runs import Loop, Run, Table, flat, run_table
from pipec.errors import BackendError


@dataclass(frozen=True)
class Process:
    """One process of a network, as the simulator sees it.

    Attributes:
        name: For messages.
        table: Run table of one frame.
        inputs: Stream names by read port; ``outputs`` by write port.
        depth: Pipeline depth D.
    """

    name: str
    table: Table
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    depth: int = 1


@dataclass(frozen=True)
class Trace:
    """What a simulation found.

    Attributes:
        ends: Per frame the cycle at which the last output token of all sinks is visible.
        stalls: Stream name to cycles lost waiting for its tokens or its slots, all frames.
        handshakes: Stream name to the cycles at which its tokens become visible, if recorded.
    """

    ends: tuple[int, ...]
    stalls: Mapping[str, int]
    handshakes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def interval(self) -> int:
        """Cycles between the last two frames (all cycles if there was one)."""
        return self.ends[-1] - (self.ends[-2] if len(self.ends) > 1 else 0)

    @property
    def latency(self) -> int:
        """Cycles from the first firing to the end of the first frame."""
        return self.ends[0]


class _Fifo:
    """Visibility and free times of the last K tokens, in rings; some may lie there at reset."""

    def __init__(self, name: str, slots: int, initial: int) -> None:
        self.name, self.slots = name, slots
        self.vis, self.free = [0] * slots, [0] * slots
        self.written, self.read, self.stall = initial, 0, 0
        self.producer: _State | None = None
        self.consumer: _State | None = None
        self.log: list[int] | None = None


class _State:
    """A process being simulated."""

    def __init__(self, process: Process, fifos: Mapping[str, _Fifo], frames: int) -> None:
        self.name, self.table, self.frames = process.name, process.table, frames
        self.depth = process.depth
        self.ins = [fifos[s] for s in process.inputs]
        self.outs = [fifos[s] for s in process.outputs]
        self.runs = iter(flat(self.table))
        self.run: Run | None = None
        self.left = self.frame = 0
        self.time: int | None = None
        self.queued = self.done = False
        self.blocked: _Fifo | None = None
        self.ends: list[int] = []
        for fifo in self.ins:
            fifo.consumer = self
        for fifo in self.outs:
            fifo.producer = self

    def next_run(self) -> bool:
        """Take the next run, of the next frame if this one is over; False when all are done."""
        while True:
            self.run = next(self.runs, None)
            if self.run is not None:
                self.left = self.run.count
                return True
            self.ends.append((self.time or 0) + self.depth)
            self.frame += 1
            if self.frame == self.frames:
                self.done = True
                return False
            self.runs = iter(flat(self.table))

    def advance(self) -> bool:
        """Fire as often as possible; whether anything fired."""
        moved, self.blocked = False, None
        while not self.done:
            if not self.left and not self.next_run():
                return True
            run = self.run
            assert run is not None
            ins = [f for k, f in enumerate(self.ins) if run.reads >> k & 1]
            outs = [f for k, f in enumerate(self.outs) if run.writes >> k & 1]
            fired = self._fire(run, ins, outs)
            moved = moved or fired > 0
            self.left -= fired
            if self.left:
                return moved
        return moved

    def _fire(self, run: Run, ins: list[_Fifo], outs: list[_Fifo]) -> int:
        """Firings of one run until it ends or blocks."""
        can = self._ready(ins, outs)
        delta, depth = run.delta, self.depth
        t = -delta if self.time is None else self.time
        for _ in range(can):
            t = self._start(t + delta, ins, outs)
            for f in ins:
                f.free[f.read % f.slots] = t + 1
                f.read += 1
            for f in outs:
                f.vis[f.written % f.slots] = t + depth
                f.written += 1
                if f.log is not None:
                    f.log.append(t + depth)
        if can:
            self.time = t
        return can

    def _ready(self, ins: list[_Fifo], outs: list[_Fifo]) -> int:
        """Firings for which tokens and slots are there; notes what blocks the next one."""
        can = self.left
        for f in ins:
            if f.written - f.read < can:
                can, self.blocked = f.written - f.read, f
        for f in outs:
            if f.slots - (f.written - f.read) < can:
                can, self.blocked = f.slots - (f.written - f.read), f
        return can

    @staticmethod
    def _start(t: int, ins: list[_Fifo], outs: list[_Fifo]) -> int:
        """The start of a firing that is due at t; delays are charged to who causes them."""
        for f in ins:
            ready = f.vis[f.read % f.slots]
            if ready > t:
                f.stall += ready - t
                t = ready
        for f in outs:
            ready = f.free[f.written % f.slots]
            if ready > t:
                f.stall += ready - t
                t = ready
        return t


def simulate(
    processes: list[Process],
    depths: Mapping[str, int],
    frames: int = 1,
    *,
    record: bool = False,
    initial: Mapping[str, int] | None = None,
) -> Trace:
    """Run a network of processes.

    Args:
        processes: Any order; every stream has one writer and one reader among them, or none on
            one side (a source that is always ready, a sink that always takes).
        depths: Declared FIFO depth per stream.
        frames: Frames to run.
        record: Keep the cycle of every handshake.
        initial: Tokens that a stream holds at reset (a feedback loop needs some); 0 where absent.

    Raises:
        BackendError: The network deadlocks; the cycle of waits is reported.
    """
    initial = initial or {}
    writers = {s: p for p in processes for s in p.outputs}
    readers = {s for p in processes for s in p.inputs}
    inner = {
        s: _Fifo(s, depths[s] + p.depth, initial.get(s, 0))
        for s, p in writers.items()
        if s in readers
    }
    states = [_State(_inner(p, inner), inner, frames) for p in processes]
    if record:
        for fifo in inner.values():
            fifo.log = []
    _run(states)
    waiting = [s for s in states if not s.done]
    if waiting:
        raise _deadlock(waiting)
    ends = tuple(max(s.ends[k] for s in states) for k in range(frames))
    return Trace(
        ends,
        {n: f.stall for n, f in inner.items()},
        {n: tuple(f.log) for n, f in inner.items() if f.log is not None},
    )


def _inner(process: Process, fifos: Mapping[str, _Fifo]) -> Process:
    """The process without ports that lead outside: these are always ready."""
    ins = [k for k, s in enumerate(process.inputs) if s in fifos]
    outs = [k for k, s in enumerate(process.outputs) if s in fifos]
    if len(ins) == len(process.inputs) and len(outs) == len(process.outputs):
        return process
    return Process(
        process.name,
        _masked(process.table, ins, outs),
        tuple(process.inputs[k] for k in ins),
        tuple(process.outputs[k] for k in outs),
        process.depth,
    )


def _masked(table: Table, ins: list[int], outs: list[int]) -> Table:
    def ports(mask: int, kept: list[int]) -> int:
        return sum(1 << new for new, old in enumerate(kept) if mask >> old & 1)

    return tuple(
        Loop(item.times, _masked(item.body, ins, outs))
        if isinstance(item, Loop)
        else Run(item.count, item.delta, ports(item.reads, ins), ports(item.writes, outs))
        for item in table
    )


def _run(states: list[_State]) -> None:
    queue = deque(states)
    for state in states:
        state.queued = True
    while queue:
        state = queue.popleft()
        state.queued = False
        if state.done or not state.advance():
            continue
        neighbours = [f.producer for f in state.ins] + [f.consumer for f in state.outs]
        for other in neighbours:
            if other is not None and not other.queued and not other.done:
                other.queued = True
                queue.append(other)


def _deadlock(waiting: list[_State]) -> BackendError:
    """Follow the waits from any blocked process until they close."""
    state, path = waiting[0], list[tuple[_State, str]]()
    while state not in [s for s, _ in path]:
        fifo = state.blocked
        assert fifo is not None
        empty = fifo.consumer is state
        path.append((state, f"{state.name} waits: {fifo.name} is {'empty' if empty else 'full'}"))
        other = fifo.producer if empty else fifo.consumer
        assert other is not None
        state = other
    first = [s for s, _ in path].index(state)
    lines = [text for _, text in path[first:]]
    return BackendError(
        "the dataflow deadlocks",
        got="".join(f"\n    {line}" for line in lines),
        hint="deepen a stream that is full",
    )


def processes_of(design: StageDesign) -> list[Process]:
    """The processes of a stage."""
    return [Process(e.name, run_table(e), e.inputs, e.outputs, e.depth) for e in design.engines]


def simulate_stage(design: StageDesign, frames: int = 3, *, record: bool = False) -> Trace:
    """Run a stage, fed and drained as fast as it can take and give.

    Raises:
        BackendError: Its FIFOs are too small: it deadlocks.
    """
    depths = {name: s.depth for name, s in design.streams.items()}
    initial = {name: s.initial for name, s in design.streams.items()}
    return simulate(processes_of(design), depths, frames, record=record, initial=initial)


def simulated(design: StageDesign, frames: int = 4) -> StageDesign:
    """The design with its interval and latency simulated handshake by handshake.

    Some seconds for a CIFAR-sized net, minutes for a stage of ResNet-50 (pure Python).

    Args:
        design: A stage with its FIFOs sized.
        frames: How many frames; the interval is that of the last one.
    """
    trace = simulate_stage(design, frames)
    return dataclasses.replace(
        design, interval=trace.interval, latency=trace.latency, simulated=True
    )
