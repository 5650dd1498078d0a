"""BaPipe's intra-layer step: the best pipeline again, with a layer of its slowest stage split."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from pipec.explore.predict import Prediction, Predictor
from pipec.explore.workload import Workload
from pipec.graph.split_node import is_splittable
from pipec.partition.result import CutResult

LEAST = 0.05
"""Smallest part of a layer that is worth a cut of its own."""


def split_boundary(workload: Workload, base: Prediction | None) -> list[Prediction]:
    """Predict ``base`` with the layer split that lies next to a less loaded neighbour.

    Args:
        workload: The model on its cluster.
        base: The fastest pipelined candidate.

    Returns:
        One prediction per neighbour of the slowest stage and share that was tried; the cut is
        made anew for each. None where there is no boundary or nothing to split.
    """
    if base is None or not base.possible or base.candidate.stages < 2:
        return []
    cut = Predictor(workload).cut(base.candidate)
    if cut is None:
        return []
    found = []
    for node, share in sorted(set(_shares(workload, base, cut))):
        candidate = replace(base.candidate, split=node, share=share)
        found.append(Predictor(workload.split(node, share)).predict(candidate))
    return found


def _shares(workload: Workload, base: Prediction, cut: CutResult) -> Iterator[tuple[str, float]]:
    """Node and share of its first half: in two equal parts, and so that two stages get even."""
    slow = int(np.argmax(cut.loads))
    calls = workload.graph.calls
    inside = [
        k for k in np.flatnonzero(cut.stage == slow) if is_splittable(workload.graph, calls[k])
    ]
    problem = workload.problem(base.candidate.microbatch, recompute=base.candidate.recompute)
    for neighbour in (slow - 1, slow + 1):
        if not inside or not 0 <= neighbour < cut.stages:
            continue
        layer = inside[0] if neighbour < slow else inside[-1]
        surplus = (cut.loads[slow] - cut.loads[neighbour]) / 2
        part = surplus / float(problem.work[:, layer].min())
        if LEAST <= part <= 1 - LEAST:
            yield calls[layer].name, round(part if neighbour < slow else 1 - part, 3)
        yield calls[layer].name, 0.5
