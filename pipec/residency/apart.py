"""Forward and backward on two devices (PipeFB): all that is saved leaves, or is computed again.

```text
device of F     F0 ──────► F1 ──────► F2            T >= F + a / rate    T >= O / rate
  to the host      ███░░░    ███░░░                 O + (O - a) <= cap of F
device of B               B0 ──────► B1             T >= B + again + a / rate
  from the host      ░░░███    ░░░███               O + (O - a) + working <= cap of B
```

O bytes of every microbatch go through the host, one set behind the other. Before the next forward
begins, what does not fit beside its values must have left: that part, a, is a slot of depth 1
(black) and adds to the time; the rest runs beside the forward, a slot of depth 2. In the same way
what does not fit beside the values of one backward comes when that has ended.

The time between two microbatches, T, is that of the slower of the two devices and of the copies.
The bound lets the two devices have unlike parts a; a choice has one for both, in whole values.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.optimize import Bounds, LinearConstraint

from pipec.residency.choose import Choice, DoesNotFitError
from pipec.residency.play import Slot
from pipec.residency.problem import OFFLOAD, RECOMPUTE, FloatArray, IntArray, Problem
from pipec.residency.program import GAP, NODES_REACHED, WHOLE_UP_TO, solved

_ROUNDS = 8
"""Most programs that are solved because working bytes were more than the program knew."""
_TIE = 1e-6
"""Weight of recomputed seconds beside T: what does not lower T is not recomputed."""
_FEW = 12
"""Values of which all sets are looked at, for the first part."""
_SOME = 1e-6
"""A fraction of a value from which on all of it is recomputed."""
_T, _A_F, _A_B, _W = (np.eye(4)[k] for k in range(4))


@dataclass(frozen=True, eq=False)
class Apart:
    """A stage whose forward and backward run on two devices.

    Attributes:
        problem: Its values; ``cap`` is that of the device of the forward.
        cap_behind: Bytes that saved and recomputed values may take on the device of the backward.
        parts: Whether a part may leave, and come, while nothing is computed (a slot of depth 1).
    """

    problem: Problem
    cap_behind: float
    parts: bool = True

    @property
    def step_seconds(self) -> float:
        """Between two microbatches, if copies took no time."""
        return max(self.problem.forward, self.problem.backward)

    def needs(self, decision: IntArray) -> tuple[float, float]:
        """Fewest bytes on the device of the forward and of the backward: one set, and its work."""
        moved = self.problem.bytes_of(decision, OFFLOAD)
        return moved, moved + self.problem.working_bytes(decision)

    def first_part(self, decision: IntArray) -> float:
        """Bytes of a set for which there is no room beside another set, on the fuller device."""
        moved = self.problem.bytes_of(decision, OFFLOAD)
        room = min(self.problem.cap, self.cap_behind - self.problem.working_bytes(decision))
        return max(2 * moved - room, 0.0)

    def seconds(self, decision: IntArray, part: float) -> float:
        """T with a first part of so many bytes."""
        p = self.problem
        copies = p.bytes_of(decision, OFFLOAD) / p.bandwidth
        slower = max(p.forward, p.backward + p.again_seconds(decision))
        return max(slower + part / p.bandwidth, copies)


def bound(
    apart: Apart, *, common: bool = False, working: float = 0.0, whole: bool = True
) -> tuple[float, FloatArray]:
    """The least time between two microbatches, and the part of each value that is recomputed.

    Args:
        apart: The stage.
        common: Whether both devices have one first part, as choices do, and none without parts.
        working: Working bytes that every decision has at least.
        whole: Whether values are whole, where they are few enough.

    Returns:
        (seconds, [values]); infinite if nothing fits.
    """
    p, n = apart.problem, apart.problem.values
    unit, second = max(float(p.nbytes.max(initial=0)), 1e-30), max(apart.step_seconds, 1e-30)
    able = np.isfinite(p.recompute)
    again = np.where(able, p.recompute, 0.0) / second
    table, low = _rows(apart, unit, second, again, common=common)
    integral = whole and n <= WHOLE_UP_TO
    parts = [0.0 if common and not apart.parts else np.inf] * 2
    found = solved(
        np.concatenate([_TIE * again, _T]),
        (np.arange(n + 4) < n * integral).astype(np.int64),
        Bounds(
            np.concatenate([np.zeros(n + 3), [working / unit]]),
            np.concatenate([able, [np.inf], parts, [np.inf]]),
        ),
        LinearConstraint(table, low),
    )
    if found.status == NODES_REACHED and integral:  # perhaps without a decision
        return bound(apart, common=common, working=working, whole=False)
    if not found.success:
        return np.inf, np.zeros(n)
    least = float(found.fun) * (1 - GAP * integral) - _TIE * float(again.sum())
    return max(least, 1.0) * second, np.asarray(found.x)[:n]


def _rows(
    apart: Apart, unit: float, second: float, again: FloatArray, *, common: bool
) -> tuple[FloatArray, list[float]]:
    """The program's rows, over [values] and T, a of F, a of B, working bytes; each at least low."""
    p = apart.problem
    size, rate = p.nbytes / unit, p.bandwidth * second / unit
    whole, none = float(size.sum()), np.zeros(p.values)
    ahead, behind = p.cap / unit, apart.cap_behind / unit
    rows: list[tuple[float, FloatArray, FloatArray]] = [
        (p.forward / second, none, _T - _A_F / rate),
        (p.backward / second, -again, _T - _A_B / rate),
        (whole / rate, size / rate, _T),
        (2 * whole - ahead, 2 * size, _A_F),
        (2 * whole - behind, 2 * size, _A_B - _W),
        (whole - ahead, size, 0 * _T),
        (whole - behind, size, -_W),
        *((0.0, -bytes_ / unit, _W) for bytes_ in p.alive),
    ]
    if common:
        rows += [(0.0, none, _A_F - _A_B), (0.0, none, _A_B - _A_F)]
    return np.array([np.concatenate([r, x]) for _, r, x in rows]), [low for low, _, _ in rows]


