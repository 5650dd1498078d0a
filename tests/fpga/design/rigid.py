"""Pipelines that stall as a whole, to the cycle: what `style=flp` and `style=stp` do.

A rigid pipeline is a shift register with one enable. It moves in **steps**; step p happens in cycle
c(p), and a cycle without a step is one in which everything stands still. With N slots in a stream
(in-flight tokens own none) and the D of `pipec.backends.fpga.runs`:

```text
push    an iteration that starts in step p writes in step p + D - 1; vis = c(p + D - 1) + 1
c(p)    = max(c(p-1) + 1, pop(m - N) + 1 of every token m that is pushed in step p)
flush   an iteration starts in the first step p >= step of the one before + delta whose cycle finds
        its inputs visible; steps in between carry bubbles
stall   it starts in step (one before + delta), and c(p) waits for its inputs too
```

`flush` and `stall` are hence not max-plus: how many steps pass between two starts depends on when
tokens come. But every time still follows from earlier ones alone, so processes may be visited in
any order, as in `plain`. With `stall` the last results of a frame leave only when the inputs of the
next one arrive; frames are therefore run on, as far as the first ones need it.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from benchmarks.rtl.style import Style
from pipec.backends.fpga.runs import Run
from pipec.backends.fpga.simulator.native import Process, Trace, Wait, deadlock, slots_of, writes
from tests.fpga.design.plain import flat, inside

NEVER = 1 << 62


@dataclass(eq=False)
class _Fifo:
    """Cycles at which each token becomes visible, and at which each slot is free again."""

    name: str
    slots: int
    vis: list[int]
    free: list[int] = field(default_factory=list)
    producer: "_Pipeline | None" = None
    consumer: "_Pipeline | None" = None

    def arrival(self) -> int | None:
        """When the next token to be read is visible; None if that is not known yet."""
        return self.vis[len(self.free)] if len(self.free) < len(self.vis) else None

    def room(self) -> int | None:
        """When the slot of the next token to be pushed is free; None if not known yet."""
        before = len(self.vis) - self.slots
        if before < 0:
            return 0
        return self.free[before] if before < len(self.free) else None


class _Pipeline:
    """A process being simulated: its last start, what is in flight, the steps known since."""

    def __init__(self, process: Process, fifos: Mapping[str, _Fifo], *, stalls: bool) -> None:
        self.process, self.stalls = process, stalls
        self.ins = [fifos[s] for s in process.inputs]
        self.outs = [fifos[s] for s in process.outputs]
        self.runs = self._endless()
        self.run = next(self.runs)
        self.marks = [(-self.run.delta, -self.run.delta)]
        self.flight: deque[tuple[int, list[_Fifo]]] = deque()
        self.times: list[int] = []
        self.blocked: _Fifo | None = None
        for fifo in self.ins:
            fifo.consumer = self
        for fifo in self.outs:
            fifo.producer = self

    def _endless(self) -> Iterator[Run]:
        """One run per start, frame after frame; notes when a frame's last start was."""
        while True:
            for run in flat(self.process.table):
                for _ in range(run.count):
                    yield run
            self.times.append(self.marks[0][1])

    def advance(self, frames: int) -> bool:
        """Step as far as is known, up to a number of frames; whether anything moved."""
        moved = self._drain()
        while len(self.times) < frames and self._start():
            moved = True
            self._drain()
        return moved

    @property
    def due(self) -> int:
        """The step in which the next iteration starts, at the earliest."""
        return self.last_start + self.run.delta

    @property
    def last_start(self) -> int:
        """The step of the last start."""
        return self.marks[0][0]

    def _drain(self) -> bool:
        """Push what is in flight; a start cannot delay it, unless it holds up the pipeline."""
        moved = False
        end = self.due if self.stalls else NEVER
        while self.flight and self.flight[0][0] < end:
            step, outs = self.flight[0]
            at = self._known(outs, _Fifo.room)
            if at is None:
                break
            before, cycle = self.marks[-1]
            self._push(max(cycle + step - before, at))
            moved = True
        return moved

    def _known(self, fifos: Sequence[_Fifo], when: Callable[[_Fifo], int | None]) -> int | None:
        """The latest of these times; None, and who blocks, if one is not known yet."""
        latest = 0
        for fifo in fifos:
            if (at := when(fifo)) is None:
                self.blocked = fifo
                return None
            latest = max(latest, at)
        return latest

    def _push(self, cycle: int) -> None:
        """The oldest tokens in flight leave the last stage."""
        step, outs = self.flight.popleft()
        self.marks.append((step, cycle))
        for fifo in outs:
            fifo.vis.append(cycle + 1)

    def _start(self) -> bool:
        """Start the next iteration, if it is known when."""
        reads = [f for k, f in enumerate(self.ins) if self.run.reads >> k & 1]
        writes = [f for k, f in enumerate(self.outs) if self.run.writes >> k & 1]
        arrival = self._known(reads, _Fifo.arrival)
        if arrival is None:
            return False
        step, cycle = self._first_step(0 if self.stalls else arrival)
        cycle = max(cycle, arrival)
        self.flight.append((step + self.process.depth - 1, writes))
        if self.flight[0][0] <= step:  # what leaves by this very step must have a slot
            room = self._known(self.flight[0][1], _Fifo.room)
            if room is None:
                self.flight.pop()
                return False
            cycle = max(cycle, room)
            self._push(cycle)
        self.marks = [(step, cycle), *(m for m in self.marks if m[0] > step)]
        for fifo in reads:
            fifo.free.append(cycle + 1)
        self.run = next(self.runs)
        return True

    def _first_step(self, arrival: int) -> tuple[int, int]:
        """The first step that is due and not before ``arrival``, and its cycle."""
        for (step, cycle), (after, _) in pairwise([*self.marks, (NEVER, NEVER)]):
            found = max(self.due, step, step + arrival - cycle)
            if found < after:
                return found, cycle + found - step
        raise AssertionError("the last mark reaches for ever")

    def wait(self) -> Wait:
        """What it waits for."""
        assert self.blocked is not None
        return Wait(self.process.name, self.blocked.name, self.blocked.consumer is self)


