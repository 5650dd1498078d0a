"""Proof by exhaustion of the windows: an optimum, or a bound as far as time and memory allow."""

from dataclasses import dataclass, replace
from enum import Enum, auto
from math import inf

import numpy as np

from pipec.partition import clock
from pipec.partition.bounds import TOLERANCE, highest_load, make_bounds
from pipec.partition.frontier import OutOfTimeError, search
from pipec.partition.ideal_family import IdealFamily
from pipec.partition.ideals import enumerate_ideals, merge_windows
from pipec.partition.improve import improve
from pipec.partition.incumbent import Incumbent
from pipec.partition.machine import Machine
from pipec.partition.reduce import CLOSURE_LIMIT, reduce_units
from pipec.partition.relax import Programs
from pipec.partition.units import Units

IDEALS_LIMIT = 60_000
SHRINKS = 6
IMPROVE, POLISH, RELAX = 0.4, 0.2, 0.5  # shares of the time that is left


@dataclass(frozen=True)
class Proof:
    """What is known about all cuts.

    Attributes:
        lower: No cut has a smaller largest load.
        method: How that is known.
    """

    lower: float
    method: str


def prove(units: Units, machine: Machine, best: Incumbent, deadline: float) -> Proof:
    """Improves the incumbent to an optimum, or says how far the bound got.

    A run below a trial limit that finds nothing proves that the optimum is no smaller; one that
    finds something gives the optimum. If the incumbent as limit leaves too many ideals, the
    trial limit starts near the bound and moves up.
    """
    bounds = make_bounds(units, machine)
    lower = bounds.lower
    if best.value <= lower * (1 + TOLERANCE):
        return Proof(best.value, f"{best.found}, meets the work bound")
    if units.size > CLOSURE_LIMIT:
        return Proof(lower, f"{best.found}, work bound")
    ceiling = best.value if best.value < inf else highest_load(units, machine)
    trial = ceiling if best.value < inf else bounds.lower * 1.25 + ceiling / 1000
    shrinks, programs = 0, Programs(units, machine, best)
    while True:
        outcome = _below(units, machine, trial, deadline, best)
        if outcome is FOUND:
            return Proof(best.value, "optimal over all ideals in the windows")
        if outcome is NONE:
            lower = max(lower, trial)
            if trial >= ceiling:
                return Proof(lower, f"{best.found}, optimal: no ideal in the windows beats it")
            shrinks = SHRINKS
            trial = min(ceiling, bounds.lower + 2 * (trial - bounds.lower))
        elif shrinks >= SHRINKS or trial <= lower * (1 + TOLERANCE):
            break
        else:
            if not shrinks and best.stage is not None:
                lower = _without_ideals(units, machine, best, programs, lower, deadline)
                ceiling = best.value
                trial = min(trial, ceiling)
            shrinks += 1
            trial = bounds.lower + (trial - bounds.lower) / 8
    method = f"{best.found}, bound by ideals up to a limit"
    reached = programs.solve(lower, deadline)
    if reached > lower:
        method = f"{best.found}, bound by linear programs"
    return Proof(reached, method)


def _without_ideals(
    units: Units,
    machine: Machine,
    best: Incumbent,
    programs: Programs,
    lower: float,
    deadline: float,
) -> float:
    """A better incumbent by local searches, a better bound by relaxation."""
    improve(units, machine, best, _share(deadline, IMPROVE))
    if programs.polish(_share(deadline, POLISH)):
        improve(units, machine, best, _share(deadline, POLISH))
    return programs.bound(lower, _share(deadline, RELAX))


def _share(deadline: float, share: float) -> float:
    """A deadline after a share of the time that is left."""
    now = clock.now()
    return now + share * (deadline - now)


class _Outcome(Enum):
    FOUND = auto()
    NONE = auto()
    TOO_MANY = auto()


FOUND, NONE, TOO_MANY = _Outcome.FOUND, _Outcome.NONE, _Outcome.TOO_MANY


def _below(
    units: Units, machine: Machine, limit: float, deadline: float, best: Incumbent
) -> _Outcome:
    """Looks for any cut below a limit; the best one is offered to the incumbent.

    Where every device must take a stage, devices may first stay empty: then units without work
    may be merged. Only if that finds a cut with empty devices, both are taken back.
    """
    need = len(machine.devices) if machine.exactly else 0
    relaxed = replace(machine, exactly=False)
    outcome, stages = _exhaust(units, relaxed, limit, deadline, best, need, idle=True)
    if outcome is FOUND and stages < need:
        return _exhaust(units, machine, limit, deadline, best, need, idle=False)[0]
    return outcome


def _exhaust(
    units: Units,
    machine: Machine,
    limit: float,
    deadline: float,
    best: Incumbent,
    need: int,
    *,
    idle: bool,
) -> tuple[_Outcome, int]:
    """Outcome and number of stages found; a cut with fewer stages than needed is not offered."""
    small = reduce_units(units, machine, limit, idle=idle)
    bounds = make_bounds(small, machine)
    low, high = bounds.windows(limit)
    ends = float(bounds.ref.sum())
    windows = merge_windows(np.append(low, [0.0, ends]), np.append(high, [0.0, ends]))
    bits = enumerate_ideals(small, bounds.ref, windows, IDEALS_LIMIT, deadline)
    if bits is None:
        return TOO_MANY, 0
    family = IdealFamily(small, bounds.ref, bits)
    try:
        path = search(family, machine, bounds, limit * (1 - TOLERANCE), deadline=deadline)
    except OutOfTimeError:
        return TOO_MANY, 0
    if path is None:
        return NONE, 0
    if len(path.steps) >= need:
        best.offer(small, family, path, "ideals")
    return FOUND, len(path.steps)
