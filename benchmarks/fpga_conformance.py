"""Conformance of the emitted HLS C++ over whole models, stage by stage.

    python -m benchmarks.fpga_conformance                 all; rewrites docs/fpga_conformance.md
    python -m benchmarks.fpga_conformance mlp encoder     these, printed only
    python -m benchmarks.fpga_conformance --table vgg19   and its row of the page rewritten
    python -m benchmarks.fpga_conformance --devices 2xu280 --no-sanitizers
    python -m benchmarks.fpga_conformance --precision "ap_fixed<16,6>" resnet50

Each model is cut for the boards, and of every stage the sources compile with
``-Wall -Wextra -Werror``; the chain of stages agrees with onnxruntime (eager torch for models from
torch) at every boundary within 1e-4 of its largest value, and so do the outputs of other frames
that stream through all stages at once, joined by pipes; the same sources run under the address
and undefined-behaviour sanitizers on golden data; and the timed build, its streams bounded at the
declared depths, gives every handshake the cycle that the simulator says. In narrow numbers each
boundary has the bound that follows from them instead of 1e-4, on the frames it was computed for;
printed is how much of it the error is.
"""

import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import click

from benchmarks._fpga_models import NAMES, write_model
from pipec.backends.fpga.backend import FpgaBackend
from pipec.backends.fpga.csim import build
from pipec.cluster.cluster import parse_cluster
from pipec.compiler.driver import emit, make_plan
from pipec.compiler.verify import verify_artifacts
from pipec.errors import PipecError
from pipec.frontends.base import Loaded
from pipec.frontends.load import load
from pipec.plan.model import Plan
from pipec.plan.store import load_plan
from tests.fpga.lint.stage import check

DOCS = Path(__file__).resolve().parents[1] / "docs/fpga_conformance.md"
TOLERANCE = 1e-4
UNCUT = ("gru_cell", "lstm_cell")
"""Models of one op, which goes onto one board."""


@dataclass(frozen=True)
class Row:
    """What one model gave.

    Attributes:
        name: Of the model; ``stages`` of it; ``engines`` in all of them.
        error: Largest error relative to the largest value of its boundary.
        of_bound: Largest share of what is allowed, of all boundaries and outputs.
        streamed: The same of the model's outputs, all stages running at once.
        sanitized: Stages that ran clean under the sanitizers; None if they were not asked.
        handshakes: Handshakes compared; ``differing`` streams that differ.
        interval: Cycles per frame of the slowest stage, simulated.
    """

    name: str
    stages: int
    engines: int
    error: float
    of_bound: float
    streamed: float
    sanitized: int | None
    handshakes: int
    differing: int
    interval: int

    @property
    def ok(self) -> bool:
        """Whether all of it holds."""
        clean = self.sanitized in (None, self.stages)
        return self.of_bound <= 1 and clean and not self.differing

    def cells(self) -> tuple[str, ...]:
        """The row of the table."""
        clean = "-" if self.sanitized is None else f"{self.sanitized}/{self.stages}"
        cycles = f"{self.handshakes:,}" if not self.differing else f"{self.differing} differ"
        return (
            self.name, str(self.stages), str(self.engines), f"{self.error:.1e}",
            f"{self.streamed:.1e}", clean, cycles, f"{self.interval:,}",
        )  # fmt: skip


HEAD = (
    "model", "stages", "engines", "error", "streamed", "sanitizers", "equal handshakes", "interval",
)  # fmt: skip
FORMAT = "{:<14} {:>6} {:>7} {:>8} {:>8} {:>10} {:>16} {:>12}"
FRAMES = 2
"""Frames that stream through all stages at once."""


def sanitized(folder: Path) -> bool:
    """Whether a stage plays its golden data under the sanitizers without a word on stderr."""
    binary = build.build(folder, build.SANITIZED)
    done = subprocess.run([binary, folder], capture_output=True, text=True, check=False)
    return done.returncode == 0 and not done.stderr


def measure(name: str, devices: str, precision: str, folder: Path, *, sanitizers: bool) -> Row:
    """Everything about one model."""
    loaded = load(write_model(name, folder))
    boards = parse_cluster(devices)
    if name in UNCUT:
        boards = parse_cluster(f"1x{boards.devices[0].kind}")
    plan = make_plan(loaded.graph, boards, "fpga", options={"precision": precision})
    emit(plan, folder / "out")
    for record in (folder / "out").rglob("stage.json"):
        check(record.parent)
    return checked(name, loaded, load_plan(folder / "out"), folder / "out", sanitizers=sanitizers)


