"""What no cut can beat: a work bound over unlike devices, and the windows that follow from it.

Give device kind k a capacity c_k. A unit weighs ``ref = min over k of c_k * work_k``, so a device
of kind k with load below U holds less than ``c_k * U``, and with n_k devices of each kind

    max load  >=  sum(ref) / sum(n_k * c_k).

The capacities that make this bound largest are found by coordinate ascent over its breakpoints; for
equal devices it is total work / devices. The same capacities say how much may lie left of a cut.
"""

from dataclasses import dataclass
from functools import partial
from math import inf

import numpy as np

from pipec.partition.costgraph import BoolArray, FloatArray, IntArray
from pipec.partition.machine import Machine
from pipec.partition.proof.ideals import Window
from pipec.partition.units import Units

TOLERANCE = 1e-9


@dataclass(frozen=True, eq=False)
class Bounds:
    """Capacities and the work measure they induce.

    Attributes:
        capacity: Per kind of device.
        ref: Work measure, [units].
        lower: A load that some device reaches in every cut.
        used: Capacity of the devices used, per state.
        left_pays: Least capacity of a paying left device, per state; 0 if communication may be
            free there.
        right_pays: The same right of the cut.
    """

    capacity: FloatArray
    ref: FloatArray
    lower: float
    used: FloatArray
    left_pays: FloatArray
    right_pays: FloatArray


class Reach:
    """What may lie left of a cut, state by state, if every load is below a limit.

    The devices on either side hold less than their capacity times the limit; of that the values
    that cross take their part, where all devices on that side pay.

    Args:
        bounds: The work measure.
        machine: The devices.
        limit: Every load is below.

    Attributes:
        low: Least work left of the cut, per state.
        high: Most work.
    """

    def __init__(self, bounds: Bounds, machine: Machine, limit: float) -> None:
        total = float(bounds.ref.sum())
        slack = TOLERANCE * total
        left = bounds.used * limit
        self.high = left + slack
        self.low = total - (left[-1] - left) - slack
        self._bounds, self._machine, self._limit = bounds, machine, limit

    def may_hold(
        self, states: IntArray, least: FloatArray, most: FloatArray, cut: FloatArray
    ) -> BoolArray:
        """Whether one of some states may have a cut there, [sets].

        Args:
            states: Indices of the states.
            least: Work of the set, or of a part of it, [sets].
            most: Work of the set, or of more than that, [sets].
            cut: What crosses, or a part of it, [kinds, sets].
        """
        bounds, machine = self._bounds, self._machine
        seconds = machine.boundary(cut)
        found = np.zeros(len(least), bool)
        for s in states.tolist():
            here = least + bounds.left_pays[s] * seconds <= self.high[s]
            found |= here & (most - bounds.right_pays[s] * seconds >= self.low[s])
        return found & (seconds < self._limit) if machine.overlap else found

    def windows(self) -> list[Window]:
        """States whose windows overlap, together; not the first and the last, which are no cuts."""
        inner = np.arange(1, len(self.low) - 1)
        inner = inner[self.low[inner] <= self.high[inner]]
        inner = inner[np.argsort(self.low[inner], kind="stable")]
        # a window begins where all before have ended
        ended = np.maximum.accumulate(self.high[inner])[:-1] < self.low[inner][1:]
        groups = np.split(inner, np.flatnonzero(ended) + 1) if len(inner) else []
        return [
            Window(
                float(self.low[states].min()),
                float(self.high[states].max()),
                partial(self.may_hold, states),
            )
            for states in groups
        ]


def make_bounds(units: Units, machine: Machine) -> Bounds:
    """Chooses the capacities and derives the bound."""
    work = units.work[list(machine.rows)]
    count = machine.total.astype(float)
    held = memory_shares(units, machine)
    small = np.where(held > 1 + TOLERANCE, inf, work)  # what fits no memory does not run there
    if np.isfinite(small).any(axis=0).all():
        work = small
    capacity = _capacities(work, count)
    with np.errstate(invalid="ignore"):
        ref = np.min(np.where(np.isfinite(work), capacity[:, None] * work, inf), axis=0)
    used = machine.used @ capacity
    largest = float(np.min(work, axis=0).max())
    remaining = machine.total - machine.used
    return Bounds(
        capacity=capacity,
        ref=ref,
        lower=max(float(ref.sum()) / float(used[-1]), largest),
        used=used,
        left_pays=_paying(machine, capacity, machine.used > 0),
        right_pays=_paying(machine, capacity, remaining > 0),
    )


