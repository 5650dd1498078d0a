"""Timing whole decisions: one stage alone, its copies beside compute, run by the simulator.

```text
F4 OFFLOAD4 | FETCH0 B0 F5 ...      slots as channels: when they leave and come, what is held, and
                                    how long it takes is what `pipec.simulate` says of any schedule
```

Where forward and backward have a device each, all O bytes of a microbatch go through the host, one
set behind the other, and the simulator's result is a closed form:

```text
device of F     F0 ──────► F1 ──────► F2            T >= F + a / rate    T >= O / rate
  to the host      ███░░░    ███░░░                 O + (O - a) <= cap of F
device of B               B0 ──────► B1             T >= B + again + a / rate
  from the host      ░░░███    ░░░███               O + (O - a) + working <= cap of B
```

What does not fit beside the values of the next forward must have left before it begins: that part,
a, is in slots of depth 1 (black) and adds to the time between two microbatches, T; the rest runs
beside the forward, in slots of depth 2. So what does not fit beside a backward comes behind it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from pipec.errors import PartitionError
from pipec.residency.problem import KEEP, OFFLOAD, IntArray, Problem
from pipec.schedule.action import ActionKind
from pipec.schedule.build import build
from pipec.schedule.channels import Channel, ChannelKind
from pipec.schedule.generators.flush import make_1f1b
from pipec.schedule.offload import insert_offload
from pipec.simulate.engine import Prepared
from pipec.simulate.memory import Memory, peaks
from pipec.simulate.simulate import simulate
from pipec.simulate.timeline import Timeline
from pipec.simulate.times import Times

PERIODS = 4
"""Periods over which the steady state is measured, besides two per microbatch in flight."""
CLOSE = 1e-3
"""Seconds, as a share of the step, for which it is not worth to search on, or to copy more."""


@dataclass(frozen=True)
class Slot:
    """Values that leave and come back together.

    Attributes:
        depth: Sets that may be on the device on either side of the copies, and how many compute
            actions before its backward a set begins to come back; 0: one set in all.
        values: Indices of the values.
    """

    depth: int
    values: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Played:
    """A decision and how it went.

    Attributes:
        seconds: One forward and one backward, stalls and recomputation included; infinite if
            the cap is not kept.
        peak_bytes: Most bytes of saved and recomputed values on the device.
        decision: KEEP, OFFLOAD or RECOMPUTE per value.
        slots: The values that leave, by slot.
        close: Seconds that make no difference.
    """

    seconds: float
    peak_bytes: float
    decision: IntArray
    slots: tuple[Slot, ...]
    close: float

    @property
    def order(self) -> tuple[float, float, float, float]:
        """Fastest first, fewest copies among the nearly as fast, then least memory."""
        if self.seconds == np.inf:
            return self.seconds, 0, self.seconds, self.peak_bytes
        seconds = round(self.seconds / self.close, 3)  # not what rounding left
        return self.seconds // self.close, len(self.slots), seconds, self.peak_bytes


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
    working = (problem.working_bytes if exactly else problem.least_working)(decision)
    close = CLOSE * max(problem.step_seconds, 1e-30)
    if problem.behind is not None:
        return Played(*_play_apart(problem, decision, used, working), decision, tuple(used), close)
    sizes = tuple((s.depth, float(problem.nbytes[list(s.values)].sum())) for s in used)
    backward = problem.backward + problem.again_seconds(decision)
    row = (problem.flight, problem.alternates, problem.forward, backward)
    kept = problem.bytes_of(decision, KEEP)
    seconds, peak = _play_alone(row, problem.bandwidth, kept, working, sizes)
    seconds = seconds if peak <= problem.full else np.inf
    return Played(seconds, peak, decision, tuple(slots), close)


def _play_apart(
    p: Problem, decision: IntArray, slots: Sequence[Slot], working: float
) -> tuple[float, float]:
    """As a `Played` has them: T, and the bytes of the fuller device, as if its cap were F's."""
    moved = p.bytes_of(decision, OFFLOAD)
    part = sum(float(p.nbytes[list(s.values)].sum()) for s in slots if s.depth == 1)
    peak = 2 * moved - part + p.cap - p.room(working)
    seconds = least(p, decision)[0]
    if part:
        slower = max(p.forward, p.backward + p.again_seconds(decision))
        seconds = max(seconds, slower + part / p.bandwidth)
    return seconds if peak <= p.full else np.inf, peak