def checked(name: str, loaded: Loaded, plan: Plan, out: Path, *, sanitizers: bool) -> Row:
    """What an emitted model gives."""
    backend = FpgaBackend()
    tolerance = None if plan.options.get("precision", "float32") != "float32" else TOLERANCE
    report = verify_artifacts(out, loaded, tolerance=tolerance)
    streamed = backend.verify_chain(plan, out, loaded, FRAMES, tolerance=tolerance)
    compared = (*report.boundaries, *streamed.boundaries)
    stages = sorted(out.glob("stage*"))
    timed = backend.check_cycles(plan, out)
    cycles = backend.cycles(plan, out)
    return Row(
        name,
        len(stages),
        sum(len(c.engines) for c in cycles),
        max(b.relative_error for b in report.boundaries),
        max(b.relative_error / b.tolerance for b in compared),
        max(b.relative_error for b in streamed.boundaries),
        sum(map(sanitized, stages)) if sanitizers else None,
        sum(t.handshakes for t in timed),
        sum(len(t.differing) for t in timed),
        max(c.interval for c in cycles),
    )


Cells = dict[str, tuple[str, ...]]
"""Rows of the page by model."""


def kept(page: str) -> Cells:
    """The rows of a page."""
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    return {row[0]: tuple(row) for row in rows if row[0] in NAMES and len(row) == len(HEAD)}


def markdown(rows: Cells, devices: str) -> str:
    """The page that is kept in ``docs/``; it says which models are missing."""
    missing = ", ".join(sorted(set(NAMES) - set(rows)))
    lines = [
        "# Conformance of the emitted HLS C++",
        "",
        f"Written by `make fpga-conformance`: models with random weights, float32, on {devices}.",
        "Every stage compiles with `-Wall -Wextra -Werror`. *error* is the largest error of a",
        "boundary value of the chain of C simulations against onnxruntime (eager torch for models",
        "from torch), relative to the largest value; *streamed* is that of the model's outputs",
        f"when {FRAMES} other frames go through all stages at once, processes joined by pipes.",
        "*sanitizers* counts the stages that play their golden data under ASan and UBSan in",
        "silence. *equal handshakes* are those of the timed build (bounded streams, rigid",
        "pipelines, two frames) that have the very cycle of the simulator.",
        "*interval* is that of the slowest stage in cycles, simulated.",
        "Rows may come from several runs (`--table MODEL ...`); a dash is what a run left out.",
        "",
        f"| {' | '.join(HEAD)} |",
        f"|---|{'---:|' * (len(HEAD) - 1)}",
        *(f"| {' | '.join(rows[name])} |" for name in NAMES if name in rows),
        *(["", f"Not in this run: {missing}."] if missing else []),
        "",
    ]
    return "\n".join(lines)


@click.command()
@click.argument("models", nargs=-1)
@click.option("--devices", default="4xvcu118", show_default=True)
@click.option("--precision", default="float32", show_default=True, help="As of pipec compile.")
@click.option("--sanitizers/--no-sanitizers", default=True, show_default=True)
@click.option("--table", is_flag=True, help="Rewrite the rows of these models on the page.")
def main(
    models: tuple[str, ...], devices: str, precision: str, *, sanitizers: bool, table: bool
) -> None:
    """Print a row per model; exit 1 if any does not conform."""
    if precision != "float32" and (table or not models):
        raise click.UsageError("the page is of float32: name models, without --table")
    build.FLAGS = (*build.FLAGS, "-Werror")
    rows, failed = kept(DOCS.read_text()) if models else {}, False
    print(FORMAT.format(*HEAD))
    for name in models or NAMES:
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            try:
                row = measure(name, devices, precision, Path(folder), sanitizers=sanitizers)
            except PipecError as error:
                print(f"{name:<14} refused: {error}", flush=True)
                failed = True
                continue
        rows[name] = row.cells()
        failed = failed or not row.ok
        cells = FORMAT.format(*row.cells())
        shown = f"{row.of_bound:.0%} of the bound, {time.monotonic() - start:.0f} s"
        print(f"{cells}   ({shown})", flush=True)
        if table or not models:
            DOCS.write_text(markdown(rows, devices))
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
