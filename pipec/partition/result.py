"""A cut and what is known about it; and the plain evaluation that every solver's result passes."""

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from pipec.cluster.cluster import Link
from pipec.partition.costgraph import CostGraph, FloatArray, IntArray, distinct, sums
from pipec.partition.devices import Device, boundary_seconds

NO_GAP = 1e-6  # of the largest load: what solvers and rounding leave open


@dataclass(frozen=True, eq=False)
class CutResult:
    """Where every node goes, and how good that is.

    Attributes:
        stage: Stage of every node, first to last along the pipeline, [nodes].
        device_order: Device of each stage; chunks go around it.
        loads: Seconds per device, in this order.
        memory_bytes: What each device holds.
        lower_bound: No cut of this problem has a smaller largest load.
        method: How the cut was found and proven.
        seconds: Time taken.
    """

    stage: IntArray
    device_order: tuple[int, ...]
    loads: tuple[float, ...]
    memory_bytes: tuple[float, ...]
    lower_bound: float
    method: str
    seconds: float

    @property
    def assignment(self) -> IntArray:
        """Device of every node, an index into the devices given, [nodes]."""
        return np.array(self.device_order)[self.stage % self.stages]

    @property
    def max_load(self) -> float:
        """The largest load."""
        return max(self.loads)

    @property
    def contiguous(self) -> bool:
        """One stretch of the graph per device; else several chunks."""
        return int(self.stage.max()) < self.stages

    @property
    def gap(self) -> float:
        """(largest load - lower bound) / largest load; 0 for an optimum that is proven."""
        return 0.0 if self.max_load <= 0 else max(0.0, 1 - self.lower_bound / self.max_load)

    @property
    def proven(self) -> bool:
        """Whether no better cut exists."""
        return self.gap <= NO_GAP

    @property
    def stages(self) -> int:
        """Number of stages, or of devices that take several chunks each."""
        return len(self.device_order)


def make_result(
    graph: CostGraph,
    stage: IntArray,
    device_order: Sequence[int],
    loads: FloatArray,
    lower: float,
    method: str,
    began: float,
) -> CutResult:
    """A result whose memory and time are filled in; ``began`` as of `time.perf_counter`."""
    held = sums(stage % len(loads), graph.weight_bytes + graph.activation_bytes, len(loads))
    return CutResult(
        stage=stage,
        device_order=tuple(device_order),
        loads=tuple(loads.tolist()),
        memory_bytes=tuple(held.tolist()),
        lower_bound=min(lower, float(loads.max())),
        method=method,
        seconds=perf_counter() - began,
    )


def stage_loads(
    graph: CostGraph,
    stage: IntArray,
    devices: Sequence[Device],
    *,
    links: Sequence[Link] | None = None,
    overlap: bool = False,
) -> FloatArray:
    """Seconds per stage, straight from the definition.

    Args:
        graph: The problem.
        stage: Stage of every node; with ``links`` numbered along the pipeline, [nodes].
        devices: Device of each stage.
        links: Link behind each stage but the last. None: values are priced in seconds, and a
            device pays each value that enters or leaves it once.
        overlap: Communication hides behind compute.
    """
    count = len(devices)
    row = np.array([graph.classes.index(d.kind) for d in devices])
    work = sums(stage, graph.work[row[stage], np.arange(graph.size)], count)
    pays = np.array([d.pays for d in devices], float)
    edge = np.repeat(np.arange(len(graph.producer)), np.diff(graph.consumer_ptr))
    pins = np.concatenate([graph.producer, graph.consumer])
    if links is None:
        ends = np.concatenate([np.arange(len(graph.producer)), edge]) * count
        value, at = np.divmod(distinct(ends + stage[pins]), count)
        paid = np.where(np.bincount(value) > 1, graph.seconds, 0.0)
        return work + pays * sums(at, paid[value], count)
    first = stage[graph.producer]
    last = first.copy()
    np.maximum.at(last, edge, stage[graph.consumer])
    np.minimum.at(first, edge, stage[graph.consumer])
    boundary = np.arange(1, count)
    crossing = (first[:, None] < boundary) & (boundary <= last[:, None])
    cut = np.stack([graph.bytes, graph.gradient_bytes]) @ crossing
    seconds = np.zeros(count + 1)
    for b, link in zip(range(count - 1), links, strict=False):
        seconds[b + 1] = boundary_seconds(cut[:, b, None], link, at_once=overlap)[0]
    into, out = pays * seconds[:-1], pays * seconds[1:]
    return np.maximum(work, np.maximum(into, out)) if overlap else work + into + out
