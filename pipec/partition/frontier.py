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

import numpy as np

from pipec.partition import clock
from pipec.partition.bounds import TOLERANCE, Bounds
from pipec.partition.costgraph import BoolArray, FloatArray, IntArray
from pipec.partition.devices import Link
from pipec.partition.family import Family
from pipec.partition.machine import Machine, Step

BLOCK = 512
ROUNDS = 6


@dataclass(frozen=True)
class Path:
    """A way through the cuts.

    Attributes:
        value: The objective: the largest load, or the sum of all loads.
        rows: Row of the cut behind each used step.
        steps: The steps that took a stage, first to last.
    """

    value: float
    rows: tuple[int, ...]
    steps: tuple[Step, ...]


class OutOfTimeError(Exception):
    """Signals that a search met its deadline; never leaves this package."""


@dataclass(eq=False)
class _State:
    rows: IntArray
    value: FloatArray
    from_row: IntArray  # place in the rows of the source state
    from_step: IntArray  # index of the incoming step; -1 none


@dataclass(frozen=True)
class _Caps:
    """What a step must stay below."""

    limit: float
    best: float
    total: bool
    deadline: float
    reach: FloatArray  # work measure that one device of each kind can hold


def search(
    family: Family,
    machine: Machine,
    bounds: Bounds,
    limit: float,
    *,
    sum_below: float | None = None,
    most_rows: int | None = None,
    deadline: float = inf,
) -> Path | None:
    """Best path whose loads are all below ``limit``.

    Args:
        family: Candidate cuts.
        machine: States and steps.
        bounds: Gives the window of cuts of every state.
        limit: Loads must be strictly below.
        sum_below: If given, minimise the sum of loads instead of the largest, below this value.
        most_rows: Keep about this many cuts per state, those with little communication.
        deadline: When to give up (`pipec.partition.clock.now`).

    Returns:
        The path, or None: then no path of this family stays below the limits.

    Raises:
        OutOfTimeError: The deadline has passed.
    """
    total = sum_below is not None
    best = limit if sum_below is None else sum_below
    states: list[_State] = []
    reach = bounds.capacity * limit + TOLERANCE * float(bounds.ref.sum())
    caps = _Caps(limit, best, total, deadline, reach)
    low, high = bounds.windows(limit)
    for s in range(len(machine.used)):
        rows = _candidates(family, machine, bounds, s, (low[s], high[s]), limit)
        if most_rows and len(rows) > most_rows:
            rows = _thinned(family, rows, most_rows)
        state = _State(
            rows, np.full(len(rows), inf), np.full(len(rows), -1), np.full(len(rows), -1)
        )
        if s == 0:
            state.value[rows == 0] = 0.0
        states.append(state)
        for number, step in enumerate(machine.steps[s]):
            if not machine.exactly:
                _skip(states[step.source], state, number)
            _advance(family, machine, states[step.source], state, step, number, caps)
    return _trace(family, machine, states)


def _candidates(
    family: Family,
    machine: Machine,
    bounds: Bounds,
    state: int,
    window: tuple[float, float],
    limit: float,
) -> IntArray:
    """Cuts that may lie behind the devices used in a state (see ``Bounds``)."""
    last = len(family.ref) - 1
    if state == 0:
        return np.zeros(1, np.int64)
    if state == len(machine.used) - 1:
        return np.array([last])
    a = int(np.searchsorted(family.ref, window[0], "left"))
    b = int(np.searchsorted(family.ref, window[1], "right"))
    seconds = cut_seconds(family.cut[:, a:b], machine.link, priced=machine.priced)
    keep = family.ref[a:b] + bounds.left_pays[state] * seconds <= window[1]
    keep &= family.ref[a:b] - bounds.right_pays[state] * seconds >= window[0]
    if machine.overlap and machine.link is not None:
        keep &= cut_peak(family.cut[:, a:b], machine.link) < limit
    if machine.exactly:
        used = int(machine.used[state].sum())
        left = int(machine.total.sum()) - used
        keep &= (family.size[a:b] >= used) & (family.size[last] - family.size[a:b] >= left)
    return np.flatnonzero(keep) + a


