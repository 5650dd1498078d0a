"""A better incumbent where there are too many ideals: search around the cuts that are known.

Ideals are closed under union and intersection. A round collects the prefixes of many orders (the
first time) and, for every cut of the incumbent, the ideals that one closure step reaches: with one
more unit and all its ancestors, or without one and all its descendants. The dynamic program then
picks the best combination of all of these at once.
"""

from itertools import islice

import numpy as np

from pipec.partition import clock
from pipec.partition.bounds import TOLERANCE, Bounds, make_bounds
from pipec.partition.costgraph import BoolArray, FloatArray, IntArray
from pipec.partition.frontier import OutOfTimeError, search
from pipec.partition.ideal_family import IdealFamily, measure_of
from pipec.partition.ideals import closures
from pipec.partition.incumbent import Incumbent
from pipec.partition.machine import Machine
from pipec.partition.orders import linear_orders
from pipec.partition.reduce import reduce_units
from pipec.partition.units import Units

ORDERS = 27
ROWS = 6000
CELLS = 20_000_000  # prefixes x units
ROUNDS = 30


def improve(units: Units, machine: Machine, best: Incumbent, deadline: float) -> None:
    """Offers better cuts until a round finds none or time is up."""
    if clock.now() > deadline:
        return
    small = reduce_units(units, machine, best.value, idle=not machine.exactly)
    if small.size < len(machine.devices) and machine.exactly:
        return
    bounds = make_bounds(small, machine)
    above, below = closures(small)
    pool = _prefixes(small, bounds, best.value)
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
        if clock.now() > deadline:
            return
        pool = pool[:0]


def _prefixes(units: Units, bounds: Bounds, limit: float) -> BoolArray:
    """Prefixes of many orders in the windows; on large graphs only every few of them."""
    steps = np.arange(units.size + 1)
    found: list[tuple[IntArray, IntArray]] = []
    for order in islice(linear_orders(units, bounds.ref, ORDERS), ORDERS):
        place = np.empty(units.size, np.int64)
        place[order] = np.arange(units.size)
        measure = np.concatenate([[0.0], np.cumsum(bounds.ref[order])])
        found.append((place, steps[_wanted(measure, bounds, limit)]))
    stride = -(-sum(len(kept) for _, kept in found) * units.size // CELLS)
    return np.concatenate([place[None, :] < kept[::stride, None] for place, kept in found])


def _wanted(measure: FloatArray, bounds: Bounds, limit: float) -> BoolArray:
    """Whether some state may use a cut with this much work on its left."""
    low, high = bounds.windows(limit)
    inside = (measure[:, None] >= low) & (measure[:, None] <= high)
    return np.asarray(inside.any(axis=1))


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
    keep = _wanted(measure_of(rows, bounds.ref), bounds, limit)
    ends = np.stack([np.zeros(rows.shape[1], bool), np.ones(rows.shape[1], bool)])
    rows = np.concatenate([rows[keep], ends])
    _, first = np.unique(np.packbits(rows, axis=1), axis=0, return_index=True)
    return rows[first]
