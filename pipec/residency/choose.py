"""Choosing: bound, round so that fractions carry over, play, keep the fastest that fits."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from math import inf

import numpy as np

from pipec.errors import PartitionError
from pipec.residency.bound import Bound, bound
from pipec.residency.play import CLOSE, Played, Slot, least, play, play_again
from pipec.residency.problem import KEEP, OFFLOAD, RECOMPUTE, IntArray, Problem, Working

ROUNDS = 20
"""Most programs that are solved for one choice."""
CUTS = 8
"""Most of them that are tightened."""
SHRINK = (0.99, 0.98, 0.97, 0.96, 0.94, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5, 0.35, 0.2)
"""Relative caps of the next programs where whole copies need more room than the fluid."""
PARTS = (1, 8, 32)
"""Slots of equal bytes: the more of them, the more the copies are like a fluid."""
SHARES = np.arange(1, 8) / 8
"""Of the values that leave, in a slot of depth 1, so that fewer sets meet than at depth 2."""
FEW = 12
"""Values of which all sets are looked at, for the part that leaves first."""
_SOME = 1e-6
"""A fraction of a value from which on all of it may be recomputed."""
MANY = 16
"""Values beyond which a decision is not improved that does not fit while another one does."""
FAR = 0.03
"""Or that is slower by so much of a step."""
STARTS = {MANY: 10, np.inf: 2}
"""Most unlike decisions that are improved, of up to so many values."""
_Slots = tuple[Slot, ...]


@dataclass(frozen=True, eq=False)
class Choice:
    """Which values leave and which are computed again.

    Attributes:
        decision: KEEP, OFFLOAD or RECOMPUTE per value.
        slots: The values that leave, by slot.
        seconds: One forward and one backward with it, the stage alone in steady state.
        added: What it adds to keeping everything, as a share of the step.
        bound: No choice adds less, as a share of the step.
        peak_bytes: Most bytes of saved and recomputed values on the device.
    """

    decision: IntArray
    slots: tuple[Slot, ...]
    seconds: float
    added: float
    bound: float
    peak_bytes: float


class DoesNotFitError(PartitionError):
    """No residency keeps the cap."""

    def __init__(self, least: float, cap: float) -> None:
        super().__init__(
            "saved values do not fit, however they are moved or recomputed",
            got=f"{least:,.0f} bytes at least",
            want=f"{cap:,.0f} bytes",
            hint="smaller or fewer microbatches in flight, more stages, or a larger limit",
        )
        self.least, self.cap = least, cap


def _first_that_fits(problem: Problem, those: Iterable[tuple[IntArray, _Slots]]) -> Played:
    """The fastest that fits exactly; what takes the fewest bytes if none does.

    What is too full or slower in any case is not played.
    """
    bounds = [(*least(problem, *each), each) for each in those]
    full, best = problem.full, list[Played]()
    bounds.sort(key=lambda b: (0.0, b[0], b[1]) if b[1] <= full else (inf, b[1], b[0]))
    for seconds, nbytes, each in bounds:
        if best and best[0].seconds < inf:
            close = best[0].close
            if nbytes > full or seconds // close > best[0].seconds // close:
                continue
        found = play(problem, *each, exactly=False)
        if not best or found.order < best[0].order:
            best = [min([play_again(problem, found), *best], key=lambda t: t.order)]
    return best[0]


def choose(problem: Problem, enough: float = np.inf) -> Choice:
    """The fastest residency found under the cap, with a bound on how much faster any can be.

    Args:
        problem: What is saved.
        enough: Seconds of a choice that is known: what is slower in any case is not improved.

    Raises:
        DoesNotFitError: Nothing fits; the message says how much would.
    """
    first = bound(problem)
    step = max(problem.step_seconds, 1e-30)
    near = step * (1 + CLOSE) + first.added_seconds
    best, *others = _starts(problem, first)
    beaten = step + first.added_seconds > enough and best.seconds < np.inf
    for start in () if beaten else (best, *others):
        if best.seconds > near:
            more = _keep_several(problem, start)
            lost = problem.values > MANY and more.seconds > best.seconds + FAR * step
            more = more if lost else improve(problem, more)
            best = min(best, more, key=lambda t: t.order)
    if best.seconds == np.inf:
        raise DoesNotFitError(best.peak_bytes, problem.cap)
    return Choice(
        decision=best.decision,
        slots=best.slots,
        seconds=best.seconds,
        added=max(best.seconds / step - 1, 0.0),
        bound=first.added_seconds / step,
        peak_bytes=best.peak_bytes,
    )


def _starts(problem: Problem, first: Bound) -> list[Played]:
    """The best of the program's decisions, its rows tightened where one did not fit; and others.

    A decision may need more working bytes than the program knew: then it, and what recomputes
    more, counts as needing them. Else whole copies need more room than a fluid: the cap shrinks.
    """
    found = [play(problem, problem.keep_all())] if problem.behind is None else []
    if found and found[0].seconds < np.inf:
        return found
    cuts, shrinks, shrink = list[Working](), iter(SHRINK), 1.0
    program = first if problem.parts else bound(problem, decides=True)
    for _ in range(ROUNDS):
        if program.added_seconds == np.inf:
            break
        found.append(_of_program(problem, program))
        near = problem.step_seconds * (1 + CLOSE) + program.added_seconds
        if min(t.seconds for t in found) <= near:
            break
        cut = _unknown(problem, found[-1].decision)
        new = [] if cut is None or cut in cuts or len(cuts) == CUTS else [cut]
        if shrink < 1 or not new:
            shrink = next(shrinks, 0.0)
        cuts += new
        program = bound(problem, problem.cap * shrink, cuts, decides=True)
    alike = (_arrange(problem, decision) for decision in _all_of_one_kind(problem))
    found += [_first_that_fits(problem, those) for those in alike]
    unlike = dict[object, Played]()
    for t in sorted(found, key=lambda t: t.order):
        depths = tuple(sorted({s.depth for s in t.slots}))
        unlike.setdefault((depths, t.decision.tobytes()), t)
    most = next(count for values, count in STARTS.items() if problem.values <= values)
    return list(unlike.values())[:most]


def _unknown(problem: Problem, decision: IntArray) -> Working | None:
    """What a decision needs of the device, if the program does not know that already."""
    if problem.working is None:
        return None
    found = problem.working(decision)
    those = problem.alive[:, list(found.values)].sum(axis=1)
    return found if those.max(initial=0.0) * (1 + 1e-9) < found.alive else None


def _of_program(problem: Problem, program: Bound) -> Played:
    decisions = [program.nearest(), _diffuse(problem, program)]
    if problem.behind is not None:  # nothing stays
        decisions = [np.where(d == KEEP, OFFLOAD, d) for d in decisions]
        decisions.append(np.where(program.recompute > _SOME, RECOMPUTE, OFFLOAD))
    rounded = {d.tobytes(): d for d in decisions}
    several = [t for d in rounded.values() for t in _arrange(problem, d)]
    return _first_that_fits(problem, several)


def _arrange(problem: Problem, decision: IntArray) -> Iterator[tuple[IntArray, _Slots]]:
    """A decision with its moved values in slots of several depths."""
    leaving = np.flatnonzero(decision == OFFLOAD)
    if not len(leaving):
        yield decision, ()
        return
    if problem.behind is not None:
        yield decision, _two_parts(problem, decision, leaving)
        return
    for depth, count in product(range(3), PARTS):
        yield decision, _deal(problem, leaving, depth, count)
    for share in SHARES:
        early = np.arange(len(leaving)) * share % 1 < share  # evenly among the values
        first, then = _deal(problem, leaving[early], 1, 1), _deal(problem, leaving[~early], 2, 1)
        yield decision, first + then


def _deal(problem: Problem, leaving: IntArray, depth: int, count: int) -> tuple[Slot, ...]:
    """Values in order into slots of equal bytes; a value goes where its middle lies."""
    size = problem.nbytes[leaving]
    share = max(float(size.sum()), 1e-30) / count
    slot = np.minimum((np.cumsum(size) - size / 2) // share, count - 1)
    found = [leaving[slot == k] for k in range(count)]
    return tuple(Slot(depth, tuple(values.tolist())) for values in found if len(values))


def _two_parts(problem: Problem, decision: IntArray, leaving: IntArray) -> tuple[Slot, ...]:
    """What leaves first, no more than must: what two sets need above either device's room."""
    room = problem.room(problem.working_bytes(decision))
    moved = float(problem.nbytes[leaving].sum())
    want = min(max(2 * moved - room, 0.0), moved)
    first = _least_sum(problem, leaving, want) if problem.parts else []
    rest = tuple(v for v in leaving.tolist() if v not in first)
    return tuple(s for s in (Slot(1, tuple(sorted(first))), Slot(2, rest)) if s.values)


