"""Cuts for few microbatches: the pipeline's fill counts, not only its slowest stage.

M microbatches through stages with loads l_1 .. l_k take (M - 1) * max(l) + sum(l). For a limit on
the largest load, the dynamic program finds the least sum; lowering the limit to just below what was
found, again and again, walks all useful trade-offs, until the sum alone can pay for no more.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pipec.errors import PartitionError
from pipec.partition.costgraph import FloatArray
from pipec.partition.machine import Machine
from pipec.partition.orders.linear import linear_orders
from pipec.partition.proof.bounds import TOLERANCE, Bounds, Reach, highest_load, make_bounds
from pipec.partition.proof.ideal_family import IdealFamily
from pipec.partition.proof.ideals import enumerate_ideals
from pipec.partition.proof.prove import Proof
from pipec.partition.proof.reduce import CLOSURE_LIMIT, reduce_units
from pipec.partition.search.family import Family, PrefixFamily
from pipec.partition.search.frontier import OutOfTimeError, Path, loads, relay_seconds, search
from pipec.partition.search.incumbent import Incumbent
from pipec.partition.search.scan import scan
from pipec.partition.units import Units

SMALL = 800
IDEALS_LIMIT = 60_000
ROWS = 500
SPREAD = 1.1  # on a large graph, largest loads up to this much above a good one are tried


@dataclass(frozen=True)
class Objective:
    """(microbatches - 1) * largest load + sum of loads.

    Attributes:
        microbatches: Per pipeline flush.

    Raises:
        PartitionError: Fewer than one.
    """

    microbatches: int

    def __post_init__(self) -> None:
        if self.microbatches < 1:
            raise PartitionError(
                "a flush needs at least one microbatch", got=self.microbatches, want="1 or more"
            )

    def of(self, stage_loads: FloatArray) -> float:
        """Time of one flush."""
        return (self.microbatches - 1) * float(stage_loads.max()) + float(stage_loads.sum())


def cut_for_fill(
    units: Units, machine: Machine, objective: Objective, deadline: float
) -> tuple[Incumbent, Proof]:
    """Finds the cut with the least flush time, with a proof if all ideals can be looked at."""
    best = Incumbent()
    small = reduce_units(units, machine, float("inf"), idle=not machine.exactly)
    bounds = make_bounds(small, machine)
    highest = highest_load(small, machine)
    for number, order in enumerate(linear_orders(small, bounds.ref, randoms=2)):
        family = PrefixFamily(small, bounds.ref, order)
        limit, found = highest, f"order {number + 1}"
        if small.size > SMALL:
            first = scan(family, machine, bounds.lower, highest)
            if first is not None:
                _offer(small, family, machine, objective, best, first, found)
                limit = min(highest, SPREAD * first.value)
        try:
            _sweep(small, family, machine, bounds, objective, best, limit, found, deadline)
        except OutOfTimeError:
            break
    fastest = float(np.min(units.work[list(machine.rows)], axis=0).sum())
    lower = (objective.microbatches - 1) * bounds.lower + fastest
    unproven = Proof(lower, f"{best.found}, work bound")
    if small.size > CLOSURE_LIMIT:
        return best, unproven
    # whatever beats the incumbent has a sum of at least ``fastest``: its largest load is limited
    limit = highest
    if objective.microbatches > 1 and best.stage is not None:
        limit = min(highest, (best.value - fastest) / (objective.microbatches - 1))
    windows = Reach(bounds, machine, limit).windows()
    bits = enumerate_ideals(small, bounds.ref, windows, IDEALS_LIMIT, deadline)
    if bits is None:
        return best, unproven
    family_of_all = IdealFamily(small, bounds.ref, bits)
    try:
        _sweep(small, family_of_all, machine, bounds, objective, best, limit, "ideals", deadline)
    except OutOfTimeError:
        return best, unproven
    return best, Proof(best.value, f"{best.found}, optimal over all ideals in the windows")


def _sweep(
    units: Units,
    family: Family,
    machine: Machine,
    bounds: Bounds,
    objective: Objective,
    best: Incumbent,
    limit: float,
    found: str,
    deadline: float = float("inf"),
) -> None:
    """Offers every trade-off between largest load and sum that may beat the incumbent."""
    rounds = objective.microbatches - 1
    for path in _trade_offs(family, machine, bounds, limit, deadline):
        _offer(units, family, machine, objective, best, path, found)
        if rounds * bounds.lower + path.value >= best.value * (1 - TOLERANCE):
            return


def _offer(
    units: Units,
    family: Family,
    machine: Machine,
    objective: Objective,
    best: Incumbent,
    path: Path,
    found: str,
) -> None:
    flush = objective.of(path_loads(family, machine, path))
    best.offer(units, family, Path(flush, path.rows, path.steps), found)


def _trade_offs(
    family: Family, machine: Machine, bounds: Bounds, limit: float, deadline: float
) -> Iterator[Path]:
    """Paths of least sum under an ever lower limit; their sums never fall."""
    thin = isinstance(family, PrefixFamily) and len(family.ref) > SMALL
    most = ROWS if thin else None
    while True:
        path = search(
            family,
            machine,
            bounds,
            limit,
            sum_below=float("inf"),
            most_rows=most,
            deadline=deadline,
        )
        if path is None:
            return
        yield path
        limit = float(path_loads(family, machine, path).max()) * (1 - TOLERANCE)


def path_loads(family: Family, machine: Machine, path: Path) -> FloatArray:
    """Load of every stage of a path, and of the empty devices between them, which relay."""
    result: list[float] = []
    before, state = 0, 0
    chain = len(machine.used) == len(machine.devices) + 1
    for row, step in zip(path.rows, path.steps, strict=True):
        source, target = np.array([[before]]), np.array([row])
        for idle in range(state, step.source) if chain and before else ():
            relay = relay_seconds(family, machine, machine.steps[idle + 1][0], source[0])
            result.append(float(relay[0]))
        result.append(float(loads(family, machine, step, source, target)[0, 0]))
        before, state = row, step.target
    return np.array(result)
