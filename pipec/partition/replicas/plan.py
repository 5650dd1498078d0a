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
from math import ceil, inf, isqrt, prod
from typing import Any

import numpy as np

from pipec.errors import PartitionError
from pipec.partition.costgraph import CostGraph, FloatArray, IntArray
from pipec.partition.proof.bounds import TOLERANCE
from pipec.partition.replicas.recurrence import (
    Cuts,
    Level,
    Stage,
    Suffixes,
    make_cuts,
    suffixes,
    time_stage,
)

COARSE = 48
"""Cuts that a first solution is found on, for a limit."""
MOST = 2**22
"""Most pairs of numbers of workers that are tried: a few minutes for a hundred cuts."""


@dataclass(frozen=True)
class ReplicatedStage:
    """A stretch of layers on some components.

    Attributes:
        nodes: Nodes of the stage.
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
        exact: All ideals were cuts; else the prefixes of one order.
    """

    stages: tuple[ReplicatedStage, ...]
    seconds: float
    exact: bool

    @property
    def configuration(self) -> str:
        """Replicas of the stages, as in the paper: ``15-1``."""
        return "-".join(str(stage.replicas) for stage in self.stages)


def plan_replicated(
    graph: CostGraph, levels: Sequence[Level], *, memory_bytes: float = inf
) -> ReplicatedPlan:
    """Finds the pipeline whose slowest stage or boundary is fastest.

    Args:
        graph: Work in row 0, ``bytes`` of values, ``weight_bytes`` and ``activation_bytes``.
        levels: Innermost first; a plain cluster has one.
        memory_bytes: Limit per device: minibatches in flight x (weights + activations). With
            several levels the number in flight on an inner stage is taken as
            ceil(all workers / its replicas), which it never exceeds.

    Raises:
        PartitionError: Nothing fits the memory, or there are too many workers.

    Example:
        >>> from pipec.partition.costgraph import Value, cost_graph
        >>> chain = cost_graph("ab", {"gpu": [6, 2]}, [Value(0, [1], bytes=1)], weight_bytes=[0, 9])
        >>> plan_replicated(chain, [Level(4, 1.0)]).configuration
        '3-1'
    """
    cuts = make_cuts(graph, limited=memory_bytes < inf)
    everyone, base = prod(level.workers for level in levels), cuts.work
    solved: list[_Solved] = []
    for k, level in enumerate(levels, 1):
        most = isqrt(MOST // (1 if k == len(levels) else len(cuts.work)))
        if level.workers > most:
            want, hint = f"at most {most:,}", "group workers into more levels"
            raise PartitionError(f"level {k} is too large", got=level.workers, want=want, hint=hint)
    for number, level in enumerate(levels[:-1]):
        limit = memory_bytes if number == 0 else inf
        solved.append(_all_pairs(cuts, time_stage(cuts, base, level, limit, everyone), level))
        base = solved[-1].seconds
    stage = time_stage(cuts, base, levels[-1], memory_bytes if len(levels) == 1 else inf)
    tail = _outermost(cuts, stage, levels, limited=memory_bytes < inf)
    solved.append(_Solved(stage, {len(cuts.work) - 1: tail}))
    seconds = float(tail.seconds[-1][0])
    if not seconds < inf:
        raise _nothing_fits(cuts, everyone, memory_bytes, _least_memory(cuts, levels))
    stages = _stages(cuts, solved, 0, len(cuts.work) - 1, levels[-1].workers)
    return ReplicatedPlan(stages, seconds, cuts.exact)


@dataclass(frozen=True, eq=False)
class _Solved:
    """A level: what a stage takes, and the pipelines that end at some cuts."""

    stage: Stage
    tails: dict[int, Suffixes]

    @property
    def seconds(self) -> FloatArray:
        """Of the best pipelines of all components, [cuts, cuts]; all ends must be there."""
        return np.stack([self.tails[end].seconds[-1] for end in range(len(self.tails))], axis=1)


def _all_pairs(cuts: Cuts, stage: Stage, level: Level) -> _Solved:
    """An inner level: between all pairs of cuts."""
    every, transfer = np.arange(len(cuts.work)), _transfer(cuts, level)
    ends = every.tolist()
    return _Solved(
        stage, {j: suffixes(stage, transfer, level.workers, j, lambda _: every) for j in ends}
    )


def _outermost(cuts: Cuts, stage: Stage, levels: Sequence[Level], *, limited: bool) -> Suffixes:
    """The outermost level, first on a few cuts for a limit, then on all within it."""
    work, level, last = cuts.family.work[0], levels[-1], len(cuts.work) - 1
    inner, transfer = prod(lv.workers for lv in levels[:-1]), _transfer(cuts, levels[-1])

    def solve(rows: IntArray, limit: float) -> Suffixes:
        """Cut at some of the boundaries, no component above a limit in seconds."""
        boundary = np.full(last + 1, inf)
        boundary[rows] = transfer[rows]
        rows, most = rows[transfer[rows] <= limit], limit * inner * (1 + TOLERANCE)

        def may_begin(m: int) -> IntArray:
            """What is behind must fit m components, what is in front the others."""
            before = level.workers - m
            fits = (work[-1] - work[rows] <= m * most) & (
                work[rows] <= (before * most if before else 0.0)
            )
            return np.asarray(rows[fits])

        return suffixes(stage, boundary, level.workers, last, may_begin, limit)

    limit = inf
    if last > COARSE and not limited:
        few = np.unique(np.linspace(0, last, COARSE).astype(np.int64))
        limit = float(solve(few, inf).seconds[-1][0]) * (1 + TOLERANCE)
    return solve(np.arange(last + 1), limit)


def _transfer(cuts: Cuts, level: Level) -> FloatArray:
    """Seconds of every boundary: activations forward, gradients back."""
    return np.asarray(2 * cuts.family.cut[0] / level.bytes_per_second)


def _least_memory(cuts: Cuts, levels: Sequence[Level]) -> float:
    """The smallest limit per device that any pipeline keeps.

    The same recurrence, with the bytes that a stage's devices hold in the place of its time and
    links that cost nothing.
    """
    everyone, only = prod(level.workers for level in levels), len(levels) == 1
    need, every = cuts.held, np.arange(len(cuts.work))

    def innermost(m: int, q: int, pairs: Any) -> FloatArray:
        return np.asarray(ceil((m if only else everyone) / q) * cuts.held[pairs])

    def outer(m: int, q: int, pairs: Any) -> FloatArray:
        return np.asarray(need[pairs])

    for number, level in enumerate(levels[:-1]):
        stage = outer if number else innermost
        need = _all_pairs(cuts, stage, Level(level.workers, inf)).seconds
    stage, free = innermost if only else outer, np.zeros(len(every))
    tail = suffixes(stage, free, levels[-1].workers, len(every) - 1, lambda _: every)
    return float(tail.seconds[-1][0])


def _stages(
    cuts: Cuts, solved: list[_Solved], first: int, last: int, workers: int
) -> tuple[ReplicatedStage, ...]:
    """The best pipeline between two cuts on some components, from the front."""
    *below, here = solved
    tail, found = here.tails[last], list[ReplicatedStage]()
    inner = len(below[-1].tails[0].seconds) - 1 if below else 0
    while workers:
        after, q = int(tail.cut[workers][first]), int(tail.replicas[workers][first])
        inside = cuts.family.bits[after] & ~cuts.family.bits[first]
        found.append(
            ReplicatedStage(
                tuple(np.flatnonzero(inside[cuts.units.of_node]).tolist()),
                int(cuts.family.size[first]),
                int(cuts.family.size[after]),
                q,
                float(here.stage(workers, q, np.ix_([first], [after]))[0, 0]),
                _stages(cuts, below, first, after, inner) if below else (),
            )
        )
        first, workers = after, workers - q
    return tuple(found)


def _nothing_fits(cuts: Cuts, workers: int, limit: float, least: float) -> PartitionError:
    """Says the limit that is there and the one that would do."""
    if least < inf:
        share = f" ({least / limit:.3g} times as much)" if limit > 0 else ""
        less = "with less none does" if cuts.exact else "in the orders that were tried"
        want = f"{least:.10g} bytes on each{share}: with that a pipeline fits, {less}"
    else:
        want = "fewer workers: there are not as many places to cut"
    return PartitionError(
        "no replicated pipeline fits the memory",
        got=f"{limit:.10g} bytes on each of {workers} workers for {cuts.family.held[-1]:.6g} bytes "
        f"in all, {cuts.units.held.max():.6g} in one unit, times the minibatches in flight",
        want=want,
        hint="use more workers or a smaller minibatch",
    )
