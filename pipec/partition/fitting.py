"""How far a problem is from fitting into memory, said in numbers."""

import numpy as np

from pipec.errors import PartitionError
from pipec.partition.costgraph import CostGraph
from pipec.partition.devices import StageMemory
from pipec.partition.machine import Machine


def nothing_fits(graph: CostGraph, machine: Machine, memory: StageMemory) -> PartitionError:
    """The error for limits that no cut meets: what is needed, what there is."""
    count = len(machine.devices)
    factors = [memory(s, count) for s in range(count)]
    held = np.array([v * graph.weight_bytes + a * graph.activation_bytes for v, a in factors])
    least = held.min(axis=0)
    limits = np.array([d.memory_bytes for d in machine.devices])
    blocked = [
        graph.names[v]
        for v in range(graph.size)
        if not any(np.isfinite(graph.work[row, v]) for row in machine.rows)
    ]
    if blocked:
        return PartitionError(
            "no device here can run some nodes",
            where=", ".join(blocked[:5]),
            got=", ".join(sorted({d.kind for d in machine.devices})),
        )
    heaviest = int(np.argmax(least))
    return PartitionError(
        "no contiguous cut was found that fits the devices",
        got=f"{least.sum():.6g} bytes in all, {least[heaviest]:.6g} in one node "
        f"({graph.names[heaviest]})",
        want=f"{limits.sum():.6g} bytes in all, {limits.max():.6g} on the largest device",
        hint="use more devices, or fewer microbatches in flight",
    )
