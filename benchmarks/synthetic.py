"""Synthetic placement problems: transformer chains, inception-like and series-parallel graphs.

Node work is uniform in 0.5 .. 1.5 seconds; moving an output costs about ``communication`` times the
mean work.
"""

import numpy as np

from pipec.partition.costgraph import CostGraph, Value, cost_graph


def _graph(consumers: list[list[int]], communication: float, seed: int) -> CostGraph:
    rng = np.random.default_rng(seed)
    n = len(consumers)
    price = communication * rng.uniform(0.5, 1.5, n)
    values = [Value(u, c, float(price[u])) for u, c in enumerate(consumers) if c]
    return cost_graph([str(v) for v in range(n)], {"gpu": rng.uniform(0.5, 1.5, n)}, values)


def transformer(n: int, communication: float = 0.1, seed: int = 0) -> CostGraph:
    """Blocks of five nodes in a row, with a residual edge around the first two and the last two."""
    consumers: list[list[int]] = [[v + 1] for v in range(n)]
    for start in range(0, n - 5, 5):
        consumers[start].append(start + 3)
        consumers[start + 3].append(start + 5)
    return _graph([[c for c in row if c < n] for row in consumers], communication, seed)


def inception(n: int, communication: float = 0.1, seed: int = 0) -> CostGraph:
    """Modules of four branches of two to eight nodes between a fork and a join."""
    rng = np.random.default_rng(seed)
    consumers: list[list[int]] = [[]]
    while len(consumers) < n:
        fork = len(consumers) - 1
        ends = []
        for length in rng.integers(2, 9, 4).tolist():
            last = fork
            for _ in range(length):
                consumers.append([])
                consumers[last].append(len(consumers) - 1)
                last = len(consumers) - 1
            ends.append(last)
        consumers.append([])
        for last in ends:
            consumers[last].append(len(consumers) - 1)
    return _graph(consumers, communication, seed)


def series_parallel(n: int, communication: float = 0.1, seed: int = 0) -> CostGraph:
    """Grown edge by edge: u -> v becomes u -> w -> v, or gets u -> w -> v beside it."""
    rng = np.random.default_rng(seed)
    edges: list[tuple[int, int]] = [(0, 1)]
    for w in range(2, n):
        at = int(rng.integers(len(edges)))
        u, v = edges[at]
        if rng.random() < 0.5:
            edges[at] = (u, w)
        else:
            edges.append((u, w))
        edges.append((w, v))
    consumers: list[list[int]] = [[] for _ in range(n)]
    for u, v in edges:
        consumers[u].append(v)
    return _graph(consumers, communication, seed)


FAMILIES = {
    "transformer": transformer,
    "inception": inception,
    "series-parallel": series_parallel,
}
