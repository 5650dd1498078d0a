"""A valid schedule of a whole stage, found fast: run tables in chunks, a paced source.

Every engine's run table is divided into some thousands of chunks of firings. A chunk starts when
the one before has ended and all tokens that it reads have been written by chunks that ended; it
then takes its busy cycles. Along an engine numpy computes all times at once:

```text
end[k] = C[k+1] + max over i <= k of (ready[i] - C[i])       C: busy cycles before a chunk
```

Pipelines are rigid: what entered with busy cycle c leaves with busy cycle c + D, of this frame or a
later one.

The source delivers a frame per interval T, and every frame is scheduled exactly T after the one
before: with ``m[i] = ready[i] - C[i]`` and B the busy cycles of a frame (at most T), the last frame
asks for ``end[k] >= C[k+1] + max(m) - (T - B)``, and earlier ones for less.

What a FIFO holds at most in this schedule (counting what a chunk writes from its start, and what
it reads only from its end) is a sufficient depth: the network *may* then follow the schedule, and
self-timed execution is never later than a schedule that it may follow, because all its times are
maxima of sums (Baccelli et al., Synchronization and Linearity). So nothing deadlocks and the
interval is that of the busiest engine; `pipec.backends.fpga.cycles` gives the exact cycles.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from pipec.backends.fpga.design import StageDesign
from pipec.backends.fpga.engines.base import Engine, Nest, busy_cycles, nest_table
from pipec.backends.fpga.engines.gear import Dwc
from pipec.backends.fpga.engines.map import Map
from pipec.backends.fpga.engines.matmul import Matmul
from pipec.backends.fpga.engines.memory import Load
from pipec.backends.fpga.engines.mover import Fetch, Refill, Spill, Store
from pipec.backends.fpga.engines.mvu import Mvu
from pipec.backends.fpga.engines.route import Const, Fork, Repeat
from pipec.backends.fpga.engines.swg import Swg
from pipec.backends.fpga.engines.window import Row, image_rows
from pipec.backends.fpga.runs import Loop, Run, Runs

Numbers = NDArray[np.float64]
CHUNKS = 6144
"""Chunks per engine and frame, about: what limits how tight the depths are."""


@dataclass(frozen=True)
class Chunks:
    """Cumulative busy cycles, and tokens read and written, after each chunk of one frame.

    Attributes:
        points: ``[chunks][1 + reads + writes]``.
        inputs: Number of read ports.
    """

    points: Numbers
    inputs: int

    @property
    def busy(self) -> Numbers:
        """Busy cycles up to the end of each chunk."""
        return self.points[:, 0]

    def reads(self, port: int) -> Numbers:
        """Tokens read from a port so far."""
        return self.points[:, 1 + port]

    def writes(self, port: int) -> Numbers:
        """Tokens written to a port so far."""
        return self.points[:, 1 + self.inputs + port]


def chunks_of(engine: Engine) -> Chunks:
    """The chunks of an engine, all ports counted."""
    return _chunks(engine.nest, engine.ii, len(engine.inputs), len(engine.outputs))


@lru_cache(maxsize=1024)
def _chunks(nest: Nest, ii: int, inputs: int, outputs: int) -> Chunks:
    if isinstance(nest, Swg):
        return Chunks(_window_points(nest, ii), inputs)
    return Chunks(_points(nest_table(nest, ii, inputs), inputs, outputs, CHUNKS)[0], inputs)


def _window_points(nest: Swg, ii: int) -> Numbers:
    """Chunks of a window generator, straight from its rows."""
    share = max(CHUNKS // (nest.oh * nest.batch), 4)
    parts, total = [], np.zeros(3)
    for row in image_rows(nest):
        points = _row_points(row, ii, share)
        size = points[-1]
        starts = np.arange(row.times)[:, None, None] * size
        parts.append((starts + points).reshape(-1, 3) + total)
        total = total + size * row.times
    image = np.concatenate(parts)
    rows: Numbers = (np.arange(nest.batch)[:, None, None] * total + image).reshape(-1, 3)
    return rows


def _row_points(row: Row, ii: int, limit: int) -> Numbers:
    """Chunks of one row of windows: cycles, tokens taken, tokens emitted."""
    each = np.stack((np.full(len(row.codes), ii), row.codes & 1, row.codes >> 1), axis=1)
    ends = np.cumsum(row.counts)
    total = np.cumsum(each * row.counts[:, None], axis=0)
    at = _ends(int(ends[-1]), limit)
    run = np.searchsorted(ends, at, side="left")
    return np.asarray(total[run] - each[run] * (ends[run] - at)[:, None], dtype=np.float64)


def _ends(count: int, limit: int) -> NDArray[np.int64]:
    """Ends of about ``limit`` equal parts of ``count``."""
    parts = min(count, limit)
    return np.asarray(np.arange(1, parts + 1, dtype=np.int64) * count // parts)


def _points(table: Runs, inputs: int, outputs: int, limit: int) -> tuple[Numbers, Numbers]:
    """Ends of about ``limit`` chunks of a table, and its totals."""
    share = max(limit // max(len(table), 1), 4)
    parts, total = [], np.zeros(1 + inputs + outputs)
    for item in table:
        if isinstance(item, Run):
            ports = [item.reads >> k & 1 for k in range(inputs)]
            ports += [item.writes >> k & 1 for k in range(outputs)]
            each = np.array([item.delta, *ports], dtype=np.float64)
            found, size = _ends(item.count, share)[:, None] * each, each * item.count
        else:
            found, size = _loop_points(item, inputs, outputs, share)
        parts.append(found + total)
        total = total + size
    return np.concatenate(parts), total


def _loop_points(loop: Loop, inputs: int, outputs: int, limit: int) -> tuple[Numbers, Numbers]:
    """Chunks within each repetition if there is room for them, else of several repetitions."""
    body, size = _points(loop.body, inputs, outputs, max(limit // loop.times, 1))
    if len(body) * loop.times <= 2 * limit:
        starts = np.arange(loop.times)[:, None, None] * size
        return (starts + body).reshape(-1, len(size)), size * loop.times
    return _ends(loop.times, limit)[:, None] * size, size * loop.times


@dataclass(frozen=True)
class Transfers:
    """One side of a stream in the schedule of one frame.

    Attributes:
        starts: When each chunk starts; ``ends`` when it ends.
        counts: Tokens up to and with each chunk.
    """

    starts: Numbers
    ends: Numbers
    counts: Numbers


@dataclass(frozen=True)
class Schedule:
    """When tokens are written and read, per stream, and when the last engine ends.

    Attributes:
        written: By stream, as tokens leave their writer's pipeline; ``read`` likewise.
        fired: Starts and ends of every engine's chunks.
        end: Cycle at which everything of the frame has been written.
    """

    written: Mapping[str, Transfers]
    read: Mapping[str, Transfers]
    fired: Mapping[str, tuple[Numbers, Numbers]]
    end: float


def schedule(
    design: StageDesign,
    interval: float | None,
    arrivals: Mapping[str, Transfers] | None = None,
    waiting: Collection[str] | None = None,
) -> Schedule:
    """The schedule of one frame.

    Args:
        design: A stage.
        interval: Cycles from frame to frame; None for one frame alone, fed at full speed.
        arrivals: When the tokens of a stage input arrive, by value; evenly where it is not said.
        waiting: Inputs that wait elsewhere until they are read, by value. If given, tokens that are
            repeated wait too, before that.
    """
    placed = _PartialSchedule(design, interval)
    for port in design.inputs:
        if port.stream and port.value not in (waiting or ()):
            tokens = design.streams[port.stream].tokens
            counts = _ends(tokens, CHUNKS).astype(np.float64)
            times = counts * ((interval or tokens) / tokens)
            evenly = Transfers(times, times, counts)
            placed.written[port.stream] = (arrivals or {}).get(port.value, evenly)
    end, from_memory = 0.0, dict[str, Engine]()
    for engine in design.engines:
        if isinstance(engine.nest, Load | Const):
            continue
        if isinstance(engine.nest, Fetch | Refill):
            from_memory[engine.outputs[0]] = engine
        for name in engine.inputs:
            if name in from_memory:
                mover = from_memory[name]
                placed.place(mover, placed.first_read(engine, name, set(from_memory)) - mover.depth)
        end = max(end, placed.place(engine))
    found = Schedule(placed.written, placed.read, placed.fired, end)
    if interval is None:
        return found
    late = {e.name for e in design.engines if _may_be_late(e, design, waiting is not None)}
    return _delay(design, found, late, interval)


class _PartialSchedule:
    """The engines scheduled so far."""

    def __init__(self, design: StageDesign, interval: float | None) -> None:
        self.interval = interval
        self.written: dict[str, Transfers] = {}
        self.read: dict[str, Transfers] = {}
        self.fired: dict[str, tuple[Numbers, Numbers]] = {}
        self.users = {s: e for e in design.engines for s in e.inputs}
        self._paces = _paces(design, self.users)

    def place(self, engine: Engine, earliest: float = 0.0) -> float:
        """Schedule an engine, behind those that it reads; when all that it writes is visible."""
        chunks = chunks_of(engine)
        starts, ends = self._times(engine, self.written, earliest)
        for k, name in enumerate(engine.inputs):
            self.read[name] = Transfers(starts, ends, chunks.reads(k))
        self.fired[engine.name] = starts, ends
        self.written |= _time_writes(engine, starts, ends, self.interval)
        return float(ends[-1]) + engine.depth

    def first_read(self, engine: Engine, name: str, waiting: Collection[str]) -> float:
        """When an engine would read the first token of an input, if those in memory were there."""
        starts, _ = self._times(engine, {s: w for s, w in self.written.items() if s not in waiting})
        return float(starts[np.argmax(chunks_of(engine).reads(engine.inputs.index(name)) > 0)])

    def _times(
        self, engine: Engine, written: Mapping[str, Transfers], earliest: float = 0.0
    ) -> tuple[Numbers, Numbers]:
        """Start and end of every chunk."""
        chunks = chunks_of(engine)
        busy = _pace(_busy(engine, chunks, self.users), chunks, self._paces.get(engine.name, 0))
        ready = np.maximum(_ready(engine, chunks, written), earliest)
        before = np.concatenate((np.zeros(1), busy[:-1]))
        latest = np.maximum.accumulate(ready - before)
        if self.interval is not None:
            latest = np.maximum(latest, latest[-1] - (self.interval - busy[-1]))
        return latest + before, latest + busy


def _paces(design: StageDesign, users: Mapping[str, Engine]) -> dict[str, int]:
    """Cycles that engines may take for a frame because memory takes as many to store or fetch it.

    Faster, they would only fill the FIFO in front of what waits for memory: an engine that writes
    to memory, or reads from it, and before it what goes token by token.
    """
    found: dict[str, int] = {}
    for engine in design.engines:
        if isinstance(engine.nest, Fetch | Refill) and engine.outputs[0] in users:
            name = users[engine.outputs[0]].name
            found[name] = max(found.get(name, 0), busy_cycles(engine))
    for engine in reversed(design.engines):
        for reader in (users[name] for name in engine.outputs if name in users):
            pace = 0
            if isinstance(reader.nest, Store | Spill):
                pace = busy_cycles(reader)
            elif isinstance(reader.nest, Dwc | Fork | Map):
                pace = found.get(reader.name, 0)
            found[engine.name] = max(found.get(engine.name, 0), pace)
    return found


def _pace(busy: Numbers, chunks: Chunks, cycles: float) -> Numbers:
    """Busy cycles of an engine whose output is taken within so many cycles, if it is faster."""
    if cycles <= busy[-1]:
        return busy
    emitted = chunks.writes(0)
    slower: Numbers = busy + emitted * ((cycles - busy[-1]) / emitted[-1])
    return slower


def _delay(design: StageDesign, asap: Schedule, late: Collection[str], interval: float) -> Schedule:
    """The schedule with the tokens of some engines made as late as their readers allow."""
    users = {s: e for e in design.engines for s in e.inputs}
    written, read, fired = dict(asap.written), dict(asap.read), dict(asap.fired)
    for engine in reversed(design.engines):
        name = engine.outputs[0] if engine.outputs else ""
        if name not in read or engine.name not in late:
            continue
        chunks, first = chunks_of(engine), asap.fired[engine.name]
        due, busy = _due(engine, read[name], interval), _busy(engine, chunks, users)
        before = np.concatenate((np.zeros(1), busy[:-1]))
        begin = max((due - busy).min(), first[0][0])
        latest = np.minimum(due, begin + interval) - busy  # a frame begins where the last one ends
        latest = np.minimum.accumulate(latest[::-1])[::-1]
        starts, ends = np.maximum(latest + before, first[0]), np.maximum(latest + busy, first[1])
        fired[engine.name] = starts, ends
        for port, source in enumerate(engine.inputs):
            read[source] = Transfers(starts, ends, chunks.reads(port))
        written |= _time_writes(engine, starts, ends, interval)
    return Schedule(written, read, fired, asap.end)


def _may_be_late(engine: Engine, design: StageDesign, repeats: bool) -> bool:
    """Whether what an engine reads waits in fewer bits than what it writes, or in memory.

    What is behind a window generator to convert its tokens' width is late too.
    """
    if isinstance(engine.nest, Fetch | Refill) or (repeats and isinstance(engine.nest, Repeat)):
        return True
    if isinstance(engine.nest, Swg):
        source, windows = design.streams[engine.inputs[0]], design.streams[engine.outputs[0]]
        return windows.tokens * windows.token_bits > source.tokens * source.token_bits
    producer = design.streams[engine.inputs[0]].producer if engine.inputs else None
    return isinstance(engine.nest, Dwc) and any(
        e.name == producer and isinstance(e.nest, Swg) for e in design.engines
    )


def _due(engine: Engine, read: Transfers, interval: float) -> Numbers:
    """When each chunk must have ended so that tokens have left the pipeline when they are read."""
    steps, counts = chunks_of(engine).busy, chunks_of(engine).writes(0)
    before = np.concatenate((np.zeros(1), counts[:-1]))
    at = np.append(read.starts, np.inf)[np.searchsorted(read.counts, before, side="right")] - 1
    frames, inside = _steps(steps, steps + engine.depth)
    due = np.full(len(steps), np.inf)
    np.minimum.at(due, np.searchsorted(steps, inside), at - frames * interval)
    return due


def _steps(steps: Numbers, at: Numbers) -> tuple[Numbers, Numbers]:
    """Steps of a pipeline that goes on from frame to frame: frames later, and step inside."""
    frames: Numbers = np.ceil(at / steps[-1]) - 1
    return frames, at - frames * steps[-1]


def _time_writes(
    engine: Engine, starts: Numbers, ends: Numbers, interval: float | None
) -> dict[str, Transfers]:
    """When the tokens of each chunk leave a rigid pipeline, by stream.

    It moves while it fires: tokens leave ``depth`` busy cycles after they entered, the last ones of
    a frame with the first firings of the next. Of a frame alone (``interval`` None) these leave by
    themselves.
    """
    chunks, fired = chunks_of(engine), (starts, ends)
    before = np.concatenate((np.zeros(1), chunks.busy[:-1]))
    first, last = (
        _time(chunks.busy, fired, steps + engine.depth, interval) - 1
        for steps in (before, chunks.busy)
    )
    return {name: Transfers(first, last, chunks.writes(k)) for k, name in enumerate(engine.outputs)}


def _time(
    steps: Numbers, fired: tuple[Numbers, Numbers], at: Numbers, interval: float | None
) -> Numbers:
    """When a pipeline whose chunks start and end so has made so many steps."""
    frames, inside = _steps(steps, at)
    late = frames * interval if interval is not None else np.maximum(at - steps[-1], 0.0)
    if interval is None:
        inside = at - late
    k = np.searchsorted(steps, inside)
    size = np.maximum(np.diff(steps, prepend=0.0)[k], 1e-9)
    starts, ends = fired
    return np.asarray(late + ends[k] - (steps[k] - inside) / size * (ends - starts)[k])


def _busy(engine: Engine, chunks: Chunks, users: Mapping[str, Engine]) -> Numbers:
    """Busy cycles up to the end of each chunk, as scheduled.

    A window generator emits no faster than its reader takes, or it would only fill the FIFO in
    between; all other engines go as fast as they can.
    """
    busy = chunks.busy
    reader = users.get(engine.outputs[0]) if isinstance(engine.nest, Swg) else None
    if reader is None or isinstance(reader.nest, Matmul):
        return busy
    if isinstance(reader.nest, Mvu) and reader.nest.block > 1:  # it takes them in bursts too
        return busy
    return _pace(busy, chunks, chunks_of(reader).busy[-1])


def _ready(engine: Engine, chunks: Chunks, written: Mapping[str, Transfers]) -> Numbers:
    """When all tokens that each chunk reads are visible."""
    ready = np.zeros(len(chunks.busy))
    for k, name in enumerate(engine.inputs):
        if name in written:
            source, needed = written[name], chunks.reads(k)
            which = np.searchsorted(source.counts, needed, side="left")
            visible = source.ends[which.clip(max=len(source.ends) - 1)] + 1
            ready = np.maximum(ready, np.where(needed > 0, visible, 0.0))
    return ready


def peak_tokens(written: Transfers, read: Transfers, interval: float) -> int:
    """Most tokens that a stream holds when frames follow one another by ``interval`` cycles.

    Example:
        >>> at = np.array([1.0, 2.0, 3.0])
        >>> peak_tokens(Transfers(at, at, at), Transfers(at + 5, at + 5, at), 10.0)
        3
    """
    frames = int(max(read.ends[-1] - written.starts[0], 0.0) // interval) + 2
    total = read.counts[-1]
    shifts = np.arange(frames)[:, None]
    ends = (read.ends + shifts * interval).reshape(-1)
    counts = (read.counts + shifts * total).reshape(-1)
    last = frames - 1
    done = np.searchsorted(ends, written.starts + last * interval - 1.0, side="right")
    popped = np.concatenate(([0.0], counts))[done]
    return int((written.counts + last * total - popped).max())
