"""The dynamic program over candidate cuts: reach the full set through one cut per state.

For a step from cut J to cut I, the stage is the units in I and not in J. Where values are priced in
seconds, its load is

    work(I) - work(J) + cut(I) + cut(J)
      - sum over hyperedges p partly in both of cost_p * (1 + [p has as many units in I as in J]):

every value that enters or leaves the stage is paid once, one that passes over it not at all. Where
links carry the values, the boundaries J and I cost what their links take for the bytes that cross.
"""

from dataclasses import dataclass
from math import inf
from time import perf_counter

import numpy as np

from pipec.partition.costgraph import BoolArray, FloatArray, IntArray
from pipec.partition.devices import boundary_seconds
from pipec.partition.machine import Machine, Step
from pipec.partition.proof.bounds import TOLERANCE, Bounds, Reach
from pipec.partition.search.family import Family

BLOCK, LEAST_BLOCK = 512, 64


@dataclass(frozen=True)
class Path:
    """A way through the cuts.

    Attributes:
        value: The largest load.
        rows: Row of the cut behind each used step.
        steps: The steps that took a stage, first to last.
    """

    value: float
    rows: tuple[int, ...]
    steps: tuple[Step, ...]


class OutOfTimeError(Exception):
    """Signals that a search reached its deadline; never leaves this package."""


@dataclass(eq=False)
class _State:
    rows: IntArray
    value: FloatArray
    from_row: IntArray  # place in the rows of the source state
    from_step: IntArray  # index of the incoming step; -1 none


def search(
    family: Family,
    machine: Machine,
    bounds: Bounds,
    limit: float,
    *,
    most_pairs: float = inf,
    deadline: float = inf,
) -> Path | None:
    """Best path whose loads are all below ``limit``.

    Args:
        family: Candidate cuts.
        machine: States and steps.
        bounds: Gives the window of cuts of every state.
        limit: Loads must be strictly below.
        most_pairs: Keep cuts with little communication, so many that about this many pairs of
            them are within a device's capacity.
        deadline: When to give up (`time.perf_counter`).

    Returns:
        The path, or None: then no path of this family stays below the limits.

    Raises:
        OutOfTimeError: The deadline has passed.
    """
    states: list[_State] = []
    held = bounds.capacity * limit + TOLERANCE * float(bounds.ref.sum())
    reach = Reach(bounds, machine, limit)
    for s in range(len(machine.used)):
        rows = _candidates(family, machine, s, reach)
        rows = _thin(family, rows, most_pairs / len(machine.used), float(held.max()))
        state = _State(
            rows, np.full(len(rows), inf), np.full(len(rows), -1), np.full(len(rows), -1)
        )
        if s == 0:
            state.value[rows == 0] = 0.0
        states.append(state)
        for number, step in enumerate(machine.steps[s]):
            move = _Move(family, machine, step, limit, deadline, float(held[step.kind]))
            if not machine.exactly:
                move.skip(states[step.source], state, number)
            move.advance(states[step.source], state, number)
    return _trace(family, machine, states)


def _candidates(family: Family, machine: Machine, state: int, reach: Reach) -> IntArray:
    """Cuts that may lie behind the devices used in a state."""
    last = len(family.ref) - 1
    if state == 0:
        return np.zeros(1, np.int64)
    if state == len(machine.used) - 1:
        return np.array([last])
    a = int(np.searchsorted(family.ref, reach.low[state], "left"))
    b = int(np.searchsorted(family.ref, reach.high[state], "right"))
    ref = family.ref[a:b]
    keep = reach.may_hold(np.array([state]), ref, ref, family.cut[:, a:b])
    if machine.exactly:
        used = int(machine.used[state].sum())
        left = int(machine.total.sum()) - used
        keep &= (family.size[a:b] >= used) & (family.size[last] - family.size[a:b] >= left)
    return np.flatnonzero(keep) + a