def choose_apart(apart: Apart) -> Choice:
    """Which values go through the host, which are computed again, and what leaves first.

    Raises:
        DoesNotFitError: Not even one set fits, whatever is recomputed.
    """
    p = apart.problem
    every = np.full(p.values, OFFLOAD, dtype=np.int64)
    tried = [*_programs(apart), np.where(np.isfinite(p.recompute), RECOMPUTE, every), every]
    fitting = [d for d in tried if _fits(apart, d)]
    if not fitting:
        needs = [max(a, p.cap + b - apart.cap_behind) for a, b in map(apart.needs, tried)]
        raise DoesNotFitError(min(needs), p.cap)
    decision = min(fitting, key=lambda d: apart.seconds(d, _dealt(apart, d)[1]))
    slots, part = _dealt(apart, decision)
    found, step = apart.seconds(decision, part), max(apart.step_seconds, 1e-30)
    return Choice(
        decision=decision,
        slots=slots,
        seconds=found,
        added=found / step - 1,
        bound=bound(apart)[0] / step - 1,
        peak_bytes=2 * p.bytes_of(decision, OFFLOAD) - part + p.working_bytes(decision),
    )


def _programs(apart: Apart) -> Iterator[IntArray]:
    """Decisions of the program, until one fits: each time told what the last one worked with."""
    working = 0.0
    for _ in range(_ROUNDS):
        seconds, parts = bound(apart, common=True, working=working)
        if seconds == np.inf:
            return
        decision = np.where(parts > _SOME, RECOMPUTE, OFFLOAD).astype(np.int64)
        yield decision
        if _fits(apart, decision):
            return
        working = max(apart.problem.working_bytes(decision), working * 1.02)


def _fits(apart: Apart, decision: IntArray) -> bool:
    moved, behind = apart.needs(decision)
    part = apart.first_part(decision)
    there = moved <= apart.problem.cap and behind <= apart.cap_behind
    return there and (apart.parts or part <= 0)


def _dealt(apart: Apart, decision: IntArray) -> tuple[tuple[Slot, ...], float]:
    """The values that leave in two slots, the first of at least the bytes that must be; its bytes.

    The fewest bytes that are enough, of few values; else the largest first, then the smallest that
    is enough for what is left.
    """
    p, want = apart.problem, apart.first_part(decision)
    leaving = np.flatnonzero(decision == OFFLOAD)
    first = _least_sum(p, leaving, want)
    held = float(p.nbytes[first].sum())
    rest = tuple(v for v in leaving.tolist() if v not in first)
    slots = (Slot(1, tuple(sorted(first))), Slot(2, rest))
    return tuple(s for s in slots if s.values), held


def _least_sum(problem: Problem, values: IntArray, want: float) -> list[int]:
    """Values of few bytes in all, but at least so many."""
    if len(values) <= _FEW:
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