def _least_sum(problem: Problem, values: IntArray, want: float) -> list[int]:
    """Values of the fewest bytes that are enough, of few.

    Else the largest first, then the smallest that is enough for what is left.
    """
    if len(values) <= FEW:
        sets = (np.arange(2 ** len(values))[:, None] >> np.arange(len(values))) & 1
        sums = sets @ problem.nbytes[values]
        best = sets[np.where(sums >= want * (1 - 1e-12), sums, np.inf).argmin()]
        found: list[int] = values[best > 0].tolist()
        return found
    first, held = list[int](), 0.0
    for v in values[np.argsort(-problem.nbytes[values], kind="stable")].tolist():
        if held + problem.nbytes[v] <= want:
            first.append(v)
            held += float(problem.nbytes[v])
    left = [v for v in values.tolist() if v not in first and problem.nbytes[v] > 0]
    if held < want and left:
        first.append(min(left, key=lambda v: (problem.nbytes[v] < want - held, problem.nbytes[v])))
    return first


def _diffuse(problem: Problem, program: Bound) -> IntArray:
    """Whole decisions whose running bytes follow those of the fractions."""
    decision = problem.keep_all()
    owed = {OFFLOAD: 0.0, RECOMPUTE: 0.0}
    parts = {OFFLOAD: program.offload, RECOMPUTE: program.recompute}
    for v in range(problem.values):
        size = float(problem.nbytes[v])
        for kind, part in parts.items():
            owed[kind] += size * float(part[v])
        able = [k for k in owed if parts[k][v] > 1e-9 and problem.allows(v, k)]
        kind = max(able, key=owed.__getitem__, default=KEEP)
        if kind != KEEP and owed[kind] >= size / 2:
            decision[v] = kind
            owed[kind] -= size
    return decision


