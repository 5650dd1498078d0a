"""The dynamic program behind ``replicate``: suffixes of a pipeline over candidate cuts."""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, inf
from typing import Any

import numpy as np

from pipec.cluster.cluster import Link
from pipec.errors import PartitionError
from pipec.partition.costgraph import CostGraph, FloatArray, IntArray
from pipec.partition.orders.linear import generate_orders
from pipec.partition.proof.ideal_family import IdealFamily
from pipec.partition.proof.ideals import Window, enumerate_ideals
from pipec.partition.proof.reduce import idle_pairs
from pipec.partition.units import Units, join, make_units, merge

IDEALS_LIMIT = 700


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
    before = 0
    while before != (before := units.size):
        light = (units.held if limited else units.weight_bytes) == 0
        units = merge(units, join(before, idle_pairs(units, light)))
    ref = units.work[0]
    total = float(ref.sum())
    bits = enumerate_ideals(units, ref, [Window(-1.0, 2 * total + 1.0)], IDEALS_LIMIT)
    exact = bits is not None
    if bits is None:
        orders = [o for o, _ in zip(generate_orders(units, ref, 0), range(2), strict=False)]
        place = np.argsort(np.array(orders), axis=1)
        steps = np.arange(units.size + 1)[:, None]
        bits = np.unique(np.concatenate([p[None, :] < steps for p in place]), axis=0)
    family = IdealFamily(units, np.ones(units.size), bits)
    dense = family.bits.astype(np.float32)
    inside = (dense @ dense.T == family.size[:, None]) & (family.size[:, None] < family.size)

    def between(amount: FloatArray) -> FloatArray:
        return np.where(inside, amount - amount[:, None], inf)

    work, weight = between(family.work[0]), between(family.weight)
    return Cuts(units, family, exact, work, weight, between(family.held))


Stage = Callable[[int, int, Any], FloatArray]
"""(components from the stage on, replicas, pairs of cuts) -> what one stage takes, infinite if it
may not be."""


def time_stage(
    cuts: Cuts, base: FloatArray, level: Level, memory_bytes: float = inf, everyone: int = 0
) -> Stage:
    """Time per minibatch of one stage: compute, or the exchange of its replicas' gradients.

    Args:
        cuts: Candidate cuts.
        base: Seconds of one component, for all pairs.
        level: Components and links.
        memory_bytes: Limit of a component; ceil(components / replicas) minibatches are in flight.
        everyone: Components that are taken for those minibatches, if not those from the stage on.
    """

    def seconds(m: int, q: int, pairs: Any) -> FloatArray:
        """Seconds of a stage on ``q`` replicas, ``m`` components from it on."""
        sync = 2 * (q - 1) / q / level.bytes_per_second
        found = np.maximum(base[pairs], sync * cuts.weight[pairs] if q > 1 else 0.0) / q
        if memory_bytes < inf:
            found[ceil((everyone or m) / q) * cuts.held[pairs] > memory_bytes] = inf
        return np.asarray(found)

    return seconds


@dataclass(frozen=True, eq=False)
class Suffixes:
    """Best pipelines from every cut to the end, by number of components from 0.

    Attributes:
        seconds: Time per minibatch, [cuts] each.
        cut: The end of the first stage.
        replicas: Replicas of the first stage.
    """

    seconds: list[FloatArray]
    cut: list[IntArray]
    replicas: list[IntArray]


def suffixes(
    stage: Stage,
    transfer: FloatArray,
    workers: int,
    end: int,
    may_begin: Callable[[int], IntArray],
    limit: float = inf,
) -> Suffixes:
    """A(m, i) = min over cuts k and replicas q of max(stage(i, k), transfer(k), A(m - q, k)).

    Args:
        stage: Seconds of one stage.
        transfer: Seconds of every boundary, [cuts].
        workers: Most components.
        end: The last cut.
        may_begin: Cuts from which a number of components go on to the end.
        limit: What takes longer is of no interest.
    """
    n = len(transfer)
    found = Suffixes([np.full(n, inf)], [np.zeros(n, np.int64)], [np.zeros(n, np.int64)])
    found.seconds[0][end] = 0.0
    ready = np.where(np.arange(n) == end, 0.0, transfer)
    for m in range(1, workers + 1):
        sources = may_begin(m)
        best, cut, replicas = np.full(n, inf), np.zeros(n, np.int64), np.zeros(n, np.int64)
        for q in range(1, m + 1):
            behind = np.maximum(ready, found.seconds[m - q])
            targets = np.flatnonzero((behind <= limit) & (behind < inf))
            if not len(sources) or not len(targets):
                continue
            reached = np.maximum(stage(m, q, np.ix_(sources, targets)), behind[targets])
            at = reached.argmin(axis=1)
            value = reached[np.arange(len(sources)), at]
            better = value < best[sources]
            hit = sources[better]
            best[hit], cut[hit], replicas[hit] = value[better], targets[at[better]], q
        found.seconds.append(best)
        found.cut.append(cut)
        found.replicas.append(replicas)
    return found
