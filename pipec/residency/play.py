"""Timing whole decisions: one stage alone in steady state, its copies on two lanes beside compute.

The rules are those of `pipec.schedule.dependencies` for OFFLOAD and FETCH; a test holds both
against each other.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from pipec.errors import PartitionError
from pipec.residency.problem import KEEP, OFFLOAD, IntArray, Problem

PERIODS = 8
"""Periods over which the steady state is measured, besides two per microbatch in flight."""


@dataclass(frozen=True)
class Slot:
    """Values that leave and come back together.

    Attributes:
        depth: Sets that may be on the device on either side of the copies, and how many compute
            actions before its backward a set begins to come back; 0: one set in all.
        values: Which values.
    """

    depth: int
    values: tuple[int, ...]


@dataclass(frozen=True)
class Played:
    """How a decision went.

    Attributes:
        seconds: Of one forward and one backward, stalls and recomputation included; infinite if
            the cap is not kept.
        peak_bytes: Most bytes of saved and recomputed values on the device.
    """

    seconds: float
    peak_bytes: float


def play(
    problem: Problem, decision: IntArray, slots: Sequence[Slot] = (), *, exactly: bool = True
) -> Played:
    """Run the stage until it is steady.

    Args:
        problem: What is saved.
        decision: KEEP, OFFLOAD or RECOMPUTE per value.
        slots: The values that leave; all in one slot of depth 1 if absent.
        exactly: Whether to ask for the working bytes; else they are what they are at least.

    Raises:
        PartitionError: The slots do not hold just the values that leave.
    """
    leaving = np.flatnonzero(decision == OFFLOAD).tolist()
    used = [s for s in slots if s.values] or ([Slot(1, tuple(leaving))] if leaving else [])
    if sorted(v for s in used for v in s.values) != leaving:
        raise PartitionError("the slots do not hold the values that leave", got=used, want=leaving)
    working = problem.working_bytes if exactly else problem.least_working
    seconds, peak = _Run(problem, decision, used, working(decision)).result()
    keeps = peak <= problem.cap * (1 + 1e-12)
    return Played(seconds if keeps else np.inf, peak)


@dataclass
class _Run:
    """One run; times by microbatch."""

    problem: Problem
    decision: IntArray
    slots: Sequence[Slot]
    working: float
    end: list[float] = field(default_factory=list)
    backward_end: dict[int, float] = field(default_factory=dict)
    out_end: dict[tuple[int, int], float] = field(default_factory=dict)
    in_end: dict[tuple[int, int], float] = field(default_factory=dict)
    made: int = -1
    lane_out: float = 0.0
    lane_in: float = 0.0
    change: list[tuple[float, float]] = field(default_factory=list)

    def result(self) -> tuple[float, float]:
        """(seconds of one period, peak)."""
        p = self.problem
        order = list(_order(p))
        self.size = [float(p.nbytes[list(s.values)].sum()) for s in self.slots]
        self.took = [b / p.bandwidth if b else 0.0 for b in self.size]
        self.kept = p.bytes_of(self.decision, KEEP)
        self.again = p.again_seconds(self.decision)
        fetches = self._fetches(order)
        for at, (forward, m) in enumerate(order):
            for slot, message in fetches.get(at, ()):
                self._fetch(slot, message, self.end[-1] if self.end else 0.0)
            (self._forward if forward else self._backward)(m)
        return self._period(order), self._peak()

    def _fetches(self, order: list[tuple[bool, int]]) -> dict[int, list[tuple[int, int]]]:
        """Position in the row to the (slot, microbatch) that are fetched before it."""
        place = {entry: at for at, entry in enumerate(order)}
        found: dict[int, list[tuple[int, int]]] = {}
        for slot, s in enumerate(self.slots):
            for forward, m in order:
                if forward or (True, m) not in place:
                    continue
                last = place[False, m]
                first = max(last - s.depth, place[True, m] + 1)
                found.setdefault(min(max(first, self._after(place, s, m)), last), []).append(
                    (slot, m)
                )
        return found

    @staticmethod
    def _after(place: dict[tuple[bool, int], int], slot: Slot, m: int) -> int:
        """Where a set may come back at the earliest: see `pipec.schedule.offload`."""
        if slot.depth > 1:
            return place[False, max(m - slot.depth + 1, 0)]
        return place.get((False, m - 1), -1) + 1

    def _forward(self, m: int) -> None:
        waits = [self.out_end.get((j, m - max(s.depth, 1)), 0.0) for j, s in enumerate(self.slots)]
        begin = max(self.end[-1] if self.end else 0.0, *waits, 0.0)
        end = begin + self.problem.forward
        self.end.append(end)
        self.made = m
        self.change += [(begin, self.kept + sum(self.size))]
        for j, seconds in enumerate(self.took):
            self.lane_out = max(self.lane_out, end) + seconds
            self.out_end[j, m] = self.lane_out
            self.change.append((self.lane_out, -self.size[j]))

    def _fetch(self, slot: int, m: int, issued: float) -> None:
        depth = self.slots[slot].depth
        begin = max(
            issued,
            self.lane_in,
            self.out_end[slot, m],
            self.backward_end.get(m - max(depth, 1), 0.0),
            self.out_end[slot, self.made] if depth == 0 else 0.0,
        )
        self.lane_in = begin + self.took[slot]
        self.in_end[slot, m] = self.lane_in
        self.change.append((begin, self.size[slot]))

    def _backward(self, m: int) -> None:
        waits = [self.in_end[j, m] for j in range(len(self.slots))]
        begin = max(self.end[-1], *waits, 0.0)
        end = begin + self.problem.backward + self.again
        self.end.append(end)
        self.backward_end[m] = end
        self.change += [(begin, self.working), (end, -self.working)]
        self.change.append((end, -self.kept - sum(self.size)))

    def _period(self, order: list[tuple[bool, int]]) -> float:
        k = self.problem.flight
        if not self.problem.alternates:
            return max(self.end[-1], self.lane_out) / k
        last = max(m for _, m in order) - k + 1
        first = last - PERIODS - k
        return (self.backward_end[last] - self.backward_end[first]) / (last - first)

    def _peak(self) -> float:
        changes = sorted(self.change, key=lambda c: (c[0], c[1] > 0))
        return float(np.cumsum([c[1] for c in changes]).max(initial=0.0))


def _order(problem: Problem) -> Iterator[tuple[bool, int]]:
    """(is forward, microbatch) in row order: enough of them to become steady, and to end."""
    k = problem.flight
    if not problem.alternates:
        yield from ((True, m) for m in range(k))
        yield from ((False, m) for m in range(k))
        return
    count = 3 * k + 2 * PERIODS
    yield from ((True, m) for m in range(k - 1))
    for m in range(count):
        if m + k - 1 < count:
            yield True, m + k - 1
        yield False, m
