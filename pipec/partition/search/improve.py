"""A better incumbent where there are too many ideals: search around the cuts that are known.

Ideals are closed under union and intersection. A round collects the prefixes of many orders (the
first time) and, for every cut of the incumbent, the ideals that one or two closure steps reach:
with one more unit and all its ancestors, or without one and all its descendants. The dynamic
program then picks the best combination of all of these at once. A round that finds nothing better
is followed by one over more of them.

Rows ``layer_gnmt_inference`` with a stage on every device (optimal; else 7.5 times as slow) and
``random DAG`` of 40 nodes and more (5 % faster cuts).
"""

from itertools import islice
from time import perf_counter

import numpy as np

from pipec.partition.costgraph import BoolArray, FloatArray, IntArray
from pipec.partition.machine import Machine
from pipec.partition.orders.linear import generate_orders
from pipec.partition.proof.bounds import TOLERANCE, Reach, make_bounds
from pipec.partition.proof.ideal_family import IdealFamily, measure_of
from pipec.partition.proof.ideals import closures
from pipec.partition.proof.reduce import reduce_units
from pipec.partition.search.frontier import OutOfTimeError, search
from pipec.partition.search.incumbent import Incumbent
from pipec.partition.units import Units

ORDERS = 27
FEW, MANY = 1_500, 12_000  # neighbours in all: more from round to round that finds nothing
CELLS = 20_000_000  # prefixes x units
ROUNDS = 30


def improve(units: Units, machine: Machine, best: Incumbent, deadline: float) -> None:
    """Offers better cuts until a round finds none or time is up."""
    if perf_counter() > deadline:
        return
    small = reduce_units(units, machine, best.value, idle=not machine.exactly)
    if small.size < len(machine.devices) and machine.exactly:
        return
    bounds = make_bounds(small, machine)
    above, below = closures(small)
    pool, most = _prefixes(small, bounds.ref, Reach(bounds, machine, best.value)), FEW
    for _ in range(ROUNDS):
        few = most // len(machine.devices)
        near = [_neighbours(c, above, below, bounds.ref, few) for c in _list_cuts(small, best)]
        reach = Reach(bounds, machine, best.value)
        rows = _in_windows(np.concatenate([pool, *near]), bounds.ref, reach)
        family = IdealFamily(small, bounds.ref, rows)
        try:
            limit = best.value * (1 - TOLERANCE)
            path = search(family, machine, bounds, limit, deadline=deadline)
        except OutOfTimeError:
            return
        if not best.offer(small, family, path, "search around known cuts"):
            if most >= MANY:
                return
            most *= 2
        if perf_counter() > deadline:
            return
        pool = pool[:0]


def _prefixes(units: Units, ref: FloatArray, reach: Reach) -> BoolArray:
    """Prefixes of many orders in the windows; on large graphs only every few of them."""
    steps = np.arange(units.size + 1)
    found: list[tuple[IntArray, IntArray]] = []
    for order in islice(generate_orders(units, ref, ORDERS), ORDERS):
        place = np.argsort(order)
        measure = np.concatenate([[0.0], np.cumsum(ref[order])])
        found.append((place, steps[_useful(measure, reach)]))
    stride = -(-sum(len(kept) for _, kept in found) * units.size // CELLS)
    return np.concatenate([place[None, :] < kept[::stride, None] for place, kept in found])


def _useful(measure: FloatArray, reach: Reach) -> BoolArray:
    """Whether some state may use a cut with this much work on its left."""
    inside = (measure[:, None] >= reach.low) & (measure[:, None] <= reach.high)
    return np.asarray(inside.any(axis=1))


def _list_cuts(units: Units, best: Incumbent) -> list[BoolArray]:
    """The cuts of the incumbent, on these units (fewer if it parts some of them)."""
    if best.stage is None:
        return []
    late = units.stages(best.stage)
    return [late <= s for s in range(int(late.max()))]


def _neighbours(
    cut: BoolArray, above: BoolArray, below: BoolArray, ref: FloatArray, most: int
) -> BoolArray:
    """The cut and what one or two closure steps make of it, the smallest steps first."""
    grows, shrinks = _steps(above & ~cut, ref, most), _steps(below & cut, ref, most)
    more, less = above[grows] & ~cut, below[shrinks] & cut
    one = [cut[None], cut | more, cut & ~less]
    # pairs of as many of the smallest steps as leave room for them
    few = int((max(0, most - sum(map(len, one))) / 2) ** 0.5)
    i, j = np.triu_indices(few, 1)
    for steps, grown in ((more, True), (less, False)):
        a, b = i[j < len(steps)], j[j < len(steps)]
        both = steps[a] | steps[b]
        one.append(cut | both if grown else cut & ~both)
    out, into = less[:few], above[grows[:few]]
    # one goes and one comes, unless the one needs the other
    i, j = np.nonzero(np.asarray(out @ into.T) == 0)
    return np.concatenate([*one, (cut & ~out[i]) | into[j]])


def _steps(steps: BoolArray, ref: FloatArray, most: int) -> IntArray:
    """Indices of those that change anything, the smallest first."""
    order = np.argsort(steps @ ref, kind="stable")
    changes = np.asarray(steps.any(axis=1))
    return order[changes[order]][:most]


def _in_windows(rows: BoolArray, ref: FloatArray, reach: Reach) -> BoolArray:
    """Distinct rows that some state may use, and the two ends."""
    keep = _useful(measure_of(rows, ref), reach)
    ends = np.stack([np.zeros(rows.shape[1], bool), np.ones(rows.shape[1], bool)])
    rows = np.concatenate([rows[keep], ends])
    _, first = np.unique(np.packbits(rows, axis=1), axis=0, return_index=True)
    return rows[first]
