"""Linear orders from the series-parallel decomposition of a DAG.

A unit with one way in and one way out is contracted into the edge around it, and edges between the
same two ends become one (Valdes, Tarjan and Lawler, SIAM J. Comput. 1982). What is left of a
series-parallel graph is one edge, and how it was contracted is a tree::

    parallel of branches u ==> v        series of two edges around a unit

An order that finishes one branch before it starts the next keeps few values open; which branch
comes first matters. While a cut lies in one branch, every branch before it holds its result open:
the expected cost is least if branches come by falling work / cost of the result (Smith's rule for
weighted completion times). A graph that is not series-parallel leaves a core, whose edges are then
ordered depth first, each with all that was contracted into it.
"""

import numpy as np

from pipec.partition.costgraph import FloatArray, IntArray, sums
from pipec.partition.orders.branch_tree import NOTHING, BranchRule, BranchTree
from pipec.partition.units import Units


class Decomposition:
    """The contraction tree of one DAG; ``order`` reads it by different rules.

    Args:
        units: The DAG.
        weight: Work of each unit, [units].
        order: Any linear order of it.
    """

    def __init__(self, units: Units, weight: FloatArray, order: IntArray) -> None:
        n = self._size = units.size
        self.tree = BranchTree(weight.tolist(), _prices(units, order))
        # a source and a sink join the units; an edge without units inside has no tree node
        source = [v for v in range(n) if not units.pred[v]]
        sink = [v for v in range(n) if not units.succ[v]]
        ends = np.array([[n, v] for v in source] + [[v, n + 1] for v in sink], np.int64)
        pairs = np.concatenate([units.edges, ends])
        self._edge: dict[int, int] = dict.fromkeys((pairs @ [n + 2, 1]).tolist(), NOTHING)
        # the sum of one neighbour is its number: no sets needed
        tail, head = pairs.T
        self._heads: list[int] = np.bincount(tail, minlength=n + 2).tolist()
        self._tails: list[int] = np.bincount(head, minlength=n + 2).tolist()
        self._head_sum = sums(tail, head.astype(float), n + 2).astype(np.int64).tolist()
        self._tail_sum = sums(head, tail.astype(float), n + 2).astype(np.int64).tolist()
        self._contract()

    @property
    def root(self) -> int | None:
        """Node of the tree that holds all units, if the graph is series-parallel."""
        return next(iter(self._edge.values())) if len(self._edge) == 1 else None

    def order(self, rule: BranchRule) -> IntArray:
        """Units in an order in which producers come first."""
        root = self.root
        found = self._core_order(rule) if root is None else self.tree.units(root, rule)
        return np.array(found, np.int64)

    def _contract(self) -> None:
        n, heads, tails, edge = self._size, self._heads, self._tails, self._edge
        ready = [v for v in range(n) if heads[v] == 1 == tails[v]]
        while ready:
            v = ready.pop()
            if heads[v] != 1 or tails[v] != 1:
                continue
            tail, head = self._tail_sum[v], self._head_sum[v]
            first, last = edge.pop(tail * (n + 2) + v), edge.pop(v * (n + 2) + head)
            heads[v] = tails[v] = 0
            node = self.tree.series(first, v, last)
            key = tail * (n + 2) + head
            if key in edge:
                edge[key] = self._beside(edge[key], node, tail)
                heads[tail] -= 1
                tails[head] -= 1
                self._head_sum[tail] -= v
                self._tail_sum[head] -= v
            else:
                edge[key] = node
                self._head_sum[tail] += head - v
                self._tail_sum[head] += tail - v
            if tail < n and heads[tail] == 1 == tails[tail]:
                ready.append(tail)
            if head < n and heads[head] == 1 == tails[head]:
                ready.append(head)

    def _beside(self, old: int, node: int, tail: int) -> int:
        """What a new branch and the edge between the same ends become."""
        if old == NOTHING:
            self.tree.cost[node] += self.tree.price[tail] if tail < self._size else 0.0
            return node
        return self.tree.widen(old, node)

    def _core_order(self, rule: BranchRule) -> list[int]:
        """Depth first over the units and edges that are left, the highest priority first."""
        n, tree = self._size, self.tree
        left = [v for v in range(n) if self._heads[v] or self._tails[v]]
        number = {v: place for place, v in enumerate(left)}
        roots: list[int] = []
        succ: list[list[int]] = [[] for _ in left]
        for key, edge in self._edge.items():
            tail, head = divmod(key, n + 2)
            if edge == NOTHING:
                if tail < n and head < n:
                    succ[number[tail]].append(number[head])
                continue
            item = len(left) + len(roots)
            roots.append(edge)
            succ.append([number[head]] if head < n else [])
            if tail < n:
                succ[number[tail]].append(item)
        priority = [rule(tree.weight[v], tree.price[v]) for v in left]
        priority += [rule(tree.work[e], tree.cost[e]) for e in roots]
        found: list[int] = []
        for item in _depth_first(succ, priority):
            found += [left[item]] if item < len(left) else tree.units(roots[item - len(left)], rule)
        return found


def _prices(units: Units, order: IntArray) -> list[float]:
    """Cost of the values that each unit produces: those whose first unit it is."""
    place = np.empty(units.size, np.int64)
    place[order] = np.arange(units.size)
    if not len(units.pin):
        return [0.0] * units.size
    key = units.pin_edge() * units.size + place[units.pin]
    first = units.pin[np.argsort(key)[units.pin_ptr[:-1]]]
    price: list[float] = np.bincount(first, units.cost.sum(axis=0), units.size).tolist()
    return price


def _depth_first(succ: list[list[int]], priority: list[float]) -> list[int]:
    missing = [0] * len(succ)
    for heads in succ:
        for v in heads:
            missing[v] += 1
    ready = sorted((v for v in range(len(succ)) if not missing[v]), key=priority.__getitem__)
    found: list[int] = []
    while ready:
        u = ready.pop()
        found.append(u)
        fresh: list[int] = []
        for v in succ[u]:
            missing[v] -= 1
            if not missing[v]:
                fresh.append(v)
        ready += sorted(fresh, key=priority.__getitem__)
    return found
