"""The incumbent: optimal cuts of linear orders, before anything is proven.

The first order is optimal on 9 of 13 published workloads (at most 1.3 % above), the best of ten on
all (rows ``workloads`` and the profiles). Of a graph with more cuts than can be looked at in pairs,
those with little communication stand for the others (rows ``scaling``).
"""

from collections.abc import Iterator
from itertools import islice
from math import inf
from time import perf_counter

from pipec.partition.machine import Machine
from pipec.partition.orders.linear import generate_orders
from pipec.partition.proof.bounds import TOLERANCE, Bounds, highest_load, make_bounds
from pipec.partition.proof.reduce import CLOSURE_LIMIT, reduce_units
from pipec.partition.search.family import PrefixFamily
from pipec.partition.search.frontier import OutOfTimeError, search
from pipec.partition.search.incumbent import Incumbent
from pipec.partition.units import Units

LEAST_ORDERS, MOST_ORDERS, UNITS_ORDERED = 4, 15, 100_000
"""Orders that are cut, and units in all of them between the two."""
PAIRS = 1.5e7
"""About how many pairs of cuts are looked at per order."""
MARGINS = (0.01, 0.05, 0.2, *(2.0**n for n in range(20)))
"""Limits that are tried where no cut is known: the bound and so many times it, up to the highest;
the narrower, the more cuts can be compared."""


def cut_orders(units: Units, machine: Machine, best: Incumbent, time_limit: float) -> None:
    """Offers the cuts of several orders.

    Args:
        units: What to cut.
        machine: The devices.
        best: Takes the cuts.
        time_limit: Seconds; the first order is cut however long it takes.
    """
    deadline = perf_counter() + time_limit
    small = units if units.size > CLOSURE_LIMIT else reduce_units(units, machine, inf)
    if machine.exactly and small.size < len(machine.devices):
        small = units
    bounds = make_bounds(small, machine)
    count = min(max(LEAST_ORDERS, UNITS_ORDERED // small.size), MOST_ORDERS)
    for number, order in enumerate(islice(generate_orders(small, bounds.ref), count)):
        if best.value <= bounds.lower * (1 + TOLERANCE):
            return
        family = PrefixFamily(small, bounds.ref, order)
        for limit in _limits(small, machine, bounds, best):
            until = inf if best.stage is None else deadline
            try:
                path = search(family, machine, bounds, limit, most_pairs=PAIRS, deadline=until)
            except OutOfTimeError:
                return
            better = best.offer(small, family, path, f"order {number + 1}")
            whole = small.size**2 * len(machine.devices) <= PAIRS
            if best.stage is not None and (not better or whole):
                break


def _limits(units: Units, machine: Machine, bounds: Bounds, best: Incumbent) -> Iterator[float]:
    """What a cut of the next order must stay below."""
    highest = highest_load(units, machine)
    for limit in (*(bounds.lower * (1 + margin) for margin in MARGINS), highest):
        if best.stage is None and 0 < limit <= highest:
            yield limit
    while best.stage is not None:
        yield best.value
