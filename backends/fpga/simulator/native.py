"""The simulator: `simulate.cpp`, compiled once per process, fed through a pipe.

It visits handshakes, not cycles, and the result does not depend on the order of visits, because
every time follows from earlier ones alone (`pipec.backends.fpga.runs`). A process is advanced until
it needs a token that nobody has produced yet, or a slot that nobody has freed; whoever it could now
unblock is queued. When nothing moves and something is unfinished, the chain of waits closes into
the deadlock that is reported.
"""

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import as_file, files
from itertools import accumulate, chain
from pathlib import Path

import numpy as np

from pipec.backends.fpga.runs import Run, Runs, tokens
from pipec.backends.fpga.toolchain import compile_cached, run_command
from pipec.errors import BackendError


@dataclass(frozen=True)
class Process:
    """One process of a network, as a simulator sees it.

    Attributes:
        name: For messages.
        table: Run table of one frame.
        inputs: Stream names by read port; ``outputs`` by write port.
        depth: Pipeline depth D.
        free: Whether it moves on by itself where others are rigid, as a link does.
    """

    name: str
    table: Runs
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    depth: int = 1
    free: bool = False


@dataclass(frozen=True)
class Flow:
    """The traffic of one stream.

    Attributes:
        tokens: Tokens written.
        empty: Cycles that its reader waited for tokens; ``full`` its writer for slots.
        last_empty: ``empty`` of the last frame alone; ``last_full`` likewise.
        digest: Hash of the cycles when its tokens became visible: FNV-1a over whole 64-bit words.
    """

    tokens: int
    empty: int
    full: int
    last_empty: int
    last_full: int
    digest: int


@dataclass(frozen=True)
class Trace:
    """The result of a simulation.

    Attributes:
        ends: Per frame the cycle at which its last output token is visible: the maximum over the
            processes that write to no other (over all if there is none such).
        flows: By stream name, all frames.
        steady: Whether every later frame repeats the last one, exactly ``interval`` later: the
            times of the last firing of every process, of the last pops of every stream (as many as
            it has slots), and of its last tokens (as many as it held at reset) have moved on by
            the same number of cycles from the frame before, and the future of this max-plus system
            depends on nothing else.
        handshakes: Stream name to the cycles at which its tokens become visible, if recorded.
    """

    ends: tuple[int, ...]
    flows: Mapping[str, Flow]
    steady: bool = False
    handshakes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def interval(self) -> int:
        """Cycles between the last two frames (all cycles if there was one)."""
        return self.ends[-1] - (self.ends[-2] if len(self.ends) > 1 else 0)

    @property
    def latency(self) -> int:
        """Cycles from the first firing to the end of the first frame."""
        return self.ends[0]


@dataclass(frozen=True)
class Wait:
    """A process that cannot go on: which stream it waits for, and whether that is empty or full."""

    process: str
    stream: str
    empty: bool


def in_flight(process: Process, *, rigid: bool) -> int:
    """Slots that tokens in its pipeline own, in each stream that it writes."""
    return 0 if rigid and not process.free else process.depth


def slots_of(
    processes: Iterable[Process],
    depths: Mapping[str, int],
    initial: Mapping[str, int] | None = None,
    *,
    rigid: bool = False,
) -> dict[str, tuple[int, int]]:
    """Slots of each stream with both a writer and a reader, and the tokens that it holds at reset.

    Slots are N + D, or N behind a rigid pipeline. Arguments are those of `simulate`.
    """
    tokens, read = initial or {}, {s for p in processes for s in p.inputs}
    return {
        s: (depths[s] + in_flight(p, rigid=rigid), tokens.get(s, 0))
        for p in processes
        for s in p.outputs
        if s in read
    }


def writes(process: Process) -> dict[str, int]:
    """Tokens per frame that a process writes, by stream."""
    return {s: tokens(process.table, k, written=True) for k, s in enumerate(process.outputs)}


def deadlock(waits: list[Wait], processes: Iterable[Process]) -> BackendError:
    """The error that names the cycle of waits, found by following them from any of them."""
    by_name = {w.process: w for w in waits}
    writer = {s: p.name for p in processes for s in p.outputs}
    reader = {s: p.name for p in processes for s in p.inputs}
    wait, path = waits[0], list[Wait]()
    while wait not in path:
        path.append(wait)
        other = (writer if wait.empty else reader)[wait.stream]
        if other not in by_name:
            return BackendError(
                "a stream's writer and reader move unlike numbers of tokens per frame",
                where=wait.stream,
                got=f"{wait.process} waits, {other} is done",
            )
        wait = by_name[other]
    closed = path[path.index(wait) :]
    return BackendError(
        "the dataflow deadlocks",
        got="".join(
            f"\n    {w.process} waits: {w.stream} is {'empty' if w.empty else 'full'}"
            for w in closed
        ),
        hint="deepen a stream that is full",
    )


