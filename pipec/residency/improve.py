"""Better decisions near a good one."""

from itertools import combinations

import numpy as np

from pipec.residency.play import Played, Slot, least, play, play_again
from pipec.residency.problem import KEEP, OFFLOAD, RECOMPUTE, Problem

SWEEPS = 3
MOVES = 120
"""Most values, and most pairs of them, that one sweep changes."""
_Fate = tuple[int, int]


def improve(problem: Problem, best: Played) -> Played:
    """Sweeps of changes to one value, the most expensive first, and exchanges of two."""
    for _ in range(SWEEPS):
        before = best
        cost = np.where(best.decision == RECOMPUTE, problem.recompute, 0.0)
        cost = np.where(np.isfinite(cost), cost, 0.0) + 1e-12 * problem.nbytes
        for v in np.argsort(-cost, kind="stable")[:MOVES].tolist():
            for fate in _fates(problem, v):
                best = _try_fates(problem, best, {v: fate})
        if problem.values * (problem.values - 1) / 2 <= MOVES:
            for v, w in combinations(range(problem.values), 2):
                best = _exchange(problem, best, v, w)
        if best is before:
            break
    return best


def _exchange(problem: Problem, best: Played, one: int, other: int) -> Played:
    """The better of a decision and the same with the fates of two values exchanged."""
    fate, new = _fate(best, one), _fate(best, other)
    if fate == new or new not in _fates(problem, one) or fate not in _fates(problem, other):
        return best
    return _try_fates(problem, best, {one: new, other: fate})


def _fates(problem: Problem, value: int) -> list[_Fate]:
    """What can become of a value: a kind of decision, and the depth of its slot."""
    stays = [(kind, 0) for kind in (KEEP, RECOMPUTE) if problem.allows(value, kind)]
    return stays + [(OFFLOAD, depth) for depth in problem.depths]


def _fate(of: Played, value: int) -> _Fate:
    depths = [s.depth for s in of.slots if value in s.values]
    return int(of.decision[value]), depths[0] if depths else 0


def _try_fates(problem: Problem, best: Played, change: dict[int, _Fate]) -> Played:
    """The better of a decision and the same with some values' fates changed."""
    decision, slots = best.decision.copy(), best.slots
    for value, (kind, depth) in change.items():
        decision[value] = kind
        slots = _move(slots, value, depth if kind == OFFLOAD else None)
    seconds, nbytes = least(problem, decision, slots)
    slower = seconds // best.close > best.seconds // best.close
    if best.seconds < np.inf and (slower or nbytes > problem.cap * (1 + 1e-12)):
        return best
    other = play(problem, decision, slots, exactly=False)
    if other.order < best.order:
        return min(best, play_again(problem, other), key=lambda t: t.order)
    return best


def _move(slots: tuple[Slot, ...], value: int, depth: int | None) -> tuple[Slot, ...]:
    """Slots after one value changed to the slot of a depth, or left all."""
    found = [Slot(s.depth, tuple(v for v in s.values if v != value)) for s in slots]
    if depth is not None:
        at = next((k for k, s in enumerate(found) if s.depth == depth), len(found))
        there = found[at].values if at < len(found) else ()
        found[at : at + 1] = [Slot(depth, tuple(sorted((*there, value))))]
    return tuple(s for s in found if s.values)
