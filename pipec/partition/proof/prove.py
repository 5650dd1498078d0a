"""Proof by exhaustion of the windows: an optimum, or a bound as far as time and memory allow."""

from dataclasses import replace
from math import inf
from time import perf_counter

from pipec.partition.machine import Machine
from pipec.partition.proof.bounds import TOLERANCE, Reach, highest_load, make_bounds
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
    lower = make_bounds(units, machine).lower
    if best.value <= lower * (1 + TOLERANCE):
        return best.value, f"{best.found}, meets the work bound"
    if units.size > CLOSURE_LIMIT:
        return lower, f"{best.found}, work bound"
    known = best.stage is not None
    trials = _Trials(lower, best.value if known else highest_load(units, machine), known=known)
    most = QUICK
    while not trials.done and perf_counter() <= deadline:
        outcome = _below(units, machine, trials.limit, _share(deadline, TRIAL), best, most)
        if outcome:
            return best.value, "optimal over all ideals in the windows"
        if outcome == 0:
            trials.nothing()
        elif most < IDEALS_LIMIT:
            most = IDEALS_LIMIT
            if known:
                improve(units, machine, best, _share(deadline, IMPROVE))
                trials = _Trials(trials.lower, best.value, known=True)
        else:
            trials.too_many()
    if trials.lower >= trials.ceiling:
        return trials.lower, f"{best.found}, optimal: no ideal in the windows beats it"
    return trials.lower, f"{best.found}, bound by ideals up to a limit"


class _Trials:
    """Limits to try, between what is proven and what leaves too many ideals.

    Args:
        lower: No cut is better.
        ceiling: The limit that is wanted: nothing below it is the proof.
        known: The ceiling is a cut and worth a try before all.
    """

    def __init__(self, lower: float, ceiling: float, *, known: bool) -> None:
        self.lower, self.ceiling, self._failed = lower, ceiling, inf
        self._step = lower / 4 + ceiling / 1000
        self.limit = ceiling if known else lower + self._step

    @property
    def done(self) -> bool:
        """Proven, or no trial in between is worth its time."""
        near = self._failed < inf and self._failed - self.lower <= CLOSE * self._failed
        return self.lower >= self.ceiling or near

    def nothing(self) -> None:
        """No cut is below the limit."""
        self.lower = max(self.lower, self.limit)
        self._step *= 2
        self._next()

    def too_many(self) -> None:
        """The limit leaves too many ideals."""
        self._failed = self.limit
        self._next()

    def _next(self) -> None:
        middle = (self.lower + self._failed) / 2
        self.limit = min(self.ceiling, middle, self.lower + self._step)


def _share(deadline: float, share: float) -> float:
    """A deadline after a share of the time that is left."""
    now = perf_counter()
    return now + share * (deadline - now)


def _below(
    units: Units, machine: Machine, limit: float, deadline: float, best: Incumbent, most: int
) -> int | None:
    """Stages of the best cut below a limit, which is offered to the incumbent.

    0 if there is none, None if there are too many ideals.

    Where every device must take a stage, devices may first stay empty: then units without work
    may be merged. Only if that finds a cut with empty devices, both are taken back.
    """
    need = len(machine.devices) if machine.exactly else 0
    relaxed = replace(machine, exactly=False)
    stages = _exhaust(units, relaxed, limit, deadline, best, most, need, idle=True)
    if stages and stages < need:
        return _exhaust(units, machine, limit, deadline, best, most, need, idle=False)
    return stages


def _exhaust(
    units: Units,
    machine: Machine,
    limit: float,
    deadline: float,
    best: Incumbent,
    most: int,
    need: int,
    *,
    idle: bool,
) -> int | None:
    """As `_below`; a cut with fewer stages than needed is not offered."""
    small = reduce_units(units, machine, limit, idle=idle)
    bounds = make_bounds(small, machine)
    if bounds.lower >= limit * (1 - TOLERANCE):
        return 0
    windows = Reach(bounds, machine, limit).windows()
    most = min(most, CELLS // (small.size + 3 * len(small.pin_ptr)))
    bits = enumerate_ideals(small, bounds.ref, windows, most, deadline)
    if bits is None:
        return None
    family = IdealFamily(small, bounds.ref, bits)
    try:
        path = search(family, machine, bounds, limit * (1 - TOLERANCE), deadline=deadline)
    except OutOfTimeError:
        return None
    if path is None:
        return 0
    if len(path.steps) >= need:
        best.offer(small, family, path, "ideals")
    return len(path.steps)