def _all_of_one_kind(problem: Problem) -> Iterator[IntArray]:
    possible = np.isfinite(problem.recompute)
    if problem.allows(0, KEEP) or possible.all():
        yield np.where(possible, RECOMPUTE, KEEP)
    if problem.moves:
        yield np.full(problem.values, OFFLOAD, np.int64)
        yield np.where(possible, RECOMPUTE, OFFLOAD)


SWEEPS = 3
MOVES = 120
"""Most values that one sweep changes."""


def improve(problem: Problem, best: Played) -> Played:
    """Sweeps of changes to one value, the most expensive first."""
    for _ in range(SWEEPS):
        before = best
        for v in _dearest_first(problem, best)[:MOVES].tolist():
            stays = [(kind, None) for kind in (KEEP, RECOMPUTE) if problem.allows(v, kind)]
            for kind, depth in (*stays, *((OFFLOAD, depth) for depth in problem.depths)):
                best = _try_fate(problem, best, v, kind, depth)
        if best is before:
            break
    return best


def _dearest_first(problem: Problem, best: Played) -> IntArray:
    cost = 1e-12 * problem.nbytes + np.where(best.decision == RECOMPUTE, problem.recompute, 0)
    return np.argsort(-cost, kind="stable")


def _keep_several(problem: Problem, best: Played) -> Played:
    """As many of the dearest values that are computed again kept as is better, by bisection."""
    if not problem.allows(0, KEEP):
        return best
    order = [v for v in _dearest_first(problem, best) if best.decision[v] == RECOMPUTE]
    few, many = 0, len(order)
    while few < many:
        count = (few + many + 1) // 2
        decision = best.decision.copy()
        decision[order[:count]] = KEEP
        tried = _better(problem, best, decision, best.slots)
        few, many, best = (few, count - 1, best) if tried is best else (count, many, tried)
    return best


def _try_fate(problem: Problem, best: Played, value: int, kind: int, depth: int | None) -> Played:
    """The better of a decision and the same with another fate of one value."""
    decision, slots = best.decision.copy(), _move(best.slots, value, depth)
    decision[value] = kind
    if slots == best.slots and kind == best.decision[value]:
        return best
    return _better(problem, best, decision, slots)


def _better(problem: Problem, best: Played, decision: IntArray, slots: _Slots) -> Played:
    """The better of two decisions; the other one is played with its working bytes last."""
    seconds, nbytes = least(problem, decision, slots)
    slower = seconds // best.close > best.seconds // best.close
    if best.seconds < np.inf and (slower or nbytes > problem.full):
        return best
    other = play(problem, decision, slots, exactly=False)
    if other.order < best.order:
        return min(best, play_again(problem, other), key=lambda t: t.order)
    return best


def _move(slots: _Slots, value: int, depth: int | None) -> _Slots:
    """Slots after one value changed to the slot of a depth, or left all."""
    found = [Slot(s.depth, tuple(v for v in s.values if v != value)) for s in slots]
    if depth is not None:
        at = next((k for k, s in enumerate(found) if s.depth == depth), len(found))
        there = found[at].values if at < len(found) else ()
        found[at : at + 1] = [Slot(depth, tuple(sorted((*there, value))))]
    return tuple(s for s in found if s.values)
