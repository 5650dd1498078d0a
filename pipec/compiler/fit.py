"""Making training fit a device: which saved values stay, leave for the host, or come by recompute.

One microbatch of a stage is a `pipec.residency` problem; what a pipeline adds is that several are
in flight, k of them at the stage's fullest moment:

```text
peak = weights, gradients, optimizer, messages     of the device, as the schedule is simulated
     + k * kept + min(k, 2) * offloaded            one set leaves, one comes back
     + recomputed values that are alive at a time
```

The cap of one microbatch is what is left divided by k; where the peak of what is chosen is still
too high, the cap is lowered by the excess and the choice made again.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from pipec.autodiff.rewrite import recomputed
from pipec.compiler.residency import (
    StageWork,
    saved_in_order,
    stage_problem,
    stage_work,
    working_bytes,
)
from pipec.compiler.timeline import plan_timeline
from pipec.errors import PartitionError, PassError
from pipec.plan.model import Plan
from pipec.residency.choose import Choice, choose
from pipec.residency.linear import relax
from pipec.residency.play import play
from pipec.residency.problem import KEEP, OFFLOAD, RECOMPUTE, IntArray, Problem
from pipec.schedule.action import ActionKind
from pipec.schedule.schedule import Schedule

TRIES = 10
"""Caps that are tried before everything is moved or recomputed."""


@dataclass(frozen=True)
class Residency:
    """What becomes of the saved values of one stage.

    Attributes:
        recompute: Values that B computes again.
        offload: Values that wait in host memory.
        choice: The optimiser's answer: added time, and its bound at an equal share of the memory.
        peak_bytes: Most bytes of saved and recomputed values of this stage on its device.
    """

    recompute: frozenset[str]
    offload: frozenset[str]
    choice: Choice
    peak_bytes: float


def fit(
    plan: Plan,
    schedule: Schedule,
    limit: float | None = None,
    *,
    recompute: bool = True,
    host: bool = False,
) -> list[Residency]:
    """Choose for every stage of a plan, so that each device keeps its limit.

    Args:
        plan: Differentiated and timed.
        schedule: What it will run, communication included.
        limit: Bytes per device; what its cluster says if absent.
        recompute: Whether values may be computed again.
        host: Whether values may leave for host memory.

    Raises:
        PassError: A device's limit cannot be met; how far it is from that is told.
    """
    if schedule.placement.separate:
        raise PassError(
            "saved values leave a device whose forward and backward lie on two devices anyway",
            got=f"schedule {schedule.name}",
            want="a schedule that runs both on one device, such as 1f1b",
        )
    works, flights = stage_work(plan), in_flight(schedule)
    found = []
    for s, room in enumerate(_rooms(plan, schedule, works, flights, limit)):
        rate = works[s].device.host_bandwidth / room.stages
        stage = _Stage(works[s], flights[s], rate if host else 0.0, recompute)
        fitted = stage.fitted(room.nbytes)
        if isinstance(fitted, float):
            raise _too_small(s, room, fitted)
        found.append(fitted)
    return found


@dataclass(frozen=True)
class _Room:
    """What a stage may fill with saved values on its fullest device.

    Attributes:
        device: The device.
        limit: All of its bytes.
        nbytes: The stage's share of what weights and so on leave.
        stages: How many stages share the device.
    """

    device: int
    limit: float
    nbytes: float
    stages: int


def _rooms(
    plan: Plan,
    schedule: Schedule,
    works: list[StageWork],
    flights: list[int],
    limit: float | None,
) -> list[_Room]:
    """Room per stage: stages on one device share it by what they would save."""
    fixed, place = _fixed_bytes(plan, schedule), schedule.placement.forward
    wanted = [k * w.training.saved_bytes for k, w in zip(flights, works, strict=True)]
    rooms: list[list[_Room]] = [[] for _ in works]
    for device in range(schedule.devices):
        mine = [s for s, d in enumerate(place) if device in d]
        bound = plan.cluster.devices[device].memory_bytes if limit is None else limit
        total = sum(wanted[s] for s in mine)
        for s in mine:
            share = wanted[s] / total if total else 1.0
            left = share * (bound - fixed[device])
            rooms[s].append(_Room(device, bound, left, len(mine)))
    return [min(r, key=lambda room: room.nbytes) for r in rooms]


def in_flight(schedule: Schedule) -> list[int]:
    """Most microbatches of each stage that are between F and the end of the backward at a time."""
    most = [0] * schedule.stages
    for device in range(schedule.devices):
        now = [0] * schedule.stages
        last = {ActionKind.B, ActionKind.W}
        for action in schedule.row(device):
            if action.kind is ActionKind.F:
                now[action.stage] += 1
                most[action.stage] = max(most[action.stage], now[action.stage])
            elif action.kind in last:
                now[action.stage] -= 1
    return most


def _fixed_bytes(plan: Plan, schedule: Schedule) -> list[float]:
    """Peak of each device without saved values: weights, gradients, optimizer, messages."""
    timeline = plan_timeline(plan, schedule)
    saved = timeline.memory.saved
    bare = [0.0] * len(saved)
    memory = replace(timeline.memory, saved=bare, saved_for_w=None, workspace={})
    return list(replace(timeline, memory=memory).peak_bytes)


def _too_small(stage: int, room: _Room, least: float) -> PassError:
    return PassError(
        f"stage {stage} does not fit device {room.device}, whatever is moved or recomputed",
        where=f"{room.limit:,.0f} bytes of memory",
        got=f"{least:,.0f} bytes of saved values at least",
        want=f"{max(room.nbytes, 0):,.0f} bytes, which is what weights and messages leave: "
        f"{least - room.nbytes:,.0f} bytes short",
        hint="smaller or fewer microbatches in flight, more stages, or a larger limit",
    )


@dataclass(frozen=True)
class _Stage:
    """One stage and how many of its microbatches are in flight."""

    work: StageWork
    flight: int
    bandwidth: float
    recompute: bool

    def fitted(self, left: float) -> Residency | float:
        """The fastest residency found that keeps ``left`` bytes, or the least bytes if none."""
        names, least = saved_in_order(self.work.training), np.inf
        problem, bound = self._problem(left)
        high = cap = problem.cap
        low = 0.0
        for decision in self._extremes(problem):
            for _ in range(TRIES if decision is None else 1):
                choice = _chosen(problem, cap, bound, decision)
                if choice is None:  # too low; what fits lies between this cap and the last
                    low, cap = cap, (cap + high) / 2
                    continue
                again = frozenset(_picked(names, choice.decision, RECOMPUTE))
                away = frozenset(_picked(names, choice.decision, OFFLOAD))
                peak = self._peak(problem, choice.decision, again)
                least = min(least, peak)
                if peak <= left * (1 + 1e-12):
                    return Residency(again, away, choice, peak)
                high, wanted = cap, cap - (peak - left) / self.flight
                cap = max(min(0.99 * cap, wanted), (low + cap) / 2)
        return float(least)

    def _problem(self, left: float) -> tuple[Problem, float]:
        """One microbatch with its share of ``left``, and the bound as a share of the step."""
        share = max(left, 0.0) / max(self.flight, 1)
        rate = self.bandwidth if self.flight > 2 else 0.0  # both sets are on the device: no gain
        problem = stage_problem(self.work, share, bandwidth=rate, recompute=self.recompute)
        return problem, relax(problem).added_seconds / max(problem.step_seconds, 1e-30)

    def _extremes(self, problem: Problem) -> Iterator[IntArray | None]:
        """None: what the optimiser chooses; then everything in one way."""
        possible = np.isfinite(problem.recompute)
        yield None
        if problem.bandwidth > 0:
            yield np.full(problem.values, OFFLOAD, np.int64)
            yield np.where(possible, RECOMPUTE, OFFLOAD)
        yield np.where(possible, RECOMPUTE, KEEP)

    def _peak(self, problem: Problem, decision: IntArray, again: frozenset[str]) -> float:
        away = float(problem.nbytes[decision == OFFLOAD].sum())
        replayed = recomputed(self.work.training, again)
        kept = replayed.saved_bytes - away
        return self.flight * kept + min(self.flight, 2) * away + working_bytes(replayed)


def _chosen(problem: Problem, cap: float, bound: float, decision: IntArray | None) -> Choice | None:
    """The optimiser's choice at a cap, if there is one; or a given decision, timed without cap."""
    if decision is None:
        try:
            return replace(choose(replace(problem, cap=cap)), bound=bound)
        except PartitionError:
            return None
    played = play(replace(problem, cap=float(2 * problem.nbytes.sum()) + 1), decision)
    added = played.seconds / max(problem.step_seconds, 1e-30) - 1
    return Choice(decision, played.seconds, added, bound, played.peak_bytes)


def _picked(names: list[str], decision: IntArray, kind: int) -> list[str]:
    return [n for n, d in zip(names, decision.tolist(), strict=True) if d == kind]
