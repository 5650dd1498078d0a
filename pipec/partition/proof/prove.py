"""Proof by exhaustion of the windows: an optimum, or a bound as far as time and memory allow."""

from dataclasses import replace
from math import inf
from time import perf_counter

from pipec.partition.machine import Machine
from pipec.partition.proof.bounds import (
    TOLERANCE,
    Reach,
    bound_with_ends,
    highest_load,
    make_bounds,
)
from pipec.partition.proof.ideal_family import IdealFamily
from pipec.partition.proof.ideals import enumerate_ideals
from pipec.partition.proof.reduce import CLOSURE_LIMIT, reduce_units
from pipec.partition.search.frontier import OutOfTimeError, search
from pipec.partition.search.improve import improve
from pipec.partition.search.incumbent import Incumbent
from pipec.partition.units import Units

QUICK, IDEALS_LIMIT = 20_000, 400_000  # ideals looked at: at first, and if the cut is good
CELLS = 200_000_000  # ideals x (units + 3 x hyperedges) in memory
IMPROVE, TRIAL = 0.4, 0.5  # shares of the time that is left
CLOSE = 2e-3  # trial limits nearer than this to what is known are not worth their time


def prove(units: Units, machine: Machine, best: Incumbent, deadline: float) -> tuple[float, str]:
    """Improves the incumbent to an optimum, or says how far the bound got.

    A run below a trial limit that finds nothing proves that the optimum is no smaller; one that
    finds something gives the optimum. If the incumbent as limit leaves too many ideals, it is
    improved first; then the trial limit is bisected between what is proven and what is too many.
    """
    lower = bound_with_ends(units, machine)
    if best.value <= lower * (1 + TOLERANCE):
        return best.value, f"{best.found}, meets the work bound"
    if units.size > CLOSURE_LIMIT:
        return lower, f"{best.found}, work bound"
    known = best.stage is not None
    ceiling = best.value if known else highest_load(units, machine)
    failed, step, most = inf, lower / 4 + ceiling / 1000, QUICK
    limit = ceiling if known else lower + step
    while lower < min(ceiling, failed * (1 - CLOSE)) and perf_counter() <= deadline:
        outcome = _find_below(units, machine, limit, _share(deadline, TRIAL), best, most)
        if outcome:
            return best.value, "optimal over all ideals in the windows"
        if outcome is None and most < IDEALS_LIMIT:
            most = IDEALS_LIMIT
            if known:
                improve(units, machine, best, _share(deadline, IMPROVE))
                limit = ceiling = best.value
            continue
        if outcome is None:
            failed = limit
        else:
            lower, step = max(lower, limit), 2 * step
        limit = min(ceiling, (lower + failed) / 2, lower + step)
    if lower >= ceiling:
        return lower, f"{best.found}, optimal: no ideal in the windows beats it"
    return lower, f"{best.found}, bound by ideals up to a limit"


def _share(deadline: float, share: float) -> float:
    """A deadline after a share of the time that is left."""
    now = perf_counter()
    return now + share * (deadline - now)


def _find_below(
    units: Units,
    machine: Machine,
    limit: float,
    deadline: float,
    best: Incumbent,
    most: int,
    *,
    idle: bool = True,
) -> int | None:
    """Stages of the best cut below a limit, which is offered to the incumbent.

    0 if there is none, None if there are too many ideals.

    Where every device must take a stage, devices may first be ``idle``: then units without work may
    be merged. Only if that finds a cut with empty devices, both are taken back.
    """
    small = reduce_units(units, machine, limit, idle=idle)
    bounds = make_bounds(small, machine)
    if bounds.lower >= limit * (1 - TOLERANCE):
        return 0
    windows = Reach(bounds, machine, limit).windows()
    cells = CELLS // (small.size + 3 * len(small.pin_ptr))
    bits = enumerate_ideals(small, bounds.ref, windows, min(most, cells), deadline)
    if bits is None:
        return None
    family = IdealFamily(small, bounds.ref, bits)
    loose = replace(machine, exactly=not idle)
    try:
        path = search(family, loose, bounds, limit * (1 - TOLERANCE), deadline=deadline)
    except OutOfTimeError:
        return None
    if path is None:
        return 0
    if machine.exactly and len(path.steps) < len(machine.devices):
        return _find_below(units, machine, limit, deadline, best, most, idle=False)
    best.offer(small, family, path, "ideals")
    return len(path.steps)
