"""Choosing: relax, round so that fractions carry over, play, keep the fastest that fits."""

from dataclasses import dataclass

import numpy as np

from pipec.errors import PartitionError
from pipec.residency.linear import Relaxed, relax
from pipec.residency.play import Played, keep_all, play
from pipec.residency.problem import KEEP, OFFLOAD, RECOMPUTE, FloatArray, IntArray, Problem

SHRINK = (1.0, 0.9975, 0.995, 0.99, 0.985, 0.98, 0.97, 0.96, 0.93, 0.9)
"""Caps of the relaxation, relative: whole values need a little more room than fractions."""


@dataclass(frozen=True, eq=False)
class Choice:
    """Which values leave and which are computed again.

    Attributes:
        decision: KEEP, OFFLOAD or RECOMPUTE per value.
        seconds: Forward and backward with it.
        added: What it adds to keeping everything, as a share of the step.
        bound: No choice adds less, as a share of the step.
        peak_bytes: Most bytes of saved values on the device.
    """

    decision: IntArray
    seconds: float
    added: float
    bound: float
    peak_bytes: float

    def bytes_of(self, problem: Problem, kind: int) -> float:
        """Bytes of the values with this decision."""
        return float(problem.nbytes[self.decision == kind].sum())


def choose(problem: Problem) -> Choice:
    """The fastest residency found under the cap, with a bound on how much faster any can be.

    Raises:
        PartitionError: Nothing fits; how much would is told.
    """
    base = problem.step_seconds
    first = relax(problem)
    tried = [keep_all(problem)]
    for shrink in SHRINK:
        relaxed = first if shrink == 1.0 else relax(problem, problem.cap * shrink)
        if relaxed.added_seconds == np.inf:
            break
        tried += [_diffused(problem, relaxed), _nearest(relaxed)]
    tried += _all_of_one_kind(problem)
    results = [(play(problem, d), d) for d in tried]
    best, decision = min(results, key=lambda r: r[0].seconds)
    if best.seconds > base + first.added_seconds:
        best, decision = _improved(problem, best, decision)
    if best.seconds == np.inf:
        least = min(r.peak_bytes for r, _ in results)
        raise PartitionError(
            "saved values do not fit, however they are moved or recomputed",
            got=f"{least:.4g} bytes at least",
            want=f"{problem.cap:.4g} bytes",
            hint="smaller microbatches, more stages, or a larger limit",
        )
    return Choice(
        decision=decision,
        seconds=best.seconds,
        added=best.seconds / base - 1,
        bound=first.added_seconds / base,
        peak_bytes=best.peak_bytes,
    )


def _improved(problem: Problem, best: Played, decision: IntArray) -> tuple[Played, IntArray]:
    """One sweep over the values that do not stay, the dearest to recompute first."""
    moved = np.flatnonzero(decision != KEEP)
    dear = np.where(decision[moved] == RECOMPUTE, problem.recompute[moved], 0.0)
    for v in moved[np.argsort(-dear, kind="stable")]:
        for kind in (KEEP, OFFLOAD, RECOMPUTE):
            if kind == decision[v] or (kind == RECOMPUTE and problem.recompute[v] == np.inf):
                continue
            if kind == OFFLOAD and problem.bandwidth == 0:
                continue
            other = decision.copy()
            other[v] = kind
            played = play(problem, other)
            if played.seconds < best.seconds:
                best, decision = played, other
    return best, decision


def _diffused(problem: Problem, relaxed: Relaxed) -> IntArray:
    """Whole decisions whose running bytes follow those of the fractions."""
    decision = keep_all(problem)
    owed_out = owed_again = 0.0
    for v in range(problem.values):
        size = float(problem.nbytes[v])
        owed_out += size * float(relaxed.offload[v])
        owed_again += size * float(relaxed.recompute[v])
        owes = {OFFLOAD: owed_out, RECOMPUTE: owed_again}
        allowed = {
            OFFLOAD: relaxed.offload[v] > 1e-9,
            RECOMPUTE: relaxed.recompute[v] > 1e-9 and np.isfinite(problem.recompute[v]),
        }
        kind = max((k for k in owes if allowed[k]), key=owes.__getitem__, default=KEEP)
        if kind != KEEP and owes[kind] >= size / 2:
            decision[v] = kind
            owed_out -= size * (kind == OFFLOAD)
            owed_again -= size * (kind == RECOMPUTE)
    return decision


def _nearest(relaxed: Relaxed) -> IntArray:
    """Each value by the larger of its fractions, if that is above one half."""
    parts: FloatArray = np.stack([relaxed.offload, relaxed.recompute])
    return np.where(parts.max(0) > 0.5, np.array([OFFLOAD, RECOMPUTE])[parts.argmax(0)], KEEP)


def _all_of_one_kind(problem: Problem) -> list[IntArray]:
    found = [np.where(np.isfinite(problem.recompute), RECOMPUTE, KEEP)]
    if problem.bandwidth > 0:
        found.append(np.full(problem.values, OFFLOAD, np.int64))
        found.append(np.where(np.isfinite(problem.recompute), RECOMPUTE, OFFLOAD))
    return found
