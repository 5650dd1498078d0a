"""The dynamic programs behind ``replicate``: all pairs of cuts, and suffixes of the pipeline."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf, prod

import numpy as np

from pipec.errors import PartitionError
from pipec.partition.costgraph import CostGraph, FloatArray, IntArray
from pipec.partition.devices import Link
from pipec.partition.orders.linear import linear_orders
from pipec.partition.proof.bounds import TOLERANCE
from pipec.partition.proof.ideal_family import IdealFamily
from pipec.partition.proof.ideals import Window, enumerate_ideals
from pipec.partition.proof.reduce import idle_pairs
from pipec.partition.units import Units, joined, make_units, merge

IDEALS_LIMIT = 700
COARSE = 48


@dataclass(frozen=True)
class Level:
    """One level of the hierarchy: components of the level below, joined by links.

    Attributes:
        workers: Components (devices on the innermost level).
        bytes_per_second: Bandwidth between them.
    """

    workers: int
    bytes_per_second: float

    def __post_init__(self) -> None:
        Link(self.bytes_per_second)
        if self.workers < 1:
            raise PartitionError("a level needs at least one worker", got=self.workers)


@dataclass(frozen=True, eq=False)
class Cuts:
    """Candidate cuts by size, and what lies between each pair; infinite if not nested.

    Attributes:
        units: Placement units.
        family: The cuts.
        exact: All ideals are there.
        work: Seconds between, [cuts, cuts].
        weight: Bytes of weights between.
        held: Bytes of weights and activations between.
    """

    units: Units
    family: IdealFamily
    exact: bool
    work: FloatArray
    weight: FloatArray
    held: FloatArray


def make_cuts(graph: CostGraph, *, limited: bool) -> Cuts:
    """All ideals after exact merges; above a limit, the prefixes of two orders."""
    units = make_units(graph, graph.bytes[None])
    while True:
        light = units.weight_bytes == 0
        if limited:
            light &= units.activation_bytes == 0
        before = units.size
        units = merge(units, joined(before, idle_pairs(units, light)))
        if units.size == before:
            break
    ref = units.work[0]
    total = float(ref.sum())
    bits = enumerate_ideals(units, ref, [Window(-1.0, 2 * total + 1.0)], IDEALS_LIMIT)
    exact = bits is not None
    if bits is None:
        orders = [o for o, _ in zip(linear_orders(units, ref, 0), range(2), strict=False)]
        place = np.argsort(np.array(orders), axis=1)
        steps = np.arange(units.size + 1)[:, None]
        bits = np.unique(np.concatenate([p[None, :] < steps for p in place]), axis=0)
    family = IdealFamily(units, np.ones(units.size), bits)
    dense = family.bits.astype(np.float32)
    inside = (dense @ dense.T == family.size[:, None]) & (family.size[:, None] < family.size)

    def between(amount: FloatArray) -> FloatArray:
        return np.where(inside, amount - amount[:, None], inf)

    work, weight = between(family.work[0]), between(family.weight)
    return Cuts(units, family, exact, work, weight, between(family.weight + family.activation))


def stage_seconds(cuts: Cuts, base: FloatArray, level: Level, q: int) -> FloatArray:
    """Time per minibatch of one stage on q components, for all pairs of cuts."""
    sync = 2 * (q - 1) / q / level.bytes_per_second
    return np.maximum(base, sync * cuts.weight if q > 1 else 0.0) / q


@dataclass(frozen=True, eq=False)
class Pairs:
    """Best pipelines between all pairs of cuts, by number of components from 1.

    Attributes:
        seconds: Time per minibatch, [cuts, cuts] each.
        cut: Where the last stage starts.
        replicas: Replicas of the last stage.
    """

    seconds: list[FloatArray]
    cut: list[IntArray]
    replicas: list[IntArray]


@dataclass(frozen=True, eq=False)
class Inner:
    """A solved level below the outermost."""

    level: Level
    base: FloatArray
    pairs: Pairs


def all_pairs(cuts: Cuts, stages: list[FloatArray], level: Level) -> Pairs:
    """Solves one inner level.

    Args:
        cuts: Candidate cuts.
        stages: Time of one stage by replicas from 1, for all pairs.
        level: Components and links.
    """
    n = len(cuts.family.size)
    transfer = 2 * cuts.family.cut[0] / level.bytes_per_second
    pairs = Pairs([], [], [])
    for m in range(1, level.workers + 1):
        best = stages[m - 1].copy()
        cut = np.broadcast_to(np.arange(n)[:, None], (n, n)).copy()
        replicas = np.full((n, n), m)
        for q in range(1, m):
            left = np.maximum(pairs.seconds[m - q - 1], transfer)
            for k in range(1, n - 1):
                reached = np.maximum(left[:k, k, None], stages[q - 1][k, k + 1 :])
                part = (slice(0, k), slice(k + 1, n))
                better = reached < best[part]
                best[part] = np.where(better, reached, best[part])
                cut[part][better], replicas[part][better] = k, q
        pairs.seconds.append(best)
        pairs.cut.append(cut)
        pairs.replicas.append(replicas)
    return pairs


@dataclass(frozen=True, eq=False)
class Suffixes:
    """Best pipelines from every cut to the end, by number of components from 0.

    Attributes:
        seconds: Time per minibatch, [cuts] each.
        cut: Where the first stage ends.
        replicas: Replicas of the first stage.
    """

    seconds: list[FloatArray]
    cut: list[IntArray]
    replicas: list[IntArray]


def suffixes(
    cuts: Cuts, base: FloatArray, levels: Sequence[Level], memory_bytes: float
) -> Suffixes:
    """Solves the outermost level, first on a few cuts for a limit, then on all within it."""
    n = len(cuts.family.size)
    limit = inf
    if n > COARSE and memory_bytes == inf:
        stride = np.unique(np.linspace(0, n - 1, COARSE).astype(np.int64))
        limit = float(_suffixes(cuts, base, levels, inf, inf, stride).seconds[-1][0])
    limit *= 1 + TOLERANCE
    return _suffixes(cuts, base, levels, memory_bytes, limit, np.arange(n))


def _suffixes(
    cuts: Cuts,
    base: FloatArray,
    levels: Sequence[Level],
    memory_bytes: float,
    limit: float,
    rows: IntArray,
) -> Suffixes:
    n, level = len(cuts.family.size), levels[-1]
    inner = prod(lv.workers for lv in levels[:-1])
    transfer = 2 * cuts.family.cut[0] / level.bytes_per_second
    rows = rows[transfer[rows] <= limit]
    work = cuts.family.work[0]
    end = np.full(n, inf)
    end[n - 1] = 0.0
    found = Suffixes([end], [np.zeros(n, np.int64)], [np.zeros(n, np.int64)])
    for m in range(1, level.workers + 1):
        # what is behind must fit m components, what is in front the others
        before, behind = (level.workers - m) * inner, m * inner
        fits = (work[-1] - work[rows]) <= behind * limit * (1 + TOLERANCE)
        fits &= work[rows] <= (before * limit * (1 + TOLERANCE) if before else 0.0)
        sources = rows[fits]
        best, cut, replicas = np.full(n, inf), np.zeros(n, np.int64), np.zeros(n, np.int64)
        for q in range(1, m + 1):
            targets = rows[found.seconds[m - q][rows] <= limit]
            targets = targets[np.isfinite(found.seconds[m - q][targets])]
            if not len(sources) or not len(targets):
                continue
            square = np.ix_(sources, targets)
            sync = 2 * (q - 1) / q / level.bytes_per_second
            reached = np.maximum(base[square], sync * cuts.weight[square] if q > 1 else 0.0) / q
            if memory_bytes < inf:
                reached[ceil(m / q) * cuts.held[square] > memory_bytes] = inf
            reached = np.maximum(reached, np.maximum(transfer, found.seconds[m - q])[targets])
            at = reached.argmin(axis=1)
            value = reached[np.arange(len(sources)), at]
            better = value < best[sources]
            hit = sources[better]
            best[hit], cut[hit], replicas[hit] = value[better], targets[at[better]], q
        found.seconds.append(best)
        found.cut.append(cut)
        found.replicas.append(replicas)
    return found


def least_memory(cuts: Cuts, levels: Sequence[Level]) -> list[float]:
    """The smallest limit per device that any pipeline keeps, by outermost components from 1.

    The same recurrences, with the bytes that a stage's devices hold in the place of its time and
    links that cost nothing.
    """
    everyone, only = prod(level.workers for level in levels), len(levels) == 1
    need = cuts.held
    for number, level in enumerate(levels[:-1]):
        counts = range(1, level.workers + 1)
        stages = [ceil(everyone / q) * need if number == 0 else need for q in counts]
        need = all_pairs(cuts, stages, Level(level.workers, inf)).seconds[-1]
    end = np.full(len(need), inf)
    end[-1] = 0.0
    found = [end]
    for m in range(1, levels[-1].workers + 1):
        ways = [
            np.maximum(ceil(m / q) * need if only else need, found[m - q]).min(axis=1)
            for q in range(1, m + 1)
        ]
        found.append(np.min(ways, axis=0))
    return [float(least[0]) for least in found[1:]]
