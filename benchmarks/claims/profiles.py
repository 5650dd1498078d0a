"""The measured layer profiles that PipeDream ships, where they lie on this machine."""

import os
from pathlib import Path

import numpy as np

from pipec.partition.costgraph import CostGraph
from pipec.partition.formats.workload import read_workload

ROOT = Path(__file__).parents[2]


def profile(name: str) -> CostGraph | None:
    """Forward plus backward seconds, bytes and weights per layer; None if it is not here."""
    base = Path(os.environ.get("PIPEC_DATA", ROOT.parent / "shared" / "data"))
    path = base / "pipedream-profiles" / f"{name}.txt"
    return read_workload(path).graph if path.exists() else None


def totals(graph: CostGraph) -> tuple[float, float]:
    """Seconds of one minibatch on one device, and bytes of all weights."""
    return float(graph.work[0].sum()), float(np.sum(graph.weight_bytes))
