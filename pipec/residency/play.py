"""Timing whole decisions: copies beside compute, memory never exceeded, stalls counted."""

from collections import deque
from dataclasses import dataclass
from math import inf

import numpy as np
import numpy.typing as npt

from pipec.residency.problem import KEEP, OFFLOAD, RECOMPUTE, FloatArray, IntArray, Problem


@dataclass(frozen=True)
class Played:
    """How decisions went.

    Attributes:
        seconds: Forward and backward, stalls and recomputation included; infinite if the cap
            cannot be kept.
        peak_bytes: Most bytes of saved values on the device.
    """

    seconds: float
    peak_bytes: float


def play(problem: Problem, decision: IntArray) -> Played:
    """Run forward and backward with one copy engine in each direction.

    Forward: a value that leaves is queued for the host when its slot ends and frees its bytes
    when the copy ends; one that is recomputed is dropped at once. Backward: values come back in
    the order of their use as early as memory allows; a slot starts when its values are there.

    Args:
        problem: What is saved.
        decision: KEEP, OFFLOAD or RECOMPUTE per value.
    """
    there, resident, peak, copies_end = _forward(problem, decision)
    if there == inf:
        return Played(inf, peak)
    return _backward(problem, decision, there, resident, peak, copies_end)


def _forward(problem: Problem, decision: IntArray) -> tuple[float, float, float, float]:
    """(time, resident bytes, peak, end of the last copy) when the forward is over."""
    now = resident = peak = engine = 0.0
    leaving: deque[tuple[float, float]] = deque()
    value = 0
    for slot in range(problem.slots):
        made = []
        while value < problem.values and problem.produced[value] == slot:
            made.append(value)
            value += 1
        size = float(problem.nbytes[made].sum())
        while leaving and (resident + size > problem.cap or leaving[0][0] <= now):
            end, freed = leaving.popleft()
            now, resident = max(now, end), resident - freed
        if resident + size > problem.cap * (1 + 1e-12):
            return inf, resident, resident + size, engine
        resident += size
        peak = max(peak, resident)
        now += float(problem.forward[slot])
        for v in made:
            if decision[v] == OFFLOAD:
                engine = max(engine, now) + float(problem.nbytes[v]) / problem.bandwidth
                leaving.append((engine, float(problem.nbytes[v])))
            elif decision[v] == RECOMPUTE:
                resident -= float(problem.nbytes[v])
    for end, freed in leaving:
        now, resident = max(now, end), resident - freed
    return now, resident, peak, engine


def _backward(
    problem: Problem,
    decision: IntArray,
    now: float,
    resident: float,
    peak: float,
    engine: float,
) -> Played:
    order = np.argsort(-problem.used, kind="stable")
    waiting = deque(int(v) for v in order if decision[v] == OFFLOAD)
    arrives = np.zeros(problem.values)
    again = decision == RECOMPUTE
    seconds = problem.backward + problem.per_slot(
        problem.used, np.where(again, problem.recompute, 0.0)
    )
    change = _changes(problem, again)
    room, fetched = problem.cap * (1 + 1e-12) - resident, 0.0
    engine = max(engine, now)
    for slot in range(problem.slots - 1, -1, -1):
        while waiting:
            v = waiting[0]
            size = float(problem.nbytes[v])
            if fetched + size + change[problem.used[v] : slot + 1].max() > room:
                break
            waiting.popleft()
            engine = max(engine, now) + size / problem.bandwidth
            arrives[v], fetched = engine, fetched + size
        held = resident + fetched + float(change[slot])
        peak = max(peak, held)
        if fetched + change[slot] > room or (waiting and problem.used[waiting[0]] >= slot):
            return Played(inf, peak)
        mine = (problem.used == slot) & (decision == OFFLOAD)
        now = max(now, float(arrives[mine].max(initial=0.0))) + float(seconds[slot])
    return Played(now, peak)


def _changes(problem: Problem, again: npt.NDArray[np.bool_]) -> FloatArray:
    """Bytes that slot k sees beyond what was resident and fetched: renewed less freed so far."""
    renewed = problem.per_slot(problem.used, problem.nbytes * again)
    freed = problem.per_slot(problem.used, problem.nbytes)
    after = np.append(np.cumsum(freed[::-1])[::-1][1:], 0.0)
    change: FloatArray = np.cumsum(renewed[::-1])[::-1] - after
    return change


def keep_all(problem: Problem) -> IntArray:
    """The decision to keep everything."""
    return np.full(problem.values, KEEP, np.int64)
