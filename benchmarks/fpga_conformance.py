"""Conformance of the emitted HLS C++ over whole models, stage by stage.

    python -m benchmarks.fpga_conformance                 all; rewrites the paragraph in docs
    python -m benchmarks.fpga_conformance mlp encoder     these, printed only
    python -m benchmarks.fpga_conformance --table vgg19   and its part of the paragraph
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

import json
import subprocess
import tempfile
import textwrap
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
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

DOCS = Path(__file__).resolve().parents[1] / "docs/fpga_simulation.md"
BEGIN, END = "<!-- make fpga-conformance -->\n", "<!-- end of make fpga-conformance -->"
"""What the paragraph stands between."""
ROWS = Path(__file__).with_suffix(".json")
"""The result of the last run of each model."""
DEVICES = "4xvcu118"
TOLERANCE = 1e-4
UNCUT = ("gru_cell", "lstm_cell")
"""Models of one op, which goes onto one board."""


@dataclass(frozen=True)
class Row:
    """The result of one model.

    Attributes:
        name: Name of the model; ``stages`` of it; ``engines`` in all of them.
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


def run_sanitized(folder: Path) -> bool:
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
    return check_model(
        name, loaded, load_plan(folder / "out"), folder / "out", sanitizers=sanitizers
    )


def check_model(name: str, loaded: Loaded, plan: Plan, out: Path, *, sanitizers: bool) -> Row:
    """The result of an emitted model."""
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
        sum(map(run_sanitized, stages)) if sanitizers else None,
        sum(t.handshakes for t in timed),
        sum(len(t.differing) for t in timed),
        max(c.interval for c in cycles),
    )


def read_rows() -> dict[str, Row]:
    """The rows of the last runs."""
    return {name: Row(**row) for name, row in json.loads(ROWS.read_text()).items()}


def paragraph(rows: Mapping[str, Row]) -> str:
    """All rows in words, what is worst by its model."""
    every = [rows[name] for name in NAMES if name in rows]
    error = max(every, key=lambda row: row.error)
    streamed = max(every, key=lambda row: row.streamed)
    stages, clean = sum(r.stages for r in every), sum(r.sanitized or 0 for r in every)
    text = (
        f"{len(every)} models, {stages} stages, {sum(r.engines for r in every):,} engines. Largest "
        f"error {error.error:.1e} ({error.name}), streamed {streamed.streamed:.1e} "
        f"({streamed.name}). {clean} stages run clean under the sanitizers; "
        f"{sum(r.handshakes for r in every):,} handshakes compared, "
        f"{sum(r.differing for r in every)} streams differ. Cycles of the slowest stage: "
        f"{', '.join(f'{r.name} {r.interval:,}' for r in every)}."
    )
    return textwrap.fill(text, 150)


def update_page(page: str, rows: Mapping[str, Row]) -> str:
    """The page with these rows in its paragraph."""
    before, _, rest = page.partition(BEGIN)
    return "\n".join([before + BEGIN + paragraph(rows), END + rest.partition(END)[2]])


@click.command()
@click.argument("models", nargs=-1)
@click.option("--devices", default=DEVICES, show_default=True)
@click.option("--precision", default="float32", show_default=True, help="As of pipec compile.")
@click.option("--sanitizers/--no-sanitizers", default=True, show_default=True)
@click.option("--table", is_flag=True, help="Rewrite what the page says of these models.")
def main(
    models: tuple[str, ...], devices: str, precision: str, *, sanitizers: bool, table: bool
) -> None:
    """Print a row per model; exit 1 if any does not conform."""
    if (precision, devices) != ("float32", DEVICES) and (table or not models):
        raise click.UsageError(f"the page is of float32 on {DEVICES}: name models, no --table")
    build.FLAGS = (*build.FLAGS, "-Werror")
    rows, failed = read_rows() if models else {}, False
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
        rows[name] = row
        failed = failed or not row.ok
        cells = FORMAT.format(*row.cells())
        shown = f"{row.of_bound:.0%} of the bound, {time.monotonic() - start:.0f} s"
        print(f"{cells}   ({shown})", flush=True)
        if table or not models:
            ROWS.write_text(json.dumps({n: asdict(r) for n, r in rows.items()}, indent=1) + "\n")
            DOCS.write_text(update_page(DOCS.read_text(), rows))
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