def play_again(problem: Problem, before: Played) -> Played:
    """Play a decision with the working bytes that it has, not those that it has at least."""
    return before if problem.working is None else play(problem, before.decision, before.slots)


def least(problem: Problem, decision: IntArray, slots: Sequence[Slot] = ()) -> tuple[float, float]:
    """A bound: fewest seconds and bytes of a decision.

    Compute is never idle and copies neither. When a backward begins all microbatches in flight
    hold what is kept, and its own has come back. From the last forward before it:

    ```text
    end of F     besides what F has made, what B reads from slots of depth 1 (2 too, by turns)
    begin of B   besides what B reads, what the one behind it reads from slots of depth 2
    between      what is above the cap leaves; slots of depth 0 leave, then come, in their order
    ```

    Forwards that come before all backwards wait for slots of depth 0 each, and so do these.

    Args:
        problem: What is saved; a decision that is faster than this does not keep its cap.
        decision: KEEP, OFFLOAD or RECOMPUTE per value.
        slots: The values that leave; the bound holds for any if absent.
    """
    moved, anew = problem.bytes_of(decision, OFFLOAD), problem.again_seconds(decision)
    copies = moved / problem.bandwidth if moved else 0.0
    if problem.behind is not None:
        return max(problem.forward, problem.backward + anew, copies), moved
    compute = problem.step_seconds + anew
    held = problem.flight * problem.bytes_of(decision, KEEP) + moved
    working = problem.least_working(decision)
    if not moved:
        return compute, held + working
    size = [[float(problem.nbytes[list(s.values)].sum()) for s in slots if s.depth == d]
            for d in range(3)]  # fmt: skip
    one, one_ahead, two_ahead = map(sum, size)
    turns = problem.flight if problem.alternates else 1
    through = (2 * problem.flight / turns - 1) * one + max(size[0], default=0.0)
    above = held + working + moved - problem.cap * (1 + 1e-9)
    stall = max(above, through, 0.0) * turns / (problem.flight * problem.bandwidth)
    at_end_of_f = one_ahead + two_ahead * problem.alternates
    return max(compute + stall, copies), held + max(at_end_of_f, working + two_ahead)


_Row = tuple[int, bool, float, float]
"""Microbatches in flight, whether F and B take turns, and their seconds."""


@lru_cache(maxsize=1 << 14)
def _play_alone(
    row: _Row, bandwidth: float, kept: float, working: float, sizes: tuple[tuple[int, float], ...]
) -> tuple[float, float]:
    """Seconds of a period and most bytes held: of decisions that are alike in these, only once."""
    flight, alternates, forward, backward = row
    if not sizes:  # one action behind the other
        return forward + backward, flight * kept + working
    like = _prepare(flight, alternates, tuple(depth for depth, _ in sizes))
    nbytes = iter([int(size) for _, size in sizes])
    channels = [
        replace(c, nbytes=next(nbytes)) if c.kind is ChannelKind.H else c
        for c in like.schedule.channels
    ]
    host = {n: c.nbytes / bandwidth for n, c in enumerate(channels) if c.nbytes}
    times = Times(Times.of_stages([forward], [backward]).compute, host=host)
    memory = Memory(saved=[kept], workspace={"B": [working]})
    timeline = simulate(like.resize(channels), times, memory)
    return _period(timeline, flight, alternates=alternates), peaks(timeline.held.all(memory), 1)[0]


@lru_cache(maxsize=512)
def _prepare(flight: int, alternates: bool, depths: tuple[int, ...]) -> Prepared:
    """The stage's row with slots of some depths; enough microbatches to become steady, and end."""
    count = 3 * flight + 2 * PERIODS if alternates else flight
    row = make_1f1b(0, np.arange(count), flight - alternates)
    slots = [Channel(ChannelKind.H, 0, 0, f"host{k}", depth=d) for k, d in enumerate(depths)]
    schedule = build("alone", [row], count)
    return Prepared.of(insert_offload(schedule, slots) if slots else schedule)


def _period(timeline: Timeline, flight: int, *, alternates: bool) -> float:
    """Seconds from one backward to the next once they are steady; of a flush, a microbatch's."""
    if not alternates:
        return timeline.seconds / flight
    backward = timeline.end[timeline.schedule.kind == ActionKind.B]
    last = len(backward) - flight
    first = last - PERIODS - flight
    return float(backward[last] - backward[first]) / (last - first)
