"""Emission and C simulation of whole models on FPGA boards, with random weights.

    python benchmarks/fpga_csim.py [--devices 1xvcu118 --devices 4xvcu118] [MODEL ...]

Models: those of `benchmarks._fpga_models`. Every model is compiled, emitted, compiled by g++, run
on one frame and compared with onnxruntime (or eager torch) at every boundary value. Seconds are
processor seconds, those of g++ and of the simulation included.
"""

import itertools
import os
import resource
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import click

from benchmarks._fpga_models import NAMES, write_model
from pipec.cluster.cluster import parse_cluster
from pipec.compiler.backend import load_backend
from pipec.compiler.driver import emit, make_plan
from pipec.compiler.verify import verify_stages
from pipec.errors import PipecError
from pipec.frontends.load import load
from pipec.plan.store import load_plan

TOLERANCE = 1e-4


@dataclass(frozen=True)
class Row:
    """Processor seconds of one model on one cluster, and its error."""

    stages: int
    interval_ms: float
    compile: float
    emit: float
    build: float
    run: float
    error: float


def cpu() -> float:
    """Processor seconds of this process and of the children that ended."""
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in both)


def measure(name: str, devices: str, folder: Path) -> Row:
    """Compile, emit, simulate and compare one model."""
    loaded = load(write_model(name, folder))
    marks = [cpu()]
    plan = make_plan(loaded.graph, parse_cluster(devices), "fpga")
    marks.append(cpu())
    emit(plan, folder / "out", force=True)
    marks.append(cpu())
    plan, backend = load_plan(folder / "out"), load_backend("fpga")
    runners = backend.load(plan, folder / "out")
    marks.append(cpu())
    report = verify_stages(plan, runners, loaded, tolerance=TOLERANCE)
    marks.append(cpu())
    compiled, emitted, built, ran = (b - a for a, b in itertools.pairwise(marks))
    interval = max(t.interval_seconds for t in plan.timing) * 1e3
    worst = max(b.relative_error for b in report.boundaries)
    return Row(len(plan.stages), interval, compiled, emitted, built, ran, worst)


@click.command()
@click.argument("models", nargs=-1)
@click.option("--devices", multiple=True, default=("1xvcu118", "4xvcu118"), show_default=True)
def main(models: tuple[str, ...], devices: tuple[str, ...]) -> None:
    """Print one row per model and cluster; exit 1 if any is off by more than 1e-4."""
    print(f"{os.cpu_count()} processors; g++ and tolerance {TOLERANCE:g} as emitted")
    head = ("model", "devices", "interval", "compile", "emit", "g++", "run", "relative error")
    print("{:<14} {:<9} {:>9} {:>8} {:>7} {:>7} {:>7}  {}".format(*head))
    failed = False
    for name in models or NAMES:
        for cluster in devices:
            with tempfile.TemporaryDirectory() as folder:
                start = time.time()
                try:
                    r = measure(name, cluster, Path(folder))
                except PipecError as error:
                    print(f"{name:<14} {cluster:<9} refused: {error}")
                    failed = True
                    continue
            failed = failed or not r.error <= TOLERANCE
            print(
                f"{name:<14} {cluster:<9} {r.interval_ms:>6.2f} ms {r.compile:>6.1f} s "
                f"{r.emit:>5.1f} s {r.build:>5.1f} s {r.run:>5.1f} s  {r.error:.1e}"
                f"   ({time.time() - start:.0f} s by the clock)",
                flush=True,
            )
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
