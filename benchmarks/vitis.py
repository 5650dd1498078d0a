"""Simulated cycles of dataflow designs against AMD's RTL co-simulation of the same designs.

``python -m benchmarks.vitis [FILE ...]`` reads files of the form ``dataflow-1``: processes with
their pipelined loops (trip count, II and depth as Vitis HLS reported them), the iterations that
access each FIFO, and the cycles that co-simulation measured. Every design is run by the simulator
that estimates stages (`pipec.backends.fpga.cycles`, rigid pipelines) and nothing is fitted:

* Iteration i of a loop begins at ``i * II``; it reads a cycle later (at once if the depth is 1)
  and writes ``depth - 1`` cycles after it began. The loop takes ``(trip - 1) * II + depth``.
* What waits holds back its whole process. A word can be read a cycle after it was written.
* A process starts in cycle 1, or 2 cycles after the processes that hand it an array have finished;
  it has finished one cycle after its last loop.

The accesses of one cycle of a process wait for one another; ``--one-by-one`` lets each wait alone,
in the order in which they are listed.
"""

import argparse
import gzip
import json
import math
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipec.backends.fpga.runs import Run
from pipec.backends.fpga.simulator.native import Process, simulate
from pipec.errors import BackendError

FILE = Path(__file__).resolve().parents[2] / "shared" / "data" / "vitis" / "dataflow.json.gz"
LIMIT = 0.005
"""Largest relative error that passes."""

Json = Mapping[str, Any]
Steps = NDArray[np.int64]


@dataclass(frozen=True)
class Row:
    """One design.

    Attributes:
        design: Its name.
        cosim: Cycles that RTL co-simulation measured; ``vendor`` the tool's own estimate.
        simulated: Cycles that we say.
    """

    design: str
    cosim: int
    vendor: int
    simulated: int

    @property
    def error(self) -> float:
        """Relative error of the simulation."""
        return abs(self.simulated - self.cosim) / self.cosim

    @property
    def vendor_error(self) -> float:
        """Relative error of the tool's own estimate."""
        return abs(self.vendor - self.cosim) / self.cosim


def process(design: Json, index: int, *, together: bool) -> Process:
    """A process whose firings are its accesses, in the order of its own clock.

    Args:
        design: A record.
        index: Which of its processes.
        together: Whether the accesses of one cycle wait for one another.
    """
    record = design["processes"][index]
    ends, accesses = _accesses(record)
    after = [f"done{before}_{index}" for before in record["after"]]
    later = [k for k, other in enumerate(design["processes"]) if index in other["after"]]
    done = ["done", *(f"done{index}_{k}" for k in later)]
    reads = sorted({f for op, fifo, _, _ in accesses for f in [fifo] if op == "r"})
    writes = sorted({f for op, fifo, _, _ in accesses for f in [fifo] if op == "w"})
    inputs = [*(str(f) for f in reads), *after]
    outputs = [*(str(f) for f in writes), *(d if d != "done" else f"end{index}" for d in done)]
    bit = {("r", f): 1 << k for k, f in enumerate(reads)}
    bit |= {("w", f): 1 << k for k, f in enumerate(writes)}
    waits = (1 << len(inputs)) - (1 << len(reads))
    finishes = (1 << len(outputs)) - (1 << len(writes))
    # The token that says `finished` is read in the cycle before the finish.
    first = 2 if after else 0
    table = [Run(1, 0, waits, 0)]
    at = 0
    for step, masks in _firings(accesses, bit, together=together):
        table.append(Run(1, step + first - at, *masks))
        at = step + first
    table.append(Run(1, ends + first - at, 0, finishes))
    return Process(f"{index}_{record['name']}", _merge_runs(table), tuple(inputs), tuple(outputs))


def _accesses(record: Json) -> tuple[int, list[tuple[str, int, int, Steps]]]:
    """When a process ends, and its accesses: kind, FIFO, place in the listing, steps."""
    begin, place = 0, 0
    found: list[tuple[str, int, int, Steps]] = []
    for loop in record["loops"]:
        for _ in range(loop["runs"]):
            for access in loop["access"]:
                late = min(1, loop["depth"] - 1) if access["op"] == "r" else loop["depth"] - 1
                steps = begin + late + _iterations(access["at"]) * loop["ii"]
                for fifo in access["fifos"]:
                    found.append((access["op"], fifo, place, steps))
                    place += 1
            begin += (loop["trip"] - 1) * loop["ii"] + loop["depth"]
    return begin, found


