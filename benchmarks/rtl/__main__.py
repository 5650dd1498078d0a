"""``make rtl``: the cycle simulator against SystemVerilog, over all configurations.

    python -m benchmarks.rtl [--simulator verilator] [--table docs/fpga_rtl.md] [GROUP or NAME ...]

Prints mean, largest difference and every miss; the exit status is the number of misses.
"""

import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

import click

from benchmarks.rtl.cases import Case, cases
from benchmarks.rtl.table import document, line, summary
from pipec.backends.fpga.rtl.compare import Comparison, compare
from pipec.backends.fpga.rtl.simulate import Bench, Simulator, run

BATCH = 14
"""Configurations in one model: fewer start-ups of the compiler, and it takes a group at most."""


def batches(chosen: Sequence[Case]) -> Iterator[list[Case]]:
    """Configurations of one group, a few at a time."""
    for _, same in groupby(chosen, key=lambda case: case.group):
        found = list(same)
        for first in range(0, len(found), BATCH):
            yield found[first : first + BATCH]


def compared(chosen: Sequence[Case], simulator: Simulator) -> Iterator[tuple[Case, Comparison]]:
    """Run configurations and hold each against the simulator."""
    for batch in batches(chosen):
        benches = [Bench(c.name, c.make(), c.frames, c.style) for c in batch]
        with tempfile.TemporaryDirectory(prefix="pipec-rtl-") as folder:
            seen = run(benches, Path(folder), simulator)
        for case, bench in zip(batch, benches, strict=True):
            yield case, compare(bench, seen[bench.name])


@click.command()
@click.option("--simulator", type=click.Choice([s.value for s in Simulator]), default="verilator")
@click.option("--table", type=click.Path(path_type=Path), help="Markdown file to write.")
@click.argument("names", nargs=-1)
def main(simulator: str, table: Path | None, names: tuple[str, ...]) -> None:
    """Run all configurations, or those named (by group or name)."""
    chosen = [c for c in cases() if not names or c.name in names or c.group in names]
    found = []
    for case, result in compared(chosen, Simulator(simulator)):
        found.append((case, result))
        click.echo(line(case, result))
    click.echo("\n" + summary(found))
    if table is not None:
        table.write_text(document(found, simulator), encoding="utf-8")
    sys.exit(sum(bool(result.misses) for _, result in found))


if __name__ == "__main__":
    main()
