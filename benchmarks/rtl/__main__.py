"""``make rtl``: the cycle simulator against SystemVerilog, over all configurations.

    python -m benchmarks.rtl [--simulator verilator] [GROUP or NAME ...]

Prints every configuration (interval and latency, simulated / measured), the largest difference of
each group, and every miss. The exit status is 1 if anything misses.
"""

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import cycle, groupby
from pathlib import Path

import click

from benchmarks.rtl.case import Case
from benchmarks.rtl.cases import cases
from benchmarks.rtl.compare import compare
from benchmarks.rtl.finn import lines
from benchmarks.rtl.rigid import prices
from benchmarks.rtl.simulate import Bench, Observed, Simulator, run_benches
from benchmarks.rtl.table import Row, line, summary
from benchmarks.rtl.tile import Tile
from benchmarks.rtl.values import as_hex, outputs
from pipec.backends.fpga.simulator.native import binary

BATCH = {Simulator.VERILATOR: 12, Simulator.ICARUS: 1}
"""Configurations in one model, at most: Verilator's runs are short and its compiler starts slowly,
Icarus is the other way round."""


Batch = list[tuple[Case, Bench]]


def batches(chosen: Sequence[Case], size: int) -> Iterator[Batch]:
    """Configurations of one group, at most ``size`` at a time."""
    for _, same in groupby(chosen, key=lambda case: case.group):
        found = [(c, Bench(c.name, c.make(), c.frames, c.style)) for c in same]
        for first in range(0, len(found), size):
            yield found[first : first + size]


def rows(chosen: Sequence[Case], simulator: Simulator, jobs: int) -> Iterator[Row]:
    """Run configurations, hold each against the simulator, and its outputs against numpy."""
    parts = list(batches(chosen, BATCH[simulator]))  # models are traced, which no thread may
    binary()  # once, before the threads that use it
    with ThreadPoolExecutor(jobs) as pool:
        for found in pool.map(partial(batch_rows, simulator=simulator), parts):
            yield from found


def batch_rows(batch: Batch, simulator: Simulator) -> list[Row]:
    """Run a few configurations as one model."""
    with tempfile.TemporaryDirectory(prefix="pipec-rtl-") as folder:
        seen = run_benches([bench for _, bench in batch], Path(folder), simulator, values=True)
    return [
        Row(case, compare(bench, seen[bench.name]), *wrong_values(bench, seen[bench.name]))
        for case, bench in batch
    ]


def wrong_values(bench: Bench, found: Observed) -> tuple[int, int]:
    """Output tokens compared with numpy, and how many of them differ."""
    want = None if isinstance(bench.subject, Tile) else outputs(bench.subject)
    pairs = [
        (token, frame)
        for name, tokens in (want or {}).items()
        for token, frame in zip(found.values.get(name, []), cycle(as_hex(tokens)), strict=False)
    ]
    return len(pairs), sum(a != b for a, b in pairs)


@click.command()
@click.option("--simulator", type=click.Choice([s.value for s in Simulator]), default="verilator")
@click.option("--jobs", default=os.cpu_count() or 1, help="Models compiled at a time.")
@click.argument("names", nargs=-1)
def main(simulator: str, jobs: int, names: tuple[str, ...]) -> None:
    """Run all configurations, or those named (by group or name)."""
    chosen = [c for c in cases() if not names or c.name in names or c.group in names]
    found = []
    for row in rows(chosen, Simulator(simulator), jobs):
        found.append(row)
        click.echo(line(row))
    click.echo("\n" + "\n".join([summary(found), *prices(found), *lines()]))
    sys.exit(any(row.misses for row in found))


if __name__ == "__main__":
    main()
