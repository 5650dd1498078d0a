"""Loops and pauses of all models, one line per model, one column per precision.

    python -m benchmarks.hls_check.table [--precision TYPE ...] [MODEL ...] [training]

The check is that of `benchmarks.hls_check`, on four VCU118; models of one op and the kernels of
training (forward, backward, saved values and update of the models in `tests.fpga.training.models`,
float32) have one board. A cell is the number of loops and pauses that are as the code declares, and
``k of n`` where some are not. Exit status 1 then.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from benchmarks._fpga_models import NAMES
from benchmarks.fpga_conformance import UNCUT
from benchmarks.hls_check.__main__ import PRECISIONS, loops_of
from benchmarks.hls_check.compiled import intervals
from benchmarks.hls_check.stages import stages_in
from pipec.cluster.cluster import parse_cluster
from pipec.compiler.driver import default_passes, emit, make_plan
from tests.fpga.lint.stage import lint
from tests.fpga.training.models import MODELS

TRAINING = "training"
Count = tuple[int, int]
"""Loops and pauses that are as declared, and all."""


def count(name: str, precision: str) -> Count:
    """Those of a model in inference.

    Raises:
        BackendError: A pragma is not as the rules ask.
    """
    devices = "1xvcu118" if name in UNCUT else "4xvcu118"
    with tempfile.TemporaryDirectory() as folder:
        found = loops_of(name, devices, precision, Path(folder))
    return sum(i.ok for i in found), len(found)


def count_in_training() -> Count:
    """Those of all kernels of the training models; a pragma against the rules is one that fails."""
    good = every = 0
    for model in MODELS.values():
        passes = default_passes(schedule="1f1b")
        plan = make_plan(model(), parse_cluster("1xvcu118"), "fpga", passes=passes)
        with tempfile.TemporaryDirectory() as folder:
            emit(plan, Path(folder) / "out")
            for stage in stages_in(Path(folder) / "out"):
                found, wrong = intervals(stage), len(lint(stage))
                good += sum(i.ok for i in found)
                every += len(found) + wrong
    return good, every


def format_cell(found: Count) -> str:
    """A cell."""
    good, every = found
    return f"{good:,}" if good == every else f"{good:,} of {every:,}"


def row(name: str, cells: Sequence[Count]) -> str:
    """A line of the table."""
    return f"{name:14} {' '.join(f'{format_cell(c):>14}' for c in cells)}".rstrip()


@click.command()
@click.argument("names", nargs=-1, type=click.Choice([*NAMES, TRAINING]))
@click.option("--precision", "precisions", multiple=True, default=PRECISIONS)
def main(names: tuple[str, ...], precisions: tuple[str, ...]) -> None:
    """Print the table; status 1 if a loop or a pause is not as the code declares."""
    print(f"{'model':14} {' '.join(f'{p:>14}' for p in precisions)}")
    rows = []
    for name in [n for n in names or NAMES if n != TRAINING]:
        rows.append([count(name, precision) for precision in precisions])
        print(row(name, rows[-1]), flush=True)
    columns = [list(zip(*column, strict=True)) for column in zip(*rows, strict=True)]
    total = [(sum(good), sum(every)) for good, every in columns]
    print(row("all", total), flush=True)
    training = [count_in_training()] if not names or TRAINING in names else []
    for found in training:
        print(row(TRAINING, [found]), flush=True)
    raise SystemExit(any(good != every for good, every in [*total, *training]))


if __name__ == "__main__":
    main()
