"""Placement units: what the groups, the backward pass and cycles leave to decide.

A unit is a set of nodes that must share a device. Units form a DAG; its *ideals* (sets closed under
predecessors) are exactly what can lie left of a cut.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np

from pipec.partition.costgraph import (
    CostGraph,
    FloatArray,
    IntArray,
    distinct,
    successors,
    sums,
    topological_order,
)


@dataclass(frozen=True, eq=False)
class Units:
    """Arrays over units and hyperedges.

    Attributes:
        work: Seconds, [classes, units].
        weight_bytes: Per weight version, [units].
        activation_bytes: Per microbatch in flight, [units].
        edges: Precedence between units, [edges, 2], no repeats.
        succ: Successors of each unit.
        pred: Predecessors of each unit.
        pin_ptr: Where the units of each hyperedge start in ``pin``, [hyperedges + 1].
        pin: Units of the hyperedges, sorted within each; at least two.
        cost: Weights of the hyperedges, [kinds, hyperedges]: seconds, or (forward, backward) bytes.
        of_node: Unit of each node of the cost graph, [nodes].
    """

    work: FloatArray
    weight_bytes: FloatArray
    activation_bytes: FloatArray
    edges: IntArray
    succ: list[list[int]]
    pred: list[list[int]]
    pin_ptr: IntArray
    pin: IntArray
    cost: FloatArray
    of_node: IntArray

    @property
    def size(self) -> int:
        """Number of units."""
        return int(self.work.shape[1])

    @property
    def held(self) -> FloatArray:
        """Bytes of weights and activations, [units]."""
        return self.weight_bytes + self.activation_bytes

    def pin_edge(self) -> IntArray:
        """The hyperedge of every entry of ``pin``."""
        return np.repeat(np.arange(len(self.pin_ptr) - 1), np.diff(self.pin_ptr))

    def stages(self, of_nodes: IntArray) -> IntArray:
        """The first stage of every unit that is late enough for all its nodes and producers.

        A cut that was found before nodes became one unit may lead right through it.

        Args:
            of_nodes: Stage of every node of the cost graph, [nodes].
        """
        stage = np.zeros(self.size, np.int64)
        np.maximum.at(stage, self.of_node, of_nodes)
        for v in topological_order(self.size, self.succ):
            for u in self.pred[v]:
                stage[v] = max(stage[v], stage[u])
        return stage


def make_units(graph: CostGraph, cost: FloatArray) -> Units:
    """Contracts groups, mirrors backward-only groups, fuses what is then cyclic.

    Args:
        graph: The problem.
        cost: Hyperedge weights of the graph's values, [kinds, values].

    A group without a forward node is ordered by the mirror image of its backward edges
    (Tarnawski et al., NeurIPS'20).
    """
    n = graph.size
    label = np.arange(n)
    grouped = graph.group >= 0
    _, first, inverse = np.unique(graph.group[grouped], return_index=True, return_inverse=True)
    label[grouped] = np.flatnonzero(grouped)[first][inverse]
    pairs = graph.edges()
    ahead = ~graph.backward
    has_forward = np.zeros(n, bool)
    has_forward[label[ahead]] = True
    orphan = ~has_forward[label]
    tail, head = pairs[:, 0], pairs[:, 1]
    forward = pairs[ahead[tail] & ahead[head]]
    mirror = pairs[graph.backward[tail] & graph.backward[head] & (orphan[tail] | orphan[head])]
    trivial = Units(
        work=graph.work,
        weight_bytes=graph.weight_bytes,
        activation_bytes=graph.activation_bytes,
        edges=np.concatenate([forward, mirror[:, ::-1]]),
        succ=[],
        pred=[],
        pin_ptr=np.concatenate([[0], np.cumsum(np.diff(graph.consumer_ptr) + 1)]),
        pin=np.insert(graph.consumer, graph.consumer_ptr[:-1], graph.producer),
        cost=cost,
        of_node=np.arange(n),
    )
    return merge(trivial, label)


def join(count: int, pairs: Iterable[tuple[int, int]]) -> IntArray:
    """A label per unit, [count]; the units of a pair have the same."""
    return _components(count, np.array([*pairs], np.int64).reshape(-1, 2), "weak")


def merge(units: Units, label: IntArray) -> Units:
    """Units with the same label become one; cycles that arise are fused; equal pin sets add up.

    Args:
        units: What to merge.
        label: Any integers, [units].
    """
    _, label = np.unique(label, return_inverse=True)
    n = int(label.max()) + 1
    succ = successors(n, label[units.edges])
    ascending = all(heads[0] > u for u, heads in enumerate(succ) if heads)
    component = None if ascending else strong_components(succ)
    if component is not None:
        label = component[label]
        n = int(label.max()) + 1
        succ = successors(n, label[units.edges])
    tails = np.repeat(np.arange(n), [len(s) for s in succ])
    edges = np.stack([tails, np.array([v for s in succ for v in s], np.int64)], axis=1)
    merged = replace(
        units,
        work=np.stack([sums(label, row, n) for row in units.work]),
        weight_bytes=sums(label, units.weight_bytes, n),
        activation_bytes=sums(label, units.activation_bytes, n),
        edges=edges,
        succ=succ,
        pred=successors(n, edges[:, ::-1]),
        of_node=label[units.of_node],
    )
    return _merge_pins(merged, label[units.pin], n)


def _merge_pins(units: Units, pin: IntArray, n: int) -> Units:
    """Drops repeated pins and hyperedges inside one unit or without cost; adds up equal ones."""
    count = len(units.pin_ptr) - 1
    keys = distinct(units.pin_edge() * n + pin)
    edge, pin = keys // n, keys % n
    degree = np.bincount(edge, minlength=count)
    keep = (degree >= 2) & (units.cost > 0).any(axis=0)
    pin, degree, cost = pin[keep[edge]], degree[keep], units.cost[:, keep]
    ptr = np.concatenate([[0], np.cumsum(degree)])
    seen: dict[bytes, int] = {}
    sets = [pin[a:b].tobytes() for a, b in pairwise(ptr.tolist())]
    name = np.array([seen.setdefault(pins, len(seen)) for pins in sets], np.int64)
    _, chosen, inverse = np.unique(name, return_index=True, return_inverse=True)
    total = np.stack([sums(inverse, row, len(chosen)) for row in cost])
    ends = np.cumsum(degree[chosen])
    shift = np.repeat(ptr[chosen] - ends + degree[chosen], degree[chosen])
    return replace(
        units,
        pin_ptr=np.concatenate([[0], ends]).astype(np.int64),
        pin=pin[shift + np.arange(len(shift))],
        cost=total,
    )


def strong_components(succ: list[list[int]]) -> IntArray | None:
    """Component of every node, or None if there is no cycle."""
    n = len(succ)
    if len(topological_order(n, succ)) == n:
        return None
    return _components(n, np.array([(u, v) for u in range(n) for v in succ[u]], np.int64), "strong")


def _components(count: int, edges: IntArray, connection: Literal["weak", "strong"]) -> IntArray:
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    graph = coo_array((np.ones(len(edges)), edges.T), shape=(count, count))
    return np.asarray(connected_components(graph, connection=connection)[1], np.int64)
