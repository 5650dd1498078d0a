"""Saved values of a candidate that does not fit: which leave or come by recompute, per stage."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipec.cluster.device import Device
from pipec.partition.costgraph import CostGraph
from pipec.partition.result import CutResult
from pipec.residency.choose import choose
from pipec.residency.problem import OFFLOAD, RECOMPUTE, Problem


@dataclass(frozen=True)
class Resided:
    """What one stage comes to.

    Attributes:
        backward_seconds: Of one backward, with what it computes again and its stalls.
        saved_bytes: Of one microbatch, so that those in flight hold what the fullest moment holds.
        recomputed: Share of the saved bytes that is computed again.
        offloaded: Share of the saved bytes that waits in host memory.
    """

    backward_seconds: float
    saved_bytes: float
    recomputed: float
    offloaded: float


def reside(
    problem: CostGraph,
    cut: CutResult,
    stage: int,
    device: Device,
    *,
    forward: float,
    backward: float,
    cap: float,
    flight: int,
) -> Resided:
    """The residency of one stage that adds the least time.

    A node's output is a value; what it takes to compute it again is its share of the forward.

    Args:
        problem: The model at the candidate's microbatch.
        cut: Its stages.
        stage: Which.
        device: Where it runs.
        forward: Seconds of one forward.
        backward: Seconds of one backward.
        cap: Bytes that its saved values may take.
        flight: Its microbatches in flight.

    Raises:
        DoesNotFitError: Nothing fits.
    """
    nodes = np.flatnonzero((cut.stage == stage) & (problem.activation_bytes > 0))
    work = problem.work[problem.classes.index(device.kind)]
    whole = float(work[cut.stage == stage].sum())
    sizes = problem.activation_bytes[nodes]
    choice = choose(
        Problem(
            nbytes=sizes,
            recompute=work[nodes] * (forward / whole if whole else 0.0),
            forward=forward,
            backward=backward,
            cap=max(cap, 0.0),
            bandwidth=device.host_bandwidth,
            flight=max(flight, 1),
        ),
        improve=False,
    )
    total = max(float(sizes.sum()), 1.0)
    return Resided(
        choice.seconds - forward,
        choice.peak_bytes / max(flight, 1),
        float(sizes[choice.decision == RECOMPUTE].sum()) / total,
        float(sizes[choice.decision == OFFLOAD].sum()) / total,
    )


def mean_share(found: Sequence[Resided], name: str) -> float:
    """A share over all stages."""
    return float(np.mean([getattr(r, name) for r in found])) if found else 0.0
