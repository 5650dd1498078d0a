"""A decision that was played, and which of two is better."""

from dataclasses import dataclass

import numpy as np

from pipec.residency.play import Played, Slot, play
from pipec.residency.problem import KEEP, RECOMPUTE, IntArray, Problem

CLOSE = 1e-3
"""Seconds, as a share of the step, for which it is not worth to search on, or to copy more."""


@dataclass(frozen=True, eq=False)
class Tried:
    """A decision and how it went.

    Attributes:
        played: Its seconds and bytes.
        decision: KEEP, OFFLOAD or RECOMPUTE per value.
        slots: The values that leave, by slot.
        close: Seconds that make no difference.
    """

    played: Played
    decision: IntArray
    slots: tuple[Slot, ...]
    close: float

    @property
    def order(self) -> tuple[float, float, float, float]:
        """Fastest first, fewest copies among the nearly as fast, then least memory."""
        seconds, peak = self.played.seconds, self.played.peak_bytes
        if seconds == np.inf:
            return seconds, 0, seconds, peak
        return seconds // self.close, len(self.slots), seconds, peak


def tried(problem: Problem, decision: IntArray, slots: tuple[Slot, ...] = ()) -> Tried:
    """Play a decision with the working bytes that it has at least."""
    return _tried(problem, decision, slots, exactly=False)


def exactly(problem: Problem, before: Tried) -> Tried:
    """Play it again with the working bytes that it has."""
    return _tried(problem, before.decision, before.slots, exactly=True)


def _tried(
    problem: Problem, decision: IntArray, slots: tuple[Slot, ...], *, exactly: bool
) -> Tried:
    close = CLOSE * max(problem.step_seconds, 1e-30)
    return Tried(play(problem, decision, slots, exactly=exactly), decision, slots, close)


def allowed(problem: Problem, value: int, kind: int) -> bool:
    """Whether a value can be kept, offloaded or recomputed."""
    if kind == RECOMPUTE:
        return bool(np.isfinite(problem.recompute[value]))
    return kind == KEEP or problem.moves
