"""How far a problem is from fitting into memory, in numbers.

The least limit that fits is itself a cut: of a graph whose work is the memory and whose transfers
are free, the largest load is the limit that is needed.
"""

from dataclasses import dataclass, replace
from math import inf
from time import perf_counter

import numpy as np

from pipec.errors import PartitionError
from pipec.partition.costgraph import CostGraph
from pipec.partition.devices import Device
from pipec.partition.machine import Machine
from pipec.partition.proof.prove import prove
from pipec.partition.search.cutting import cut_orders
from pipec.partition.search.incumbent import Incumbent
from pipec.partition.units import make_units

SECONDS = 3.0
NOTHING = 1e-6
"""Bytes that a limit of nothing counts as, so that needs can be given as multiples of it."""


@dataclass(frozen=True, eq=False)
class Fit:
    """How much memory the cuts of a problem need.

    Attributes:
        least: No cut fits into less than this times the limits.
        enough: A cut fits into this times the limits; infinite if none was found.
        best: That cut, its value being ``enough``.
    """

    least: float
    enough: float
    best: Incumbent


def fit_memory(graph: CostGraph, machine: Machine) -> Fit:
    """Finds the cut that needs the least memory, whatever its loads."""
    held = graph.weight_bytes + graph.activation_bytes
    kinds = tuple(Device(f"kind {n}", inf, pays=False) for n in range(len(machine.kinds)))
    rows = []
    for kind, row in zip(machine.kinds, machine.rows, strict=True):
        share = held / max(kind.memory_bytes, NOTHING)
        rows.append(np.where(np.isfinite(graph.work[row]), share, inf))
    shares = replace(
        graph,
        classes=tuple(kind.kind for kind in kinds),
        work=np.array(rows),
        seconds=np.zeros_like(graph.seconds),
    )
    light = replace(
        machine,
        devices=tuple(kinds[machine.kinds.index(d)] for d in machine.devices),
        kinds=kinds,
        rows=tuple(range(len(kinds))),
        priced=True,
        overlap=False,
    )
    units, best = make_units(shares, shares.seconds[None]), Incumbent()
    deadline = perf_counter() + SECONDS
    cut_orders(units, light, best, SECONDS)
    lower, _ = prove(units, light, best, deadline)
    return Fit(min(lower, best.value), best.value, best)


def check_runnable(graph: CostGraph, machine: Machine) -> None:
    """Every node needs a device here that can run it.

    Raises:
        PartitionError: The nodes that have none.
    """
    blocked = [
        graph.names[v]
        for v in range(graph.size)
        if not any(np.isfinite(graph.work[row, v]) for row in machine.rows)
    ]
    if blocked:
        raise PartitionError(
            "no device here can run some nodes",
            where=", ".join(blocked[:5]) + (f" and {len(blocked) - 5} more" * (len(blocked) > 5)),
            got=", ".join(sorted({d.kind for d in machine.devices})),
            want="a finite time on one of these devices",
        )


def nothing_fits(graph: CostGraph, machine: Machine, fit: Fit) -> PartitionError:
    """The error for limits that no cut meets: what is needed, what there is."""
    limited = any(kind.memory_bytes < inf for kind in machine.kinds)
    if not limited or (fit.least <= 1 and not fit.enough < inf):
        return PartitionError(
            "no contiguous cut was found that runs on these devices",
            got=", ".join(d.kind for d in machine.devices),
            want="for every node a device that can run it, in this order",
            hint="let the devices stand in another order, or use more of them",
        )
    return _too_small(graph, machine, fit)


def _too_small(graph: CostGraph, machine: Machine, fit: Fit) -> PartitionError:
    """Says the limit that is there, the one that would do, and the one that surely would not."""
    limits = np.array([d.memory_bytes for d in machine.devices if np.isfinite(d.memory_bytes)])
    held = graph.weight_bytes + graph.activation_bytes
    heaviest = int(np.argmax(held))
    alike = np.ptp(limits) == 0
    unit = max(float(limits[0]), NOTHING) if alike else 1.0
    name = "bytes on each" if alike else "times every limit"
    least, enough = fit.least * unit, fit.enough * unit
    if not enough < inf:
        want = f"more than {least:.10g} {name}"
    elif enough <= least * (1 + 1e-6):
        want = f"{enough:.10g} {name}: with that a cut fits, with less none does"
    else:
        want = f"{enough:.10g} {name}, with which a cut fits; with less than {least:.10g} none does"
    return PartitionError(
        "no contiguous cut fits the memory",
        got=f"limits of {', '.join(f'{b:.10g}' for b in np.unique(limits))} bytes on {len(limits)} "
        f"devices for {held.sum():.6g} bytes in all, {held[heaviest]:.6g} in node "
        f"{graph.names[heaviest]!r}",
        want=want,
        hint="use more devices, larger ones, or fewer microbatches in flight",
    )
