"""Cuts of graphs of many units: order by order, then the best parts of all orders together."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, pairwise
from math import inf

import numpy as np

from pipec.partition.costgraph import FloatArray, IntArray
from pipec.partition.devices import cut_seconds
from pipec.partition.machine import Machine
from pipec.partition.orders.branch_cuts import order_for_cuts
from pipec.partition.orders.branch_tree import BRANCH_RULES
from pipec.partition.orders.decompose import Decomposition
from pipec.partition.orders.linear import linear_orders
from pipec.partition.orders.mixture import MixedFamily, zoned
from pipec.partition.proof.bounds import TOLERANCE, Bounds, Reach, highest_load, make_bounds
from pipec.partition.search.family import PrefixFamily
from pipec.partition.search.frontier import OutOfTimeError, search
from pipec.partition.search.incumbent import Incumbent
from pipec.partition.search.scan import scan
from pipec.partition.units import Units

PAIRS = 1.5e7  # of cuts looked at per order
OTHER_ORDERS = (2, 20)  # least if the decomposition is not complete, and most
UNITS_ORDERED = 60_000  # in all of the other orders
MIXED_ORDERS = 8
ROUNDS = 4


def rows_for(machine: Machine) -> int:
    """Cuts per state of the dynamic program that keep an order within ``PAIRS``."""
    return int((PAIRS / len(machine.devices)) ** 0.5)


def cut_large(units: Units, machine: Machine, best: Incumbent, deadline: float) -> None:
    """Scans some orders, cuts the best one well, then mixes in what the others do better."""
    bounds, highest = make_bounds(units, machine), highest_load(units, machine)
    scanned: list[tuple[float, int, IntArray]] = []
    for number, order in enumerate(_orders(units, machine, bounds.ref, best)):
        family = PrefixFamily(units, bounds.ref, order)
        first = scan(family, machine, bounds.lower, highest)
        best.offer(units, family, first, f"scan of order {number + 1}")
        scanned.append((highest if first is None else first.value, number, order))
    scanned.sort(key=lambda entry: entry[:2])
    value, number, order = scanned[0]
    limit = min(value + TOLERANCE * highest, best.value, highest)
    until = inf if best.stage is None else deadline
    family = PrefixFamily(units, bounds.ref, order)
    try:
        path = search(family, machine, bounds, limit, most_rows=rows_for(machine), deadline=until)
        best.offer(units, family, path, f"order {number + 1}")
        orders = [entry[2] for entry in scanned[:MIXED_ORDERS]]
        for _ in range(ROUNDS):
            if not _mix(units, machine, bounds, best, orders, deadline):
                return
    except OutOfTimeError:
        return


def _orders(
    units: Units, machine: Machine, weight: FloatArray, best: Incumbent
) -> Iterator[IntArray]:
    """The given order, those of the decomposition, and others unless it was complete."""
    others = linear_orders(units, weight, OTHER_ORDERS[1], branches=False)
    first = next(others)
    yield first
    if not machine.priced and machine.link is not None:
        seconds = cut_seconds(units.cost, machine.link, priced=False)
        units = replace(units, cost=seconds[None])
    decomposition = Decomposition(units, weight, first)
    root = decomposition.root
    if root is None:
        yield from (decomposition.order(rule) for rule in BRANCH_RULES)
    else:
        yield decomposition.order(BRANCH_RULES[0])
        if best.stage is not None:
            # the cuts may lie where those of the best order so far do, but cut fewer values
            goals = np.cumsum(np.bincount(units.stages(best.stage), weight))[:-1]
            yield order_for_cuts(decomposition.tree, root, goals.tolist(), BRANCH_RULES[0])
    least, most = OTHER_ORDERS
    count = max(least if root is None else 0, UNITS_ORDERED // units.size)
    yield from islice(others, min(count, most))


def _mix(
    units: Units,
    machine: Machine,
    bounds: Bounds,
    best: Incumbent,
    orders: list[IntArray],
    deadline: float,
) -> bool:
    """Offers the best cut near the incumbent's that takes each of its cuts from any order."""
    if best.stage is None:
        return False
    stage = units.stages(best.stage)
    ends = np.cumsum(np.bincount(stage))[:-1]
    borders = np.unique([(a + b) // 2 for a, b in pairwise(ends.tolist())]).astype(np.int64)
    place = np.empty(units.size, np.int64)
    place[orders[0]] = np.arange(units.size)
    base = np.lexsort((place, stage))
    mixed = zoned([base, *orders], borders)
    reach = Reach(bounds, machine, best.value)
    windows = list(zip(reach.low, reach.high, strict=True))
    family = MixedFamily(units, bounds.ref, mixed, borders, windows)
    path = search(
        family,
        machine,
        bounds,
        best.value * (1 - TOLERANCE),
        most_rows=2 * rows_for(machine),
        deadline=deadline,
    )
    return best.offer(units, family, path, "mixture of orders")