def _thinned(family: Family, rows: IntArray, most: int) -> IntArray:
    """Of every few neighbouring cuts the one with the least communication."""
    stride = -(-len(rows) // most)
    groups = rows[: len(rows) // stride * stride].reshape(-1, stride)
    best = family.cut[:, groups].sum(axis=0).argmin(axis=1)
    chosen: IntArray = groups[np.arange(len(groups)), best]
    return chosen


def cut_seconds(cut: FloatArray, link: Link | None, *, priced: bool) -> FloatArray:
    """Transfer time of boundaries, both directions one after the other, [cuts]."""
    if priced:
        seconds: FloatArray = cut[0]
        return seconds
    if link is None:
        return np.zeros(cut.shape[1])
    return link.seconds(cut[0]) + link.seconds(cut[1])


def cut_peak(cut: FloatArray, link: Link) -> FloatArray:
    """Transfer time of boundaries, both directions at once, [cuts]."""
    return np.maximum(link.seconds(cut[0]), link.seconds(cut[1]))


def _skip(source: _State, target: _State, number: int) -> None:
    """A device stays empty: the same cut, one more device used."""
    place = np.searchsorted(target.rows, source.rows)
    place = np.minimum(place, len(target.rows) - 1)
    if not len(target.rows):
        return
    same = (target.rows[place] == source.rows) & (source.value < target.value[place])
    at = place[same]
    target.value[at] = source.value[same]
    target.from_row[at] = np.flatnonzero(same)
    target.from_step[at] = number


def _advance(
    family: Family,
    machine: Machine,
    source: _State,
    target: _State,
    step: Step,
    number: int,
    caps: _Caps,
) -> None:
    """Relaxes all pairs of one step."""
    live = np.flatnonzero(source.value < caps.best)
    if not len(live) or not len(target.rows):
        return
    rows = source.rows[live]
    ref = family.ref[rows]
    for begin in range(0, len(target.rows), BLOCK):
        ends = target.rows[begin : begin + BLOCK]
        # a stage holds less than the capacity of its device, and no source is beyond its target
        least = family.ref[ends[0]] - caps.reach[step.kind]
        first = int(np.searchsorted(ref, least, "left"))
        last = int(np.searchsorted(ref, family.ref[ends[-1]] * (1 + TOLERANCE), "right"))
        # blocks that stay in cache; near ones first, as they are more often the answer
        for high in range(last, first, -BLOCK):
            if clock.now() > caps.deadline:
                raise OutOfTimeError
            part = live[max(first, high - BLOCK) : high]
            near, behind = source.rows[part], source.value[part, None]
            bound = np.minimum(target.value[begin : begin + BLOCK], caps.best)
            if behind.min() >= bound.max():
                continue
            reached = _reached(family, machine, step, near, behind, ends, bound, caps)
            i, j = _nearest_inside(family, near, ends, reached)
            at = begin + i
            target.value[at] = reached[j, i]
            target.from_row[at] = part[j]
            target.from_step[at] = number


def _reached(
    family: Family,
    machine: Machine,
    step: Step,
    sources: IntArray,
    behind: FloatArray,
    targets: IntArray,
    bound: FloatArray,
    caps: _Caps,
) -> FloatArray:
    """Objective of every pair; infinite if it does not beat the bound or is not allowed."""
    load = loads(family, machine, step, sources, targets)
    reached = load + behind if caps.total else np.maximum(load, behind)
    ok = (reached < bound) & allowed(family, machine, step, sources, targets)
    if caps.total:
        ok &= load < caps.limit
    reached[~ok] = inf
    return reached


def _nearest_inside(
    family: Family, sources: IntArray, targets: IntArray, reached: FloatArray
) -> tuple[IntArray, IntArray]:
    """Per target the best source that is a subset of it: places of targets, places of sources.

    Nearly always one of the first few candidates is a subset; only then are all pairs looked at.
    """
    found_i: list[IntArray] = []
    found_j: list[IntArray] = []
    columns = np.arange(len(targets))
    for _ in range(ROUNDS):
        part = reached[:, columns]
        j = part.argmin(axis=0)
        open_ = part[j, np.arange(len(columns))] < inf
        columns, j = columns[open_], j[open_]
        good = family.inside(sources[j], targets[columns])
        found_i.append(columns[good])
        found_j.append(j[good])
        columns, j = columns[~good], j[~good]
        if not len(columns):
            return np.concatenate(found_i), np.concatenate(found_j)
        reached[j, columns] = inf
    j, i = np.nonzero(reached[:, columns] < inf)
    good = family.inside(sources[j], targets[columns[i]])
    j, i = j[good], i[good]
    order = np.lexsort((reached[j, columns[i]], i))
    first = order[np.unique(i[order], return_index=True)[1]]
    found_i.append(columns[i[first]])
    found_j.append(j[first])
    return np.concatenate(found_i), np.concatenate(found_j)


def allowed(
    family: Family, machine: Machine, step: Step, sources: IntArray, targets: IntArray
) -> BoolArray:
    """Not empty, within memory, and only units that the device can run, [sources, targets]."""
    kind, row = machine.kinds[step.kind], machine.rows[step.kind]
    ok: BoolArray = family.size[targets] > family.size[sources][:, None]
    if family.blocked[row, -1]:
        ok &= family.blocked[row, targets] == family.blocked[row, sources][:, None]
    if np.isfinite(kind.memory_bytes):
        held = step.versions * family.weight + step.in_flight * family.activation
        slack = TOLERANCE * max(held[-1], 1.0)
        ok &= held[targets] - held[sources][:, None] <= kind.memory_bytes + slack
    return ok


def loads(
    family: Family,
    machine: Machine,
    step: Step,
    sources: IntArray,
    targets: IntArray,
    *,
    rough: bool = False,
) -> FloatArray:
    """Load of the stage between every source and target, [sources, targets].

    ``rough`` also charges values that pass over the stage: never too little.
    """
    work = family.work[machine.rows[step.kind]]
    load: FloatArray = work[targets] - work[sources][:, None]
    if not machine.kinds[step.kind].pays:
        return load
    if machine.priced:
        cut = family.cut[0]
        load += cut[targets] + cut[sources][:, None]
        return load if rough else load - family.passing(sources, targets)
    assert step.link_in is not None
    assert step.link_out is not None
    into, out = family.cut[:, sources], family.cut[:, targets]
    if machine.overlap:
        transfer = np.maximum(cut_peak(into, step.link_in)[:, None], cut_peak(out, step.link_out))
        return np.maximum(load, transfer)
    load += cut_seconds(into, step.link_in, priced=False)[:, None]
    load += cut_seconds(out, step.link_out, priced=False)
    return load


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