def _iterations(boxes: Sequence[Any]) -> Steps:
    """The iterations that a list of boxes stands for."""
    parts = []
    for base, levels in boxes:
        points = np.array([base], dtype=np.int64)
        for stride, count in levels:
            points = (points[:, None] + stride * np.arange(count, dtype=np.int64)).reshape(-1)
        parts.append(points)
    return np.concatenate(parts)


def _firings(
    accesses: Sequence[tuple[str, int, int, Steps]],
    bit: Mapping[tuple[str, int], int],
    *,
    together: bool,
) -> Iterator[tuple[int, tuple[int, int]]]:
    """Steps in order, each with the masks of what is read and written."""
    if not accesses:
        return
    steps = np.concatenate([s for *_, s in accesses])
    which = np.repeat(np.arange(len(accesses)), [len(s) for *_, s in accesses])
    order = np.lexsort((which, steps))
    masks = [(bit[op, fifo], 0) if op == "r" else (0, bit[op, fifo]) for op, fifo, *_ in accesses]
    now, reads, writes = -1, 0, 0
    for step, access in zip(steps[order].tolist(), which[order].tolist(), strict=True):
        read, write = masks[access]
        again = reads & read or writes & write
        if now >= 0 and (step != now or again or not together):
            yield now, (reads, writes)
            reads = writes = 0
        now, reads, writes = step, reads | read, writes | write
    yield now, (reads, writes)


def _merge_runs(table: Sequence[Run]) -> tuple[Run, ...]:
    """Equal neighbours as one run."""
    found: list[Run] = []
    for run in table:
        last = found[-1] if found else None
        if last and (last.delta, last.reads, last.writes) == (run.delta, run.reads, run.writes):
            found[-1] = Run(last.count + 1, run.delta, run.reads, run.writes)
        else:
            found.append(run)
    return tuple(found)


def simulate_design(design: Json, *, together: bool = True) -> int:
    """Cycles of a design as `cosim.latency_max` counts them.

    Raises:
        BackendError: It deadlocks, or there is no C++ compiler.
    """
    count = len(design["processes"])
    processes = [process(design, k, together=together) for k in range(count)]
    last = tuple(f"end{k}" for k in range(count))
    processes.append(Process("end", (Run(1, 0, (1 << count) - 1, 0),), last))
    depths = {str(k): fifo["depth"] for k, fifo in enumerate(design["fifos"])}
    depths |= {s: 1 for p in processes for s in p.outputs if not s.isdigit()}
    trace = simulate(processes, depths, rigid=True)
    # The first firing is in cycle 0 and processes start in 1; the end is seen a cycle after the
    # last process ends, which counts as finished then, and takes a cycle itself.
    return trace.latency


def rows_of(path: Path, *, together: bool = True) -> list[Row]:
    """All designs of a file, simulated."""
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        data = json.load(file)
    if data.get("schema") != "dataflow-1":
        raise BackendError(f"{path} is no list of designs", got=data.get("schema"))
    return [
        Row(
            d["design"],
            d["cosim"]["latency_max"],
            d["csynth"]["latency_max"],
            simulate_design(d, together=together),
        )
        for d in data["designs"]
    ]


def _line(name: str, errors: Sequence[float]) -> str:
    middle, mean = statistics.median(errors), statistics.fmean(errors)
    return f"{name}: median {middle:.4%}, mean {mean:.4%}, worst {max(errors):.3%}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table; 1 if a design is further off than half a per cent."""
    parser = argparse.ArgumentParser(prog="benchmarks.vitis", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", default=[FILE])
    parser.add_argument("--one-by-one", action="store_true", help="accesses wait alone")
    parser.add_argument("--json", action="store_true", help="print JSON data instead of a table")
    args = parser.parse_args(arguments)
    missing = [str(f) for f in args.files if not f.is_file()]
    if missing:
        print(f"no such file: {', '.join(missing)}", file=sys.stderr)
        return 2
    rows = [r for f in args.files for r in rows_of(f, together=not args.one_by_one)]
    if args.json:
        print(json.dumps([asdict(r) | {"error": r.error} for r in rows], indent=1))
    else:
        width = max(len(r.design) for r in rows)
        print(f"{'design':{width}}  {'RTL cycles':>12} {'simulated':>12}   error   vendor's")
        for r in rows:
            print(
                f"{r.design:{width}}  {r.cosim:12,} {r.simulated:12,} {r.error:7.3%} "
                f"{r.vendor_error:10.2%}"
            )
        print(_line(f"{len(rows)} designs, simulated", [r.error for r in rows]))
        print(_line("the tool's own estimate", [r.vendor_error for r in rows]))
    return int(any(r.error > LIMIT or math.isnan(r.error) for r in rows))


if __name__ == "__main__":
    sys.exit(main())
