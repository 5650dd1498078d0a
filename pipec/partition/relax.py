"""Bounds and cuts from linear programs, for problems whose ideals are too many to look at."""

from collections.abc import Sequence
from functools import cached_property
from itertools import permutations
from math import factorial, inf, prod

import numpy as np

from pipec.partition import clock
from pipec.partition.anneal import anneal
from pipec.partition.bounds import TOLERANCE, Bounds, make_bounds
from pipec.partition.closure import heaviest, least_loads
from pipec.partition.costgraph import IntArray
from pipec.partition.frontier import search
from pipec.partition.ideal_family import IdealFamily
from pipec.partition.incumbent import Incumbent
from pipec.partition.linear import Program
from pipec.partition.machine import Machine
from pipec.partition.reduce import reduce_units
from pipec.partition.units import Units

VARIABLES = 16_000
"""Beyond this many one linear program takes longer than its bound is worth."""
ORDERS = 8  # of unlike devices that may stand in any order
ROUNDS = 8
CLOSE = 1e-3
MOVES = 1_000_000
LONG = 3  # an integer program is not begun if less than so many relaxations would fit


class Programs:
    """Local search and the linear programs of one problem; nothing where they do not apply.

    They do where values are priced in seconds, programs are small enough, and time is told by a
    real clock: the solver knows no other.

    Args:
        units: What is cut.
        machine: The devices.
        best: The incumbent; better cuts are offered to it.
    """

    def __init__(self, units: Units, machine: Machine, best: Incumbent) -> None:
        self._whole, self._machine, self._best = units, machine, best

    @cached_property
    def _units(self) -> Units:
        return reduce_units(self._whole, self._machine, self._best.value, idle=False)

    @cached_property
    def _bounds(self) -> Bounds:
        return make_bounds(self._units, self._machine)

    @cached_property
    def _programs(self) -> list[Program]:
        variables = Program.size(self._units, len(self._machine.devices)) * _count(self._machine)
        known = self._machine.priced and clock.real() and self._best.stage is not None
        if not known or variables > VARIABLES or self._units.size < 2:
            return []
        return [self._program(order) for order in _orders(self._machine)]

    def bound(self, lower: float, deadline: float) -> float:
        """A bound by bisection of the limit under which the relaxation finds nothing."""
        high = limit = self._best.value
        for _ in range(ROUNDS if self._programs else 0):
            left = deadline - clock.now()
            if left <= 0 or high - lower <= CLOSE * high:
                break
            value = min(program.relaxed(limit, left) for program in self._programs)
            if not value:  # out of time
                break
            lower = max(lower, min(value, limit))
            if value < limit:
                high = limit
            limit = (lower + high) / 2
        return lower

    def heaviest(self) -> float:
        """A load that a device with one of the units with most work has at least."""
        units, machine = self._units, self._machine
        if not machine.priced or not clock.real() or not units.size:
            return 0.0
        work = units.work[list(machine.rows)]
        which = heaviest(work.min(axis=0))
        loads = [
            least_loads(units, row, which) if kind.pays and np.isfinite(row).all() else row[which]
            for kind, row in zip(machine.kinds, work, strict=True)
        ]
        return min(float(np.min(loads, axis=0).max()), self._best.value)

    def solve(self, lower: float, deadline: float) -> float:
        """A bound by the integer programs; what they find is offered."""
        limit, found = self._best.value, inf
        for number, program in enumerate(self._programs):
            share = (deadline - clock.now()) / (len(self._programs) - number)
            if share <= LONG * program.seconds:
                return lower
            value, places = program.solved(limit, share)
            found = min(found, value)
            if places is not None:
                self.offer(places, "integer program")
        if not self._programs:
            return lower
        return max(lower, min(found, limit, self._best.value))

    def polish(self, deadline: float) -> bool:
        """Whether annealing made a better cut of the incumbent; devices must be alike."""
        best, machine, units = self._best, self._machine, self._units
        kind, row, k = machine.kinds[0], machine.rows[0], len(machine.devices)
        if not machine.priced or len(machine.kinds) > 1 or not kind.pays or machine.limited:
            return False
        if best.stage is None or np.isinf(units.work[row]).any():
            return False
        found = anneal(units, row, k, 1, inf, [units.stages(best.stage)], MOVES, deadline)
        return found is not None and self.offer(found, "annealing")

    def offer(self, places: IntArray, found: str) -> bool:
        """Whether the best pipeline over the cuts between some places is better."""
        units, machine, best = self._units, self._machine, self._best
        steps = np.arange(int(places.max()) + 2)
        rows = np.unique(places[None, :] < steps[:, None], axis=0)
        family = IdealFamily(units, self._bounds.ref, rows)
        path = search(family, machine, self._bounds, best.value * (1 - TOLERANCE))
        return best.offer(units, family, path, found)

    def _program(self, order: Sequence[int]) -> Program:
        machine, bounds = self._machine, self._bounds
        pays = np.array([machine.kinds[kind].pays for kind in order])
        return Program(
            units=self._units,
            work=self._units.work[[machine.rows[kind] for kind in order]],
            pays=pays,
            ref=bounds.ref,
            held=np.cumsum(bounds.capacity[list(order)]),
            price=_price(bounds, pays),
            room=np.cumsum(bounds.room[list(order)]),
        )


def _price(bounds: Bounds, pays: np.ndarray) -> float:
    """What a second of transfer takes from the work measure on either side of any cut."""
    return float(bounds.capacity.min()) if pays.all() else 0.0


def _orders(machine: Machine) -> list[tuple[int, ...]]:
    """Kinds along the pipeline, in all ways that the machine allows."""
    if not _free(machine):
        return [tuple(machine.kinds.index(device) for device in machine.devices)]
    kinds = [machine.kinds.index(device) for device in machine.devices]
    return sorted(set(permutations(kinds)))


def _free(machine: Machine) -> bool:
    return len(machine.used) > len(machine.devices) + 1


def _count(machine: Machine) -> int:
    """How many orders there are; more than are looked at count as without end."""
    if not _free(machine):
        return 1
    total = machine.total.tolist()
    count = factorial(sum(total)) // prod(factorial(t) for t in total)
    return count if count <= ORDERS else VARIABLES + 1