def simulate(
    processes: Sequence[Process],
    depths: Mapping[str, int],
    frames: int,
    style: Style,
    *,
    initial: Mapping[str, int] | None = None,
) -> Trace:
    """Run a network of rigid pipelines.

    Args:
        processes: See `process.links`.
        depths: FIFO depth per stream: all its slots.
        frames: Frames to run.
        style: `Style.FLUSH` or `Style.STALL`.
        initial: Tokens that a stream holds at reset.

    Returns:
        Ends of frames (the last start of the last engines plus their depth) and all handshakes of
        these frames; lost cycles are not charged to streams, ``flows`` is empty.

    Raises:
        BackendError: The network deadlocks; the cycle of waits is reported.
    """
    net = slots_of(processes, depths, initial, rigid=True)
    fifos = {s: _Fifo(s, n, [0] * held) for s, (n, held) in net.items()}
    stalls = style is Style.STALL
    states = [_Pipeline(inside(p, fifos), fifos, stalls=stalls) for p in processes]
    limit = frames
    while True:
        moved = _settle(states, limit)
        if all(len(s.times) >= frames for s in states):
            break
        if not moved:
            raise deadlock([s.wait() for s in states if s.blocked], processes)
        limit += 1
    sinks = [s for s in states if not s.outs] or states
    per_frame = {s: n for p in processes for s, n in writes(p).items()}
    return Trace(
        tuple(max(s.times[k] + s.process.depth for s in sinks) for k in range(frames)),
        {},
        handshakes={
            s: tuple(f.vis[net[s][1] :][: frames * per_frame[s]]) for s, f in fifos.items()
        },
    )


def _settle(states: Sequence[_Pipeline], frames: int) -> bool:
    """Advance all until nothing more is known; whether a connected process moved."""
    queue, moved = deque(states), False
    queued = set(states)
    while queue:
        state = queue.popleft()
        queued.discard(state)
        if not state.advance(frames):
            continue
        moved = moved or bool(state.ins or state.outs)
        for other in [f.producer for f in state.ins] + [f.consumer for f in state.outs]:
            if other is not None and other not in queued:
                queued.add(other)
                queue.append(other)
    return moved
