"""A second opinion: the contiguous cut as constraints over an order encoding, for OR-tools CP-SAT.

A Boolean says "node v sits at or before place d"; one Boolean per place says "this is a CPU".
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from ortools.sat.python import cp_model

from pipec.partition.costgraph import CostGraph
from pipec.partition.formats.workload import Workload

SCALE = 1 << 20


def least_load(workload: Workload, upper: float) -> float:
    """Optimal largest load, found without any of the package's solvers.

    Args:
        workload: The problem with its devices.
        upper: A load that is known to be reachable.
    """
    graph, places = workload.graph, workload.accelerators + workload.cpus
    model = cp_model.CpModel()
    forward = {int(g) for g, b in zip(graph.group, graph.backward, strict=True) if not b}
    label = [int(g) if g >= 0 else -1 - v for v, g in enumerate(graph.group)]
    before: dict[int, list[Any]] = {
        unit: [0, *(model.new_bool_var("") for _ in range(places - 1)), 1] for unit in set(label)
    }
    for unit in before.values():
        for d in range(1, places - 1):
            model.add_implication(unit[d], unit[d + 1])
    at = {u: [b[d + 1] - b[d] for d in range(places)] for u, b in before.items()}
    is_cpu = [model.new_bool_var("") for _ in range(places)]
    model.add(sum(is_cpu) == workload.cpus)
    scaled = np.round(np.where(np.isfinite(graph.work), graph.work, 0) * SCALE).astype(int).tolist()
    cost = np.round(graph.seconds * SCALE).astype(int).tolist()
    top = model.new_int_var(0, int(upper * SCALE) + graph.size + len(cost), "")
    for first, second in _precedences(graph, label, forward):
        for d in range(1, places):
            model.add(before[second][d] <= before[first][d])
    for d in range(places):
        paid = []
        for h, price in enumerate(cost):
            tail = label[int(graph.producer[h])]
            heads = graph.consumer[graph.consumer_ptr[h] : graph.consumer_ptr[h + 1]]
            units = {label[v] for v in heads.tolist()} - {tail}
            if units and price:
                cut = model.new_bool_var("")
                paid.append(price * cut)
                for unit in units:
                    model.add(cut >= at[tail][d] - at[unit][d])
                    model.add(cut >= at[unit][d] - at[tail][d])
        here = [at[unit][d] for unit in label]
        fast = sum(t * x for t, x in zip(scaled[0], here, strict=True)) + sum(paid)
        slow = sum(t * x for t, x in zip(scaled[1], here, strict=True))
        held = sum(int(b) * x for b, x in zip(graph.weight_bytes, here, strict=True))
        model.add(fast <= top).only_enforce_if(~is_cpu[d])
        for v in np.flatnonzero(np.isinf(graph.work[0])).tolist():
            model.add(at[label[v]][d] <= is_cpu[d])
        model.add(held <= int(workload.memory_bytes)).only_enforce_if(~is_cpu[d])
        model.add(slow <= top).only_enforce_if(is_cpu[d])
    model.minimize(top)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 2
    solver.parameters.max_time_in_seconds = 120
    status = solver.solve(model)
    assert status == cp_model.OPTIMAL, solver.status_name(status)
    return float(solver.objective_value) / SCALE


def _precedences(
    graph: CostGraph, label: list[int], forward: set[int]
) -> Iterator[tuple[int, int]]:
    """Pairs of units, the first of which is at the same place or an earlier one."""
    orphan = [
        bool(b) and (g < 0 or int(g) not in forward)
        for g, b in zip(graph.group, graph.backward, strict=True)
    ]
    for u, v in graph.edges().tolist():
        both = graph.backward[u] and graph.backward[v]
        if not graph.backward[u] and not graph.backward[v]:
            yield label[u], label[v]
        elif both and (orphan[u] or orphan[v]):
            yield label[v], label[u]
