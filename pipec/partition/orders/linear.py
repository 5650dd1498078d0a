"""Linear orders of a DAG that tend to hold good cuts; which one wins varies, so several are tried.

Each is O((n + m) log n) and every prefix of it is closed under predecessors.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from pipec.partition.costgraph import FloatArray, IntArray
from pipec.partition.units import Units


def generate_orders(units: Units, weight: FloatArray, randoms: int = 6) -> Iterator[IntArray]:
    """Yields orders, the generally best ones first.

    Args:
        units: The DAG.
        weight: Work of each unit, for the longest paths, [units].
        randoms: How many random depth-first orders follow the fixed ones.
    """
    base = list(range(units.size))
    if not (units.edges[:, 0] < units.edges[:, 1]).all():
        import networkx as nx

        graph: nx.DiGraph[int] = nx.DiGraph(units.edges.tolist())
        graph.add_nodes_from(base)
        base = list(nx.lexicographical_topological_sort(graph))
    yield np.array(base, np.int64)
    # from the end: a branch is finished before the next one begins
    back = replace(units, succ=units.pred, pred=units.succ)
    head = _longest_paths(base, units.succ, weight)
    yield _depth_first(back, head)[::-1]
    tail = _longest_paths(base[::-1], units.pred, weight)
    yield _depth_first(units, tail)
    yield _depth_first(units, [-t for t in tail])
    for seed in range(randoms):
        generator = random.Random(seed)  # noqa: S311 - reproducible, nothing secret
        yield _depth_first(units, [generator.random() for _ in base])


def _longest_paths(order: list[int], succ: list[list[int]], weight: FloatArray) -> list[float]:
    """Longest path to each unit, its own weight not counted."""
    length = [0.0] * len(order)
    own = weight.tolist()
    for u in order:
        reach = length[u] + own[u]
        for v in succ[u]:
            length[v] = max(length[v], reach)
    return length


def _depth_first(units: Units, key: list[int] | list[float]) -> IntArray:
    """Follows what has just become ready, least key first."""
    missing = [len(p) for p in units.pred]
    ready = [v for v in range(units.size) if not missing[v]]
    by_key: Callable[[int], float] = key.__getitem__
    ready.sort(key=by_key, reverse=True)
    order: list[int] = []
    while ready:
        u = ready.pop()
        order.append(u)
        fresh: list[int] = []
        for v in units.succ[u]:
            missing[v] -= 1
            if not missing[v]:
                fresh.append(v)
        ready += sorted(fresh, key=by_key, reverse=True)
    return np.array(order, np.int64)
