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

from collections.abc import Callable

import numpy as np

from pipec.partition.costgraph import FloatArray, IntArray, sums
from pipec.partition.units import Units

PLAIN = _PARALLEL = -1
TINY = 1e-300

BranchRule = Callable[[float, float], float]
"""(work, cost of the result) -> priority of a branch; the highest comes first."""

BRANCH_RULES: tuple[BranchRule, ...] = (
    lambda work, cost: work / (cost + TINY),
    lambda work, cost: work,
    lambda work, cost: work**0.5 / (cost + TINY),
)


class Decomposition:
    """The contraction tree of one DAG; ``order`` reads it by different rules.

    Args:
        units: The DAG.
        weight: Work of each unit, [units].
        order: Any linear order of it.
    """

    def __init__(self, units: Units, weight: FloatArray, order: IntArray) -> None:
        n = self._size = units.size
        self._weight: list[float] = weight.tolist()
        self._price = _prices(units, order)
        # per tree node: work inside, cost of the values that end there, unit between its two
        # children or _PARALLEL
        self._work: list[float] = []
        self._cost: list[float] = []
        self._kind: list[int] = []
        self._children: list[list[int]] = []
        # a source and a sink join the units; an edge without units inside has no tree node
        source = [v for v in range(n) if not units.pred[v]]
        sink = [v for v in range(n) if not units.succ[v]]
        ends = np.array([[n, v] for v in source] + [[v, n + 1] for v in sink], np.int64)
        pairs = np.concatenate([units.edges, ends])
        self._edge: dict[int, int] = dict.fromkeys((pairs @ [n + 2, 1]).tolist(), PLAIN)
        # the sum of one neighbour is its number: no sets needed
        tail, head = pairs.T
        self._heads: list[int] = np.bincount(tail, minlength=n + 2).tolist()
        self._tails: list[int] = np.bincount(head, minlength=n + 2).tolist()
        self._head_sum = sums(tail, head.astype(float), n + 2).astype(np.int64).tolist()
        self._tail_sum = sums(head, tail.astype(float), n + 2).astype(np.int64).tolist()
        self._contract()

    @property
    def complete(self) -> bool:
        """Whether the graph is series-parallel."""
        return len(self._edge) == 1

    def order(self, rule: BranchRule) -> IntArray:
        """Units in an order in which producers come first."""
        if self.complete:
            return np.array(self._emit(next(iter(self._edge.values())), rule), np.int64)
        return np.array(self._core_order(rule), np.int64)

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
            node = self._series(first, v, last)
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

    def _new(self, work: float, cost: float, kind: int, children: list[int]) -> int:
        self._work.append(work)
        self._cost.append(cost)
        self._kind.append(kind)
        self._children.append(children)
        return len(self._kind) - 1

    def _series(self, first: int, unit: int, last: int) -> int:
        work, cost = self._weight[unit], self._price[unit]
        if first != PLAIN:
            work += self._work[first]
        if last != PLAIN:
            work += self._work[last]
            cost = self._cost[last]
        return self._new(work, cost, unit, [first, last])

    def _beside(self, old: int, node: int, tail: int) -> int:
        """What a new branch and the edge between the same ends become."""
        if old == PLAIN:
            self._cost[node] += self._price[tail] if tail < self._size else 0.0
            return node
        if self._kind[old] != _PARALLEL:
            old = self._new(self._work[old], self._cost[old], _PARALLEL, [old])
        self._children[old].append(node)
        self._work[old] += self._work[node]
        self._cost[old] += self._cost[node]
        return old

    def _emit(self, root: int, rule: BranchRule) -> list[int]:
        """Units inside one edge."""
        kind, children, work, cost = self._kind, self._children, self._work, self._cost
        found: list[int] = []
        stack = [root]
        while stack:
            node = stack.pop()
            if node < PLAIN:
                found.append(-2 - node)
                continue
            unit = kind[node]
            if unit == _PARALLEL:
                stack += sorted(children[node], key=lambda c: rule(work[c], cost[c]))
                continue
            first, last = children[node]
            if last != PLAIN:
                stack.append(last)
            if first == PLAIN:
                found.append(unit)
            else:
                stack += (-2 - unit, first)
        return found

    def _core_order(self, rule: BranchRule) -> list[int]:
        """Depth first over the units and edges that are left, the highest priority first."""
        n = self._size
        left = [v for v in range(n) if self._heads[v] or self._tails[v]]
        number = {v: place for place, v in enumerate(left)}
        roots: list[int] = []
        succ: list[list[int]] = [[] for _ in left]
        for key, edge in self._edge.items():
            tail, head = divmod(key, n + 2)
            if edge == PLAIN:
                if tail < n and head < n:
                    succ[number[tail]].append(number[head])
                continue
            item = len(left) + len(roots)
            roots.append(edge)
            succ.append([number[head]] if head < n else [])
            if tail < n:
                succ[number[tail]].append(item)
        priority = [rule(self._weight[v], self._price[v]) for v in left]
        priority += [rule(self._work[e], self._cost[e]) for e in roots]
        found: list[int] = []
        for item in _depth_first(succ, priority):
            found += [left[item]] if item < len(left) else self._emit(roots[item - len(left)], rule)
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
