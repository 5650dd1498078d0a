"""Optimal cuts by trying every assignment; written from the definitions, sharing no solver code."""

from itertools import permutations, product
from math import inf

import numpy as np

from pipec.cluster.cluster import Link
from pipec.partition.costgraph import CostGraph
from pipec.partition.devices import Device


def consumers(graph: CostGraph, h: int) -> list[int]:
    return [int(c) for c in graph.consumer[graph.consumer_ptr[h] : graph.consumer_ptr[h + 1]]]


def legal(graph: CostGraph, stage: list[int]) -> bool:
    """Groups together; producers no later than consumers in the forward graph."""
    forward_groups = {int(c) for c, b in zip(graph.group, graph.backward, strict=True) if not b}
    for u in range(graph.size):
        for v in range(u):
            if graph.group[u] >= 0 and graph.group[u] == graph.group[v] and stage[u] != stage[v]:
                return False

    def orphan(v: int) -> bool:
        alone = graph.group[v] < 0 or int(graph.group[v]) not in forward_groups
        return bool(graph.backward[v]) and alone

    for h in range(len(graph.producer)):
        u = int(graph.producer[h])
        for v in consumers(graph, h):
            if not graph.backward[u] and not graph.backward[v] and stage[u] > stage[v]:
                return False
            both = graph.backward[u] and graph.backward[v]
            if both and (orphan(u) or orphan(v)) and stage[v] > stage[u]:
                return False
    return True


def loads(
    graph: CostGraph,
    stage: list[int],
    devices: list[Device],
    links: list[Link] | None = None,
    overlap: bool = False,
) -> list[float]:
    """Seconds per stage (infinite where a node cannot run)."""
    result = []
    for s, device in enumerate(devices):
        row = graph.classes.index(device.kind)
        work = sum(float(graph.work[row, v]) for v in range(graph.size) if stage[v] == s)
        if links is None:
            comm = 0.0
            for h in range(len(graph.producer)):
                places = {stage[int(graph.producer[h])], *(stage[c] for c in consumers(graph, h))}
                if s in places and len(places) > 1 and device.pays:
                    comm += float(graph.seconds[h])
            result.append(work + comm)
            continue
        sides = [_boundary(graph, stage, b, links) for b in (s, s + 1)]
        if overlap:
            result.append(max(work, *(max(side) for side in sides)))
        else:
            result.append(work + sum(sum(side) for side in sides))
    return result


def _boundary(graph: CostGraph, stage: list[int], b: int, links: list[Link]) -> tuple[float, float]:
    """Seconds (forward, backward) between stage b - 1 and stage b."""
    forward = backward = 0.0
    for h in range(len(graph.producer)):
        places = [stage[int(graph.producer[h])], *(stage[c] for c in consumers(graph, h))]
        if min(places) < b <= max(places):
            forward += float(graph.bytes[h])
            backward += float(graph.gradient_bytes[h])
    if not 0 < b <= len(links):
        return 0.0, 0.0
    link = links[b - 1]
    times = [
        size / link.bytes_per_second + (link.latency_seconds if size else 0.0)
        for size in (forward, backward)
    ]
    return times[0], times[1]


def best_cut(
    graph: CostGraph,
    devices: list[Device],
    *,
    free_order: bool = False,
    exactly: bool = True,
    links: list[Link] | None = None,
    overlap: bool = False,
) -> float:
    """Least largest load over all assignments and device orders; infinity if nothing is legal."""
    k, best = len(devices), inf
    orders = sorted(set(permutations(range(k)))) if free_order else [tuple(range(k))]
    for stage in product(range(k), repeat=graph.size):
        if (exactly and len(set(stage)) < k) or not legal(graph, list(stage)):
            continue
        held = [
            sum(
                graph.weight_bytes[v] + graph.activation_bytes[v]
                for v in range(graph.size)
                if stage[v] == s
            )
            for s in range(k)
        ]
        for order in orders:
            used = [devices[d] for d in order]
            if any(h > d.memory_bytes for h, d in zip(held, used, strict=True)):
                continue
            load = loads(graph, list(stage), used, links, overlap)
            best = min(best, max(load))
    return float(np.float64(best))
