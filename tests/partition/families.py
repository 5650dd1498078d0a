"""Generated placement problems in the manner of the published ones: branches, and their training.

Work is uniform in 0.5 .. 1.5 seconds, a value costs about ``communication`` to move.
"""

import numpy as np

from pipec.partition.costgraph import CostGraph, Value, cost_graph


def branches(modules: int, width: int, length: int, seed: int) -> list[list[int]]:
    """Consumers of every node: a chain of modules, each of some branches of up to ``length``."""
    rng = np.random.default_rng(seed)
    consumers: list[list[int]] = [[]]
    for _ in range(modules):
        fork, ends = len(consumers) - 1, []
        for size in rng.integers(1, length + 1, width).tolist():
            last = fork
            for _ in range(size):
                consumers.append([])
                consumers[last].append(len(consumers) - 1)
                last = len(consumers) - 1
            ends.append(last)
        consumers.append([])
        for last in ends:
            consumers[last].append(len(consumers) - 1)
    return consumers


def scattered(size: int, degree: int, seed: int) -> list[list[int]]:
    """Consumers of every node of a random DAG with up to ``degree`` producers each."""
    rng = np.random.default_rng(seed)
    consumers: list[list[int]] = [[] for _ in range(size)]
    for v in range(1, size):
        for u in set(rng.integers(0, v, int(rng.integers(1, degree + 1))).tolist()):
            consumers[u].append(v)
    return consumers


def priced(consumers: list[list[int]], communication: float, seed: int) -> CostGraph:
    """Inference: every node once."""
    rng = np.random.default_rng(seed)
    n = len(consumers)
    price = communication * rng.uniform(0.5, 1.5, n)
    values = [Value(u, row, float(price[u])) for u, row in enumerate(consumers) if row]
    return cost_graph([str(v) for v in range(n)], {"gpu": rng.uniform(0.5, 1.5, n)}, values)


def trained(consumers: list[list[int]], communication: float, seed: int) -> CostGraph:
    """Training: every node again backward, with its forward node; gradients flow back."""
    rng = np.random.default_rng(seed)
    n = len(consumers)
    price = communication * rng.uniform(0.5, 1.5, (2, n))
    producers: list[list[int]] = [[] for _ in range(n)]
    for u, row in enumerate(consumers):
        for v in row:
            producers[v].append(u)
    ahead = [Value(u, [*row, n + u], float(price[0, u])) for u, row in enumerate(consumers)]
    back = [
        Value(n + v, [n + u for u in row], float(price[1, v])) for v, row in enumerate(producers)
    ]
    return cost_graph(
        [f"{kind}{v}" for kind in "FB" for v in range(n)],
        {"gpu": rng.uniform(0.5, 1.5, 2 * n)},
        [value for value in ahead + back if value.consumers],
        group=[*range(n), *range(n)],
        backward=[v >= n for v in range(2 * n)],
    )
