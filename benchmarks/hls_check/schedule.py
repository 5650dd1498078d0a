"""How many cycles operations take that are scheduled as soon as possible."""

import math
from collections.abc import Callable, Iterable

import networkx as nx

from benchmarks.hls_check.ir import Instruction


def cycles_of(
    operations: Iterable[Instruction],
    graph: "nx.DiGraph[Instruction]",
    delay: Callable[[Instruction], float],
    period: float,
) -> int:
    """Cycles from the first operation to the end of the last one.

    An operation of less than a cycle stands behind another in the same cycle if both fit in it; one
    with registers begins with a cycle.

    Args:
        operations: What is scheduled.
        graph: Who waits for whom: edges of distance 0.
        delay: Nanoseconds of an operation.
        period: Nanoseconds of a cycle.
    """
    here = set(operations)
    now: nx.DiGraph[Instruction] = nx.DiGraph()
    now.add_nodes_from(here)
    now.add_edges_from(
        (a, b) for a, b, e in graph.edges(data=True) if e["distance"] == 0 and {a, b} <= here
    )
    ends: dict[Instruction, float] = {}
    last = 0.0
    for i in nx.topological_sort(now):
        ready = max((ends[p] for p in now.predecessors(i)), default=0.0)
        took = delay(i)
        inside = ready - math.floor(ready / period + 1e-9) * period
        if inside > 1e-9 and inside + took > period + 1e-9:
            ready += period - inside
        ends[i] = ready + took
        last = max(last, ends[i])
    return max(math.ceil(last / period - 1e-9), 1)
