"""The incumbent: optimal cuts of linear orders, before anything is proven."""

from math import inf

from pipec.partition import clock
from pipec.partition.machine import Machine
from pipec.partition.orders.linear import linear_orders
from pipec.partition.proof.bounds import TOLERANCE, highest_load, make_bounds
from pipec.partition.proof.reduce import CLOSURE_LIMIT, reduce_units
from pipec.partition.search.family import PrefixFamily
from pipec.partition.search.frontier import search
from pipec.partition.search.incumbent import Incumbent
from pipec.partition.search.large import cut_large
from pipec.partition.search.scan import scan
from pipec.partition.units import Units

LARGE = 800


def cut_orders(units: Units, machine: Machine, best: Incumbent, time_limit: float) -> None:
    """Offers the cuts of several orders; of large graphs also mixtures of orders.

    Args:
        units: What to cut.
        machine: The devices.
        best: Takes the cuts.
        time_limit: Seconds; the first order is cut however long it takes.
    """
    began = clock.now()
    small = units if units.size > CLOSURE_LIMIT else reduce_units(units, machine, inf)
    if machine.exactly and small.size < len(machine.devices):
        small = units
    if small.size > LARGE:
        cut_large(small, machine, best, began + time_limit)
        return
    bounds, highest = make_bounds(small, machine), highest_load(small, machine)
    for number, order in enumerate(linear_orders(small, bounds.ref)):
        if clock.now() > began + time_limit / 4 and best.stage is not None:
            return
        if best.value <= bounds.lower * (1 + TOLERANCE):
            return
        family = PrefixFamily(small, bounds.ref, order)
        first = scan(family, machine, bounds.lower, highest)
        start = highest if first is None else first.value + TOLERANCE * highest
        start = min(start, best.value, highest)
        path = search(family, machine, bounds, start)
        best.offer(small, family, path, f"order {number + 1}")
