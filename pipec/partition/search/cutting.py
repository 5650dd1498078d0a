"""The incumbent: optimal cuts of linear orders, before anything is proven."""

from itertools import islice
from math import inf
from time import perf_counter

from pipec.partition.costgraph import IntArray
from pipec.partition.machine import Machine
from pipec.partition.orders.linear import linear_orders
from pipec.partition.proof.bounds import TOLERANCE, highest_load, make_bounds
from pipec.partition.proof.reduce import CLOSURE_LIMIT, reduce_units
from pipec.partition.search.family import PrefixFamily
from pipec.partition.search.frontier import OutOfTimeError, search
from pipec.partition.search.incumbent import Incumbent
from pipec.partition.search.scan import scan
from pipec.partition.units import Units

LARGE = 800
"""Units beyond which orders are scanned first, and the best ones alone are cut well."""
LEAST_ORDERS, MOST_ORDERS, UNITS_ORDERED = 4, 20, 100_000
"""Orders of a large graph that are scanned, and units in all of them between the two."""
CUT_WELL = 3
"""Orders of a large graph that are cut well."""
PAIRS = 1.5e7
"""Pairs of cuts that are looked at per order of a large graph."""


def cut_orders(units: Units, machine: Machine, best: Incumbent, time_limit: float) -> None:
    """Offers the cuts of several orders.

    Args:
        units: What to cut.
        machine: The devices.
        best: Takes the cuts.
        time_limit: Seconds; the first order is cut however long it takes.
    """
    began = perf_counter()
    small = units if units.size > CLOSURE_LIMIT else reduce_units(units, machine, inf)
    if machine.exactly and small.size < len(machine.devices):
        small = units
    if small.size > LARGE:
        cut_large(small, machine, best, began + time_limit)
        return
    bounds, highest = make_bounds(small, machine), highest_load(small, machine)
    for number, order in enumerate(linear_orders(small, bounds.ref)):
        if perf_counter() > began + time_limit / 4 and best.stage is not None:
            return
        if best.value <= bounds.lower * (1 + TOLERANCE):
            return
        family = PrefixFamily(small, bounds.ref, order)
        first = scan(family, machine, bounds.lower, highest)
        start = highest if first is None else first.value + TOLERANCE * highest
        path = search(family, machine, bounds, min(start, best.value, highest))
        best.offer(small, family, path, f"order {number + 1}")


def cut_large(units: Units, machine: Machine, best: Incumbent, deadline: float) -> None:
    """Scans some orders, and cuts the best ones well."""
    bounds, highest = make_bounds(units, machine), highest_load(units, machine)
    scanned: list[tuple[float, int, IntArray]] = []
    count = min(max(LEAST_ORDERS, UNITS_ORDERED // units.size), MOST_ORDERS)
    for number, order in enumerate(islice(linear_orders(units, bounds.ref, MOST_ORDERS), count)):
        if perf_counter() > deadline and best.stage is not None:
            return
        family = PrefixFamily(units, bounds.ref, order)
        first = scan(family, machine, bounds.lower, highest)
        best.offer(units, family, first, f"scan of order {number + 1}")
        scanned.append((highest if first is None else first.value, number, order))
    most_rows = int((PAIRS / len(machine.devices)) ** 0.5)
    for value, number, order in sorted(scanned, key=lambda entry: entry[:2])[:CUT_WELL]:
        family = PrefixFamily(units, bounds.ref, order)
        limit = min(value + TOLERANCE * highest, best.value, highest)
        until = inf if best.stage is None else deadline
        try:
            path = search(family, machine, bounds, limit, most_rows=most_rows, deadline=until)
        except OutOfTimeError:
            return
        best.offer(units, family, path, f"order {number + 1}")
