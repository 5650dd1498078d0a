"""A better incumbent where there are too many ideals: search around the cuts that are known.

Ideals are closed under union and intersection. A round collects the prefixes of many orders (the
first time) and, for every cut of the incumbent, the ideals that one closure step reaches: with one
more unit and all its ancestors, or without one and all its descendants. The dynamic program then
picks the best combination of all of these at once.
"""

import time
from itertools import islice

import numpy as np

from pipec.partition.bounds import TOLERANCE, Bounds, make_bounds
from pipec.partition.costgraph import BoolArray, FloatArray
from pipec.partition.family import IdealFamily
from pipec.partition.frontier import OutOfTimeError, search
from pipec.partition.ideals import closures
from pipec.partition.incumbent import Incumbent
from pipec.partition.machine import Machine
from pipec.partition.orders import linear_orders
from pipec.partition.reduce import reduce_units
from pipec.partition.units import Units

ORDERS = 27
ROWS = 6000
ROUNDS = 30


def improve(units: Units, machine: Machine, best: Incumbent, deadline: float) -> None:
    """Offers better cuts until a round finds none or time is up."""
    small = reduce_units(units, machine, best.value, idle=not machine.exactly)
    if small.size < len(machine.devices) and machine.exactly:
        return
    bounds = make_bounds(small, machine)
    above, below = closures(small)
    pool = _prefixes(small, bounds)
    for _ in range(ROUNDS):
        around = [
            pool,
            *(
                _neighbours(cut, above, below, bounds.ref, machine)
                for cut in _known_cuts(small, best)
            ),
        ]
        rows = _in_windows(np.concatenate(around), bounds, best.value)
        family = IdealFamily(small, bounds.ref, rows)
        try:
            limit = best.value * (1 - TOLERANCE)
            path = search(family, machine, bounds, limit, deadline=deadline)
        except OutOfTimeError:
            return
        if not best.offer(small, family, path, "search around known cuts"):
            return
        if time.perf_counter() > deadline:
            return
        pool = pool[:0]


def _prefixes(units: Units, bounds: Bounds) -> BoolArray:
    """Prefixes of many orders."""
    steps = np.arange(units.size + 1)[:, None]
    found = []
    for order in islice(linear_orders(units, bounds.ref, ORDERS), ORDERS):
        place = np.empty(units.size, np.int64)
        place[order] = np.arange(units.size)
        found.append(place[None, :] < steps)
    return np.concatenate(found)


def _known_cuts(units: Units, best: Incumbent) -> list[BoolArray]:
    """The cuts of the incumbent, on these units (fewer if it parts some of them)."""
    if best.stage is None:
        return []
    late = np.zeros(units.size, np.int64)
    np.maximum.at(late, units.of_node, best.stage)
    return [late <= s for s in range(int(late.max()))]


def _neighbours(
    cut: BoolArray, above: BoolArray, below: BoolArray, ref: FloatArray, machine: Machine
) -> BoolArray:
    """The cut and what one closure step makes of it, the smallest steps first."""
    more = above & ~cut
    less = below & cut
    steps = np.concatenate([more, less])
    size = steps @ ref
    changes = steps.any(axis=1)
    order = np.argsort(np.where(changes, size, np.inf), kind="stable")
    most = ROWS // max(1, len(machine.devices) - 1)
    chosen = order[: min(most, int(changes.sum()))]
    grown = chosen < len(more)
    near = np.where(grown[:, None], cut | steps[chosen], cut & ~steps[chosen])
    return np.concatenate([cut[None], near])


def _in_windows(rows: BoolArray, bounds: Bounds, limit: float) -> BoolArray:
    """Distinct rows that some state may use, and the two ends."""
    low, high = bounds.windows(limit)
    measure = rows @ bounds.ref
    keep = ((measure[:, None] >= low) & (measure[:, None] <= high)).any(axis=1)
    ends = np.stack([np.zeros(rows.shape[1], bool), np.ones(rows.shape[1], bool)])
    rows = np.concatenate([rows[keep], ends])
    _, first = np.unique(np.packbits(rows, axis=1), axis=0, return_index=True)
    return rows[first]
