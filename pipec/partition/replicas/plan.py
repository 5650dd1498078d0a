"""PipeDream's planner: stages that are replicated, over a hierarchy of links.

    A_0(i, j)    = sum of work between the cuts i and j
    T_l(i, j, q) = max(A_(l-1)(i, j), 2 (q-1)/q * weights(i, j) / B_l) / q     one stage
    A_l(i, j, m) = min over cuts k and replicas q of
                   max(A_l(i, k, m-q), 2 * activations(k) / B_l, T_l(k, j, q))    or T_l(i, j, m)

(Narayanan et al., SOSP'19, section 3.1: replicas overlap weight synchronisation with compute and
work on different minibatches; a boundary carries activations forward and gradients back.) Cuts are
ideals of the layer graph. The outermost level is solved from the end: a stage with q replicas and
m - q workers behind it has ceil(m / q) minibatches in flight, so memory limits need no more state.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf, prod

import numpy as np

from pipec.errors import PartitionError
from pipec.partition.costgraph import CostGraph, FloatArray
from pipec.partition.proof.bounds import TOLERANCE
from pipec.partition.replicas.recurrence import (
    Cuts,
    Inner,
    Level,
    Suffixes,
    all_pairs,
    least_memory,
    make_cuts,
    stage_seconds,
    suffixes,
)


@dataclass(frozen=True)
class ReplicatedStage:
    """A stretch of layers on some components.

    Attributes:
        nodes: Its nodes.
        first: Number of placement units before it.
        last: Number of placement units up to its end.
        replicas: Components that run it on different minibatches.
        seconds: Time per minibatch: the larger of compute and weight synchronisation.
        inner: How one component cuts it further; empty on the innermost level.
    """

    nodes: tuple[int, ...]
    first: int
    last: int
    replicas: int
    seconds: float
    inner: tuple["ReplicatedStage", ...] = ()


@dataclass(frozen=True)
class ReplicatedPlan:
    """A pipeline of replicated stages.

    Attributes:
        stages: First to last.
        seconds: Time per minibatch of the slowest stage or boundary.
        workers: Components of the outermost level that are used.
        by_workers: Best time for each number of components from 1 on; infinity if not better than
            what was asked for could be.
        exact: All ideals were cuts; else the prefixes of one order.
    """

    stages: tuple[ReplicatedStage, ...]
    seconds: float
    workers: int
    by_workers: tuple[float, ...]
    exact: bool

    @property
    def configuration(self) -> str:
        """Replicas of the stages, as in the paper: ``15-1``."""
        return "-".join(str(stage.replicas) for stage in self.stages)


def plan_replicated(
    graph: CostGraph,
    levels: Sequence[Level],
    *,
    memory_bytes: float = inf,
    fewest: bool = False,
) -> ReplicatedPlan:
    """Finds the pipeline whose slowest stage or boundary is fastest.

    Args:
        graph: Work in row 0, ``bytes`` of values, ``weight_bytes`` and ``activation_bytes``.
        levels: Innermost first; a plain cluster has one.
        memory_bytes: Limit per device: minibatches in flight x (weights + activations). With
            several levels the number in flight on an inner stage is taken as
            ceil(all workers / its replicas), which it never exceeds.
        fewest: Use no more components of the outermost level than the best time needs.

    Raises:
        PartitionError: Nothing fits the memory.

    Example:
        >>> from pipec.partition.costgraph import Value, cost_graph
        >>> chain = cost_graph("ab", {"gpu": [6, 2]}, [Value(0, [1], bytes=1)], weight_bytes=[0, 9])
        >>> plan_replicated(chain, [Level(4, 1.0)]).configuration
        '3-1'
    """
    cuts = make_cuts(graph, limited=memory_bytes < inf)
    everyone = prod(level.workers for level in levels)
    base, inner = cuts.work, []
    for number, level in enumerate(levels[:-1]):
        stages = [stage_seconds(cuts, base, level, q) for q in range(1, level.workers + 1)]
        if number == 0 and memory_bytes < inf:
            for q, seconds in enumerate(stages, 1):
                seconds[ceil(everyone / q) * cuts.held > memory_bytes] = inf
        pairs = all_pairs(cuts, stages, level)
        inner.append(Inner(level, base, pairs))
        base = pairs.seconds[-1]
    tail = suffixes(cuts, base, levels, memory_bytes if len(levels) == 1 else inf)
    times = [float(seconds[0]) for seconds in tail.seconds[1:]]
    workers = len(times)
    if fewest:
        workers = 1 + next(m for m, t in enumerate(times) if t <= min(times) * (1 + TOLERANCE))
    if not times[workers - 1] < inf:
        least = least_memory(cuts, levels)
        raise _nothing_fits(cuts, everyone, memory_bytes, min(least) if fewest else least[-1])
    stages_found = _outer_stages(graph, cuts, base, levels, inner, tail, workers)
    return ReplicatedPlan(stages_found, times[workers - 1], workers, tuple(times), cuts.exact)


def _outer_stages(
    graph: CostGraph,
    cuts: Cuts,
    base: FloatArray,
    levels: Sequence[Level],
    inner: list[Inner],
    tail: Suffixes,
    workers: int,
) -> tuple[ReplicatedStage, ...]:
    """Walks the outermost level from the front."""
    stages: list[ReplicatedStage] = []
    at, left = 0, workers
    while left:
        after, q = int(tail.cut[left][at]), int(tail.replicas[left][at])
        seconds = stage_seconds(cuts, base, levels[-1], q)
        stages.append(_stage(graph, cuts, inner, at, after, q, float(seconds[at, after])))
        at, left = after, left - q
    return tuple(stages)


def _inner_stages(
    graph: CostGraph, cuts: Cuts, inner: list[Inner], first: int, last: int
) -> tuple[ReplicatedStage, ...]:
    """How one component of the level above cuts a stretch."""
    if not inner:
        return ()
    *below, here = inner
    found: list[ReplicatedStage] = []
    workers = here.level.workers
    while workers:
        cut = int(here.pairs.cut[workers - 1][first, last])
        q = int(here.pairs.replicas[workers - 1][first, last])
        seconds = stage_seconds(cuts, here.base, here.level, q)
        found.append(_stage(graph, cuts, below, cut, last, q, float(seconds[cut, last])))
        last, workers = cut, workers - q
    return tuple(reversed(found))


def _stage(
    graph: CostGraph,
    cuts: Cuts,
    inner: list[Inner],
    first: int,
    last: int,
    replicas: int,
    seconds: float,
) -> ReplicatedStage:
    here = cuts.family.bits[last] & ~cuts.family.bits[first]
    nodes = np.flatnonzero(here[cuts.units.of_node])
    return ReplicatedStage(
        tuple(nodes.tolist()),
        int(cuts.family.size[first]),
        int(cuts.family.size[last]),
        replicas,
        seconds,
        _inner_stages(graph, cuts, inner, first, last),
    )


def _nothing_fits(cuts: Cuts, workers: int, limit: float, least: float) -> PartitionError:
    """Says the limit that is there and the one that would do."""
    everything = float(cuts.family.weight[-1] + cuts.family.activation[-1])
    units = cuts.units.weight_bytes + cuts.units.activation_bytes
    if least < inf:
        share = f" ({least / limit:.3g} times as much)" if limit > 0 else ""
        less = "with less none does" if cuts.exact else "in the orders that were tried"
        want = f"{least:.10g} bytes on each{share}: with that a pipeline fits, {less}"
    else:
        want = "fewer workers: there are not as many places to cut"
    return PartitionError(
        "no replicated pipeline fits the memory",
        got=f"{limit:.10g} bytes on each of {workers} workers for {everything:.6g} bytes in all, "
        f"{units.max():.6g} in one unit, times the minibatches in flight",
        want=want,
        hint="use more workers or a smaller minibatch",
    )
