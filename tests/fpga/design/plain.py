"""The plain simulator: the definition in Python, which the product's must equal.

It visits handshakes, not cycles, and the result does not depend on the order of visits, because
every time is a maximum of sums of earlier times (`pipec.backends.fpga.runs`). A process is
advanced until it needs a token that nobody has produced yet, or a slot that nobody has freed;
whoever it could now unblock is queued. When nothing moves and something is unfinished, the chain
of waits closes into the deadlock that is reported.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache

from pipec.backends.fpga.runs import Loop, Run, Runs
from pipec.backends.fpga.simulator.native import (
    Flow,
    Process,
    Trace,
    Wait,
    deadlock,
    slots_of,
)

FNV_OFFSET, FNV_PRIME, WORD = 0xCBF29CE484222325, 0x100000001B3, (1 << 64) - 1


def flat(table: Runs) -> Iterator[Run]:
    """The runs in order, loops unrolled."""
    for item in table:
        if isinstance(item, Run):
            yield item
        else:
            body = tuple(flat(item.body))
            for _ in range(item.times):
                yield from body


def inside(process: Process, inner: Iterable[str]) -> Process:
    """The process without ports that lead outside, or nowhere: these are always ready."""
    known = frozenset(inner)
    ins = tuple(k for k, s in enumerate(process.inputs) if s in known)
    outs = tuple(k for k, s in enumerate(process.outputs) if s in known)
    return Process(
        process.name,
        _kept(process.table, ins, outs),
        tuple(process.inputs[k] for k in ins),
        tuple(process.outputs[k] for k in outs),
        process.depth,
    )


def _kept(table: Runs, ins: tuple[int, ...], outs: tuple[int, ...]) -> Runs:
    return tuple(
        Loop(item.times, _kept(item.body, ins, outs))
        if isinstance(item, Loop)
        else Run(item.count, item.delta, _numbered(item.reads, ins), _numbered(item.writes, outs))
        for item in table
    )


@cache
def _numbered(mask: int, kept: tuple[int, ...]) -> int:
    """The mask over the kept ports alone, numbered anew."""
    return sum(1 << new for new, old in enumerate(kept) if mask >> old & 1)


def digest(cycles: Iterable[int], start: int = FNV_OFFSET) -> int:
    """FNV-1a over whole 64-bit words: equal for equal lists of handshake cycles."""
    for cycle in cycles:
        start = (start ^ cycle) * FNV_PRIME & WORD
    return start


class _Fifo:
    """Visibility and free times of the last K tokens, in rings; some may lie there at reset."""

    def __init__(self, name: str, slots: int, initial: int) -> None:
        self.name, self.slots = name, slots
        self.vis, self.free = [0] * slots, [0] * slots
        self.initial = self.written = initial
        self.read = self.empty = self.full = 0
        self.before = (0, 0)
        self.producer: _State | None = None
        self.consumer: _State | None = None
        self.log: list[int] = []
        self.digest = FNV_OFFSET

    def pops(self) -> Iterator[int]:
        """Free times of the last K tokens popped, the oldest first."""
        for k in range(self.read, self.read + self.slots):
            yield self.free[k % self.slots]

    def newest(self) -> Iterator[int]:
        """Visibility times of the last tokens, as many as were there at reset."""
        for k in range(self.written - self.initial, self.written):
            yield self.vis[k % self.slots]

    def flow(self) -> Flow:
        last = (self.empty - self.before[0], self.full - self.before[1])
        return Flow(self.written - self.initial, self.empty, self.full, *last, self.digest)


class _State:
    """A process being simulated."""

    def __init__(self, process: Process, fifos: Mapping[str, _Fifo]) -> None:
        self.name, self.table, self.depth = process.name, process.table, process.depth
        self.ins = [fifos[s] for s in process.inputs]
        self.outs = [fifos[s] for s in process.outputs]
        self.runs = iter(flat(self.table))
        self.run: Run | None = None
        self.left = self.frames = 0
        self.time: int | None = None
        self.queued = False
        self.blocked: _Fifo | None = None
        self.times: list[int] = []
        self.shapes: list[tuple[int, ...]] = []
        for fifo in self.ins:
            fifo.consumer = self
        for fifo in self.outs:
            fifo.producer = self

    @property
    def done(self) -> bool:
        return len(self.times) == self.frames

    def next_run(self) -> bool:
        """Take the next run, of the next frame if this one is over; False when all are done."""
        while True:
            self.run = next(self.runs, None)
            if self.run is not None:
                self.left = self.run.count
                return True
            now = self.time or 0
            self.times.append(now)
            seen = [t for f in self.ins for t in f.pops()]
            seen += [t for f in self.outs for t in f.newest()]
            self.shapes.append(tuple(t - now for t in seen))
            self.runs = iter(flat(self.table))
            if self.done:
                return False

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
                f.empty += ready - t
                t = ready
        for f in outs:
            ready = f.free[f.written % f.slots]
            if ready > t:
                f.full += ready - t
                t = ready
        return t

    def wait(self) -> Wait:
        assert self.blocked is not None
        return Wait(self.name, self.blocked.name, self.blocked.consumer is self)


def simulate(
    processes: Sequence[Process],
    depths: Mapping[str, int],
    frames: int = 1,
    *,
    record: bool = False,
    until_steady: bool = False,
    initial: Mapping[str, int] | None = None,
) -> Trace:
    """Run a network of processes.

    Args:
        processes: See `process.links`.
        depths: Declared FIFO depth per stream.
        frames: Frames to run, at most.
        record: Keep the cycle of every handshake.
        until_steady: Stop at the first frame from which on all frames are alike.
        initial: Tokens that a stream holds at reset.

    Raises:
        BackendError: The network deadlocks; the cycle of waits is reported.
    """
    slots = slots_of(processes, depths, initial)
    fifos = {name: _Fifo(name, *each) for name, each in slots.items()}
    states = [_State(inside(p, fifos), fifos) for p in processes]
    steady = False
    for done in range(1, frames + 1):
        for fifo in fifos.values():
            fifo.before = (fifo.empty, fifo.full)
        _frame(states)
        waits = [s.wait() for s in states if not s.done]
        if waits:
            raise deadlock(waits, processes)
        for fifo in fifos.values():
            fifo.digest = digest(fifo.log[len(fifo.log) * (done - 1) // done :], fifo.digest)
        steady = _steady(states)
        if until_steady and steady:
            break
    sinks = [s for s in states if not s.outs] or states
    return Trace(
        tuple(max(s.times[k] + s.depth for s in sinks) for k in range(done)),
        {name: fifo.flow() for name, fifo in fifos.items()},
        steady,
        {name: tuple(fifo.log) for name, fifo in fifos.items()} if record else {},
    )


def _steady(states: list[_State]) -> bool:
    """Whether the last two frames left the same state, moved on by one number of cycles."""
    if len(states[0].times) < 2:
        return False
    steps = {s.times[-1] - s.times[-2] for s in states}
    return len(steps) == 1 and all(s.shapes[-1] == s.shapes[-2] for s in states)


def _frame(states: list[_State]) -> None:
    """Run every process through one more frame, as far as it goes."""
    queue = deque(states)
    for state in states:
        state.frames += 1
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
