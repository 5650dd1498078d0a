"""Ranks of a benchmark: one process per core, each with one thread of its own."""

import json
import os
import statistics
import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

ROOT = Path(__file__).parents[1]


def is_rank() -> bool:
    """Whether this process is a rank."""
    return "RANK" in os.environ


def launch(module: str, ranks: int, *args: str, timeout: float = 1800) -> int:
    """Run ``python -m module args`` as ``ranks`` processes on this machine; torchrun's status."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(ranks), "-m", module, *args]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, timeout=timeout, check=False)
    return done.returncode


def pin() -> None:
    """One thread, on one core of this process's own where there are enough."""
    import torch

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    cores = sorted(os.sched_getaffinity(0))
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if world <= len(cores):
        os.sched_setaffinity(0, {cores[rank]})


def say(*text: Any, end: str = "\n", file: TextIO | None = None) -> None:
    """Print on rank 0; progress goes to ``sys.stderr``."""
    if os.environ.get("RANK", "0") == "0":
        print(*text, end=end, file=file, flush=True)


def quartiles(values: Sequence[float]) -> list[float]:
    """The lower quartile, the median and the upper quartile; one value is all three."""
    return statistics.quantiles(values, n=4) if len(values) > 1 else [*values] * 3


def keep(path: str | None, rows: Any) -> None:
    """Write figures as JSON on rank 0, if asked to."""
    if path and os.environ.get("RANK", "0") == "0":
        Path(path).write_text(json.dumps(rows, indent=1) + "\n")