_OUTSIDE = -1
"""Number of a stream that nobody inside writes, or reads: it is always ready."""
SOURCE = files("pipec.backends.fpga") / "simulator" / "simulate.cpp"


def binary() -> Path:
    """The compiled simulator.

    Raises:
        BackendError: There is no compiler, or it fails.
    """
    with as_file(SOURCE) as source:
        return compile_cached("simulate", ["-std=c++17", "-O2", source], "the simulator")


def simulate(
    processes: Sequence[Process],
    depths: Mapping[str, int],
    frames: int = 1,
    *,
    record: bool = False,
    until_steady: bool = False,
    initial: Mapping[str, int] | None = None,
    rigid: bool = False,
    call: bool = False,
) -> Trace:
    """Run a network of processes.

    Args:
        processes: Any order; every stream has one writer and one reader among them, or none on
            one side (a source that is always ready, a sink that always takes).
        depths: Declared FIFO depth per stream.
        frames: Frames to run, at most.
        record: Keep the cycle of every handshake.
        until_steady: Stop at the first frame from which on all frames are alike.
        initial: Tokens that a stream holds at reset (a feedback loop needs some); 0 where absent.
        rigid: Whether a pipeline that waits, for a token or a slot, stands still as a whole
            (``style=stp``) if it is not `free`; else all are free-running (``frp``).
        call: Whether rigid pipelines end, and what is in them leaves, behind the last frame; else
            further frames follow.

    Raises:
        BackendError: The network deadlocks, and the cycle of waits is reported; or there is no C++
            compiler.
    """
    slots = slots_of(processes, depths, initial, rigid=rigid)
    with tempfile.TemporaryDirectory(prefix="pipec-cycles-") as folder:
        log = Path(folder) / "handshakes"
        head = frames, int(until_steady), int(call), int(record)
        done = run_command([binary(), log], input=_encode(processes, slots, head, rigid=rigid))
        if done.returncode != 0:
            raise BackendError("the simulator failed", got=f"exit code {done.returncode}")
        rows = [line.split() for line in done.stdout.splitlines()]
        names = list(slots)
        waits = [
            Wait(processes[int(row[1])].name, names[int(row[2])], row[3] == "1")
            for row in rows
            if row[0] == "wait"
        ]
        if waits:
            raise deadlock(waits, processes)
        totals = [(*map(int, row[1:-1]), int(row[-1], 16)) for row in rows if row[0] == "stream"]
        flows = {name: Flow(*numbers) for name, numbers in zip(names, totals, strict=True)}
        ends = tuple(int(row[1]) for row in rows if row[0] == "end")
        logs = dict[str, tuple[int, ...]]()
        if record:
            ends_of = accumulate(flow.tokens for flow in flows.values())
            parts = np.split(np.fromfile(log, dtype=np.int64), [*ends_of])
            logs = {name: tuple(part.tolist()) for name, part in zip(flows, parts, strict=False)}
        return Trace(ends, flows, rows[-1][1] == "1", logs)


def _encode(
    processes: Sequence[Process], slots: Mapping[str, tuple[int, int]], head: Sequence[int], *,
    rigid: bool,
) -> str:  # fmt: skip
    """The network as `simulate.cpp` reads it."""
    number = {name: k for k, name in enumerate(slots)}
    words = [*head, len(number), *chain.from_iterable(slots.values()), len(processes)]
    for p in processes:
        code = _code(p.table)
        words += [p.depth, int(p.free or not rigid)]
        words += [len(p.inputs), *(number.get(s, _OUTSIDE) for s in p.inputs)]
        words += [len(p.outputs), *(number.get(s, _OUTSIDE) for s in p.outputs), len(code)]
        words.extend(chain.from_iterable(code))
    return " ".join(map(str, words))


def _code(table: Runs) -> list[tuple[int, ...]]:
    """The items of a table: runs, and heads of loops in front of their bodies."""
    items: list[tuple[int, ...]] = []
    for item in table:
        if isinstance(item, Run):
            ports = (*_ports(item.reads), *_ports(item.writes))
            items.append((0, item.count, item.delta, *ports))
        else:
            body = _code(item.body)
            items += [(1, item.times, len(body)), *body]
    return items


@cache
def _ports(mask: int) -> tuple[int, ...]:
    """How many bits a mask has, and which."""
    ports = [k for k in range(mask.bit_length()) if mask >> k & 1]
    return (len(ports), *ports)
