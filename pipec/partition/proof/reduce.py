"""Exact reductions: merges that cannot hide a cut better than the best one known.

1. Transitive edges go (they only hide that a unit has one predecessor).
2. A unit without work joins its only predecessor, or its only successor, when every hyperedge on
   it also has that neighbour: moving it there cannot raise any load.
3. Two units whose hyperedge costs more than all loads below the limit can spare are never apart:
   sum of loads < devices * limit, of which the work takes its part, and every value that is cut is
   paid for on both sides (on one, if the other may be a device that does not pay). Nor are they
   if the hyperedge alone costs as much as the limit, for a device that has a part of it.
4. Units that only one single device can run, as no other has the memory or the kind, share it, with
   all that lies between them.
"""

from itertools import pairwise

import numpy as np

from pipec.partition.costgraph import BoolArray
from pipec.partition.machine import Machine
from pipec.partition.proof.bounds import TOLERANCE, make_bounds, memory_shares
from pipec.partition.proof.ideals import closures
from pipec.partition.units import Units, join, merge

CLOSURE_LIMIT = 3000
Pairs = list[tuple[int, int]]
"""Units that join each other."""


def reduce_units(units: Units, machine: Machine, limit: float, *, idle: bool = True) -> Units:
    """Applies all rules until nothing changes.

    Args:
        units: What to reduce.
        machine: The devices.
        limit: Only cuts with every load below it matter.
        idle: Apply rule 2. It may leave fewer units than stages.

    Returns:
        Fewer units, with the same best cut below ``limit`` if there is one. A single unit is left
        whole.
    """
    while True:
        pairs = _only_here(units, machine)
        if np.isfinite(limit):
            pairs += _inseparable(units, find_never_cut(units, machine, limit))
        if idle:
            least = min(kind.memory_bytes for kind in machine.kinds)  # else moves may break it
            pairs += idle_pairs(units, (units.held == 0) | bool(units.held.sum() <= least))
        before = units.size
        units = merge(units, join(before, pairs))
        if units.size == before:
            return units


def find_never_cut(units: Units, machine: Machine, limit: float) -> BoolArray:
    """Rule 3: hyperedges that nothing below the limit cuts, [hyperedges]."""
    if not units.cost.size:
        return np.zeros(0, bool)
    seconds = machine.boundary(units.cost)
    if machine.overlap:
        return np.asarray(seconds >= limit)
    bounds = make_bounds(units, machine)
    free = int(machine.total[[not kind.pays for kind in machine.kinds]].sum())
    paying = [c for kind, c in zip(machine.kinds, bounds.capacity, strict=True) if kind.pays]
    if free > 1 or not paying or (not machine.priced and machine.link is None):
        return np.zeros(units.cost.shape[1], bool)
    total = float(bounds.ref.sum())
    spare = float(bounds.used[-1]) * limit - total * (1 - TOLERANCE)
    return np.asarray((seconds * min(paying) * (2 - free) > spare) | (seconds >= limit))


def _only_here(units: Units, machine: Machine) -> Pairs:
    """Rule 4."""
    pairs: Pairs = []
    runs = np.isfinite(units.work[list(machine.rows)])
    runs &= memory_shares(units, machine) <= 1 + TOLERANCE
    for kind in np.flatnonzero(machine.total == 1).tolist():
        only = np.flatnonzero(runs[kind] & (runs.sum(axis=0) == 1)).tolist()
        pairs += pairwise(only)
    return pairs


def _inseparable(units: Units, heavy: BoolArray) -> Pairs:
    """All units of the heavy hyperedges."""
    same = np.flatnonzero((edge := units.pin_edge())[1:] == edge[:-1])
    same = same[heavy[edge[same]]]
    return list(zip(units.pin[same].tolist(), units.pin[same + 1].tolist(), strict=True))


def idle_pairs(units: Units, light: BoolArray) -> Pairs:
    """Rule 2 for the units marked ``light``: each with the neighbour that it joins."""
    pairs: Pairs = []
    idle = np.flatnonzero((units.work == 0).all(axis=0) & light)
    if not len(idle):
        return pairs
    small = units.size <= CLOSURE_LIMIT
    above, below = closures(units) if small else (None, None)
    edges_of: dict[int, list[int]] = {v: [] for v in idle.tolist()}
    for h, v in zip(units.pin_edge().tolist(), units.pin.tolist(), strict=True):
        if v in edges_of:
            edges_of[v].append(h)
    for v, edges in edges_of.items():
        for heads, reach in ((units.pred[v], above), (units.succ[v], below)):
            near = heads
            if reach is not None:  # rule 1: those on the way from, or to, no other one
                ways = reach[np.ix_(heads, heads)].sum(axis=0).tolist()
                near = [v for v, count in zip(heads, ways, strict=True) if count == 1]
            held = (units.pin[units.pin_ptr[h] : units.pin_ptr[h + 1]] for h in edges)
            if len(near) == 1 and all(near[0] in pins for pins in held):
                pairs.append((near[0], v))
                break
    return pairs