def _thin(family: Family, rows: IntArray, most_pairs: float, held: float) -> IntArray:
    """Of every few neighbouring cuts the one with the least communication."""
    if len(rows) ** 2 <= most_pairs:
        return rows
    near = min(1.0, held / float(np.ptp(family.ref[rows])))  # of all pairs
    stride = -(-len(rows) // int((most_pairs / near) ** 0.5))
    groups = rows[: len(rows) // stride * stride].reshape(-1, stride)
    best = family.cut[:, groups].sum(axis=0).argmin(axis=1)
    chosen: IntArray = groups[np.arange(len(groups)), best]
    return chosen


@dataclass(frozen=True)
class _Move:
    """One step of the program, from the cuts of one state to those of the next."""

    family: Family
    machine: Machine
    step: Step
    limit: float
    deadline: float
    capacity: float  # work measure that the device can hold

    def skip(self, source: _State, target: _State, number: int) -> None:
        """The device stays empty: the same cut, one more device used; it relays what crosses."""
        if not len(target.rows) or not len(source.rows):
            return
        place = np.searchsorted(target.rows, source.rows)
        place = np.minimum(place, len(target.rows) - 1)
        relay = self._link(np.zeros(len(source.rows)), source.rows, source.rows)
        value = np.maximum(source.value, relay)
        same = (target.rows[place] == source.rows) & (value < target.value[place])
        same &= value < self.limit
        at = place[same]
        target.value[at] = value[same]
        target.from_row[at] = np.flatnonzero(same)
        target.from_step[at] = number

    def advance(self, source: _State, target: _State, number: int) -> None:
        """Relax all pairs; ``number`` is the step's place among those into the target."""
        live = np.flatnonzero(source.value < self.limit)
        if not len(live) or not len(target.rows):
            return
        rows = source.rows[live]
        ref = self.family.ref[rows]
        size = int(self.capacity / max(float(np.ptp(ref)), self.capacity) * len(rows))
        size = min(max(size, LEAST_BLOCK), BLOCK)
        for begin in range(0, len(target.rows), size):
            ends = target.rows[begin : begin + size]
            # a stage holds less than the capacity of its device; no source is beyond its target
            least = self.family.ref[ends[0]] - self.capacity
            first = int(np.searchsorted(ref, least, "left"))
            last = int(np.searchsorted(ref, self.family.ref[ends[-1]] * (1 + TOLERANCE), "right"))
            # blocks that stay in cache; near ones first, as they are more often the best
            for high in range(last, first, -size):
                if perf_counter() > self.deadline:
                    raise OutOfTimeError
                part = live[max(first, high - size) : high]
                near, behind = source.rows[part], source.value[part, None]
                bound = np.minimum(target.value[begin : begin + size], self.limit)
                found = self._best(near, behind, ends, bound)
                if found is None:
                    continue
                j, i, reached = found
                target.value[begin + i] = reached
                target.from_row[begin + i] = part[j]
                target.from_step[begin + i] = number

    def _best(
        self, sources: IntArray, behind: FloatArray, targets: IntArray, bound: FloatArray
    ) -> tuple[IntArray, IntArray, FloatArray] | None:
        """For targets that beat their bound: place of the best source, place, and objective."""
        ok = np.maximum(self._least_loads(sources, targets), behind) < bound
        if not ok.any():
            return None
        ok &= self._allow(sources[:, None], targets)
        if not ok.any():
            return None
        reached = np.maximum(self._loads(sources, targets), behind)
        reached[~ok | (reached >= bound)] = inf
        j = reached.argmin(axis=0)
        i = np.flatnonzero(reached[j, np.arange(len(targets))] < inf)
        return j[i], i, reached[j[i], i]

    def _least_loads(self, sources: IntArray, targets: IntArray) -> FloatArray:
        """What no load is below, [sources, targets]: values that pass over are in both cuts."""
        family, machine = self.family, self.machine
        work = family.work[machine.rows[self.step.kind]]
        least: FloatArray = work[targets] - work[sources][:, None]
        if machine.priced and machine.kinds[self.step.kind].pays:
            least += np.abs(family.cut[0, targets] - family.cut[0, sources][:, None])
            least -= TOLERANCE * family.cut[0].max()  # rounding
        return least

    def _allow(self, sources: IntArray, targets: IntArray) -> BoolArray:
        """Not empty, nested, within memory, and only units that the device can run."""
        family = self.family
        kind, row = self.machine.kinds[self.step.kind], self.machine.rows[self.step.kind]
        ok: BoolArray = family.size[targets] > family.size[sources]
        if family.blocked[row, -1]:
            ok &= family.blocked[row, targets] == family.blocked[row, sources]
        if np.isfinite(kind.memory_bytes):
            slack = TOLERANCE * max(family.held[-1], 1.0)
            ok &= family.held[targets] - family.held[sources] <= kind.memory_bytes + slack
        return ok & family.inside(sources, targets)

    def _loads(self, sources: IntArray, targets: IntArray) -> FloatArray:
        """Load of the stages between sources and targets, [sources, targets]."""
        family, machine = self.family, self.machine
        work = family.work[machine.rows[self.step.kind]]
        load: FloatArray = work[targets] - work[sources][:, None]
        if not machine.priced:
            return self._link(load, sources[:, None], targets)
        if machine.kinds[self.step.kind].pays:
            cut = family.cut[0]
            load += cut[targets] + cut[sources][:, None]
            load -= family.passing(sources, targets)
        return load

    def _link(self, work: FloatArray, sources: IntArray, targets: IntArray) -> FloatArray:
        """Work, and what the links on both sides take; shapes broadcast."""
        cut, overlap = self.family.cut, self.machine.overlap
        if not self.machine.kinds[self.step.kind].pays:
            return work
        into = boundary_seconds(cut[:, sources], self.step.link_in, at_once=overlap)
        out = boundary_seconds(cut[:, targets], self.step.link_out, at_once=overlap)
        return np.maximum(work, np.maximum(into, out)) if overlap else work + into + out


def _trace(family: Family, machine: Machine, states: list[_State]) -> Path | None:
    """Walks back from the full set."""
    s, place = len(states) - 1, 0
    value = float(states[s].value[place])
    if not value < inf:
        return None
    rows: list[int] = []
    steps: list[Step] = []
    while s:
        state = states[s]
        step = machine.steps[s][int(state.from_step[place])]
        before = int(state.from_row[place])
        if states[step.source].rows[before] != state.rows[place]:
            rows.append(int(state.rows[place]))
            steps.append(step)
        s, place = step.source, before
    return Path(value, tuple(reversed(rows)), tuple(reversed(steps)))