def bound_with_ends(units: Units, machine: Machine) -> float:
    """What no cut with a stage on every device can beat: work, and what the ends of stages move.

    Every stage has a unit with no producer in it, which pays for all that it reads, and one with no
    consumer in it, which pays for what it makes. No two stages share these units, so that K stages
    pay for the K cheapest of either sort at least.
    """
    bounds = make_bounds(units, machine)
    read, made = np.zeros((2, len(units.cost), units.size))
    pred, succ = [set(p) for p in units.pred], [{u, *s} for u, s in enumerate(units.succ)]
    for price, a, b in zip(units.cost.T, units.pin_ptr, units.pin_ptr[1:], strict=False):
        members = set(units.pin[a:b].tolist())
        for u in members:
            if not pred[u].isdisjoint(members):
                read[:, u] += price
            elif members <= succ[u]:
                made[:, u] += price
    stages = len(machine.devices) if machine.exactly else 0
    moved = sum(float(np.sort(machine.boundary(ends))[:stages].sum()) for ends in (read, made))
    whole = float(bounds.ref.sum()) + float(bounds.left_pays[-1]) * moved
    return max(bounds.lower, whole / float(bounds.used[-1]))


def memory_shares(units: Units, machine: Machine) -> FloatArray:
    """Share of a device's memory that a unit takes wherever it takes least, [kinds, units]."""
    shares = np.zeros((len(machine.kinds), units.size))
    for number, kind in enumerate(machine.kinds):
        if 0 < kind.memory_bytes < inf:
            shares[number] = units.held / kind.memory_bytes
    return shares


def highest_load(units: Units, machine: Machine) -> float:
    """A limit above the load of any stage; at least 1."""
    work = units.work[list(machine.rows)]
    total = float(np.where(np.isfinite(work), work, 0.0).sum(axis=1).max())
    links = {s.link_in for steps in machine.steps for s in steps}
    slowest = [float(link.seconds(units.cost).sum()) + 1.0 for link in links if link is not None]
    return 2 * (total + (float(units.cost.sum()) if machine.priced else max(slowest))) + 1.0


def _paying(machine: Machine, capacity: FloatArray, present: np.ndarray) -> FloatArray:
    if machine.overlap or (not machine.priced and machine.link is None):
        return np.zeros(len(present))
    free = np.array([not kind.pays for kind in machine.kinds])
    least = np.where(present, capacity, inf).min(axis=1)
    return np.where((present & free).any(axis=1) | ~np.isfinite(least), 0.0, least)


def _capacities(work: FloatArray, count: FloatArray) -> FloatArray:
    """Maximises sum(min_k c_k * work_k) / sum(count_k * c_k), one capacity after the other.

    The best capacity of one kind is one at which some unit's least term becomes another kind's; up
    to it the ratio rises, and then it falls.
    """
    capacity = np.ones(len(count))
    for k in [*range(len(count))] * (3 if len(count) > 1 else 0):
        others = np.delete(np.arange(len(count)), k)
        with np.errstate(divide="ignore", invalid="ignore"):
            breaks = np.min(capacity[others, None] * work[others], axis=0) / work[k]
        trial = np.repeat(capacity[:, None], 2, axis=1)
        breaks = np.unique(breaks[np.isfinite(breaks) & (breaks > 0)])
        low, high = 0, len(breaks) - 1
        while low < high:
            middle = (low + high) // 2
            trial[k] = breaks[middle : middle + 2]
            before, after = (_ratio(column, work, count) for column in trial.T)
            low, high = (middle + 1, high) if after > before else (low, middle)
        trial[k] = breaks[low] if len(breaks) else capacity[k]
        if _ratio(trial[:, 0], work, count) > _ratio(capacity, work, count) * (1 + TOLERANCE):
            capacity = trial[:, 0]
    return capacity


def _ratio(capacity: FloatArray, work: FloatArray, count: FloatArray) -> float:
    return float(np.min(capacity[:, None] * work, axis=0).sum() / (count @ capacity))
