"""Making training fit a device: which saved values stay, leave for the host, or come by recompute.

Each stage is a `pipec.residency` problem: its saved values, how many of its microbatches are in
flight, and what weights, gradients, optimizer and messages leave of its device's memory as the
schedule is simulated. Stages that share a device share that room and the link to the host.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from typing import Self

import numpy as np
from torch import fx

from pipec.autodiff.model import Training
from pipec.autodiff.rewrite import Replay, Replays
from pipec.compiler.facts import plan_facts
from pipec.compiler.residency import StageWork, saved_in_order, stage_work
from pipec.compiler.stage_timing import holder, own_bytes, peak_of
from pipec.compiler.timeline import plan_timeline
from pipec.errors import PassError
from pipec.graph.comm import is_comm
from pipec.graph.ir import nbytes
from pipec.plan.model import Plan
from pipec.residency.choose import Choice, DoesNotFitError, choose
from pipec.residency.problem import RECOMPUTE, FloatArray, IntArray, Problem, Working
from pipec.schedule.action import ActionKind
from pipec.schedule.schedule import Schedule


@dataclass(frozen=True)
class Fates:
    """What becomes of the saved values of one stage.

    Attributes:
        recompute: Values that B computes again.
        slots: The values that wait in host memory: (depth, names) of every slot.
    """

    recompute: frozenset[str]
    slots: tuple[tuple[int, tuple[str, ...]], ...]

    @property
    def changes(self) -> bool:
        """Whether anything leaves or is computed again."""
        return bool(self.recompute or self.slots)


@dataclass(frozen=True)
class Residency(Fates):
    """What an optimiser made of the saved values of one stage.

    Attributes:
        choice: Its answer: added time of the stage alone, and its bound.
    """

    choice: Choice

    @classmethod
    def of(cls, training: Training, choice: Choice) -> Self:
        """A choice by the names of the values."""
        names = saved_in_order(training)
        again = np.flatnonzero(choice.decision == RECOMPUTE).tolist()
        slots = tuple((s.depth, tuple(names[v] for v in s.values)) for s in choice.slots)
        return cls(frozenset(names[v] for v in again), slots, choice)


def fit(
    plan: Plan,
    schedule: Schedule,
    limit: float | None = None,
    *,
    recompute: bool = True,
    host: bool = False,
) -> list[Residency]:
    """Choose for every stage of a plan, so that each device keeps its limit.

    Forward and backward of a stage run on one device; `pipec.compiler.fit_apart` is for others.

    Args:
        plan: Differentiated and timed.
        schedule: What it will run, communication included.
        limit: Bytes per device; what its cluster says if absent.
        recompute: Whether values may be computed again.
        host: Whether values may leave for host memory.

    Raises:
        PassError: A device's limit cannot be met; how far it is from that is told.
    """
    works, turns = stage_work(plan), in_flight(schedule)
    times = plan_facts(plan).times().compute
    found = []
    for s, room in enumerate(_rooms(plan, schedule, works, turns, limit)):
        whole = times[ActionKind.B][s]
        problem = Problem(
            *values_of(works[s], recompute=recompute),
            forward=times[ActionKind.F][s],
            backward=whole,
            cap=max(room.nbytes, 0.0),
            bandwidth=works[s].device.host_bandwidth / room.stages if host else 0.0,
            flight=max(turns[s].most, 1),
            alternates=turns[s].alternates,
            together=together(works[s].training),
            working=WorkingBytes(works[s].training, max(turns[s].most, 1)),
        )
        with refused(s, room.device, room.limit, room.nbytes):
            choice = choose(problem)
        found.append(Residency.of(works[s].training, choice))
    return found


@dataclass(frozen=True)
class Turns:
    """How a stage's forwards and backwards take turns.

    Attributes:
        most: Microbatches between F and the end of the backward at the fullest.
        alternates: Whether it is that full more than once.
    """

    most: int
    alternates: bool


def in_flight(schedule: Schedule) -> list[Turns]:
    """How many microbatches of each stage are in flight on its fullest device."""
    found = [Turns(0, alternates=False)] * schedule.stages
    last = {ActionKind.B, ActionKind.W}
    for device in range(schedule.devices):
        now, reached = [0] * schedule.stages, [list[int]() for _ in range(schedule.stages)]
        for action in schedule.row(device):
            if action.kind is ActionKind.F:
                now[action.stage] += 1
                reached[action.stage].append(now[action.stage])
            elif action.kind in last:
                now[action.stage] -= 1
        for s, counts in enumerate(reached):
            most = max(counts, default=0)
            if most > found[s].most:
                found[s] = Turns(most, counts.count(most) > 1)
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
    turns: list[Turns],
    limit: float | None,
) -> list[_Room]:
    """Room per stage: stages on one device share it by what they would save."""
    fixed, place = _fixed_bytes(plan, schedule), schedule.placement.forward
    wanted = [t.most * w.training.saved_bytes for t, w in zip(turns, works, strict=True)]
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


def _fixed_bytes(plan: Plan, schedule: Schedule) -> list[float]:
    """Peak of each device without saved values: weights, gradients, optimizer, messages."""
    timeline = plan_timeline(plan, schedule)
    saved = timeline.memory.saved
    bare = [0.0] * len(saved)
    memory = replace(timeline.memory, saved=bare, saved_for_w=None)
    return list(replace(timeline, memory=memory).peak_bytes)


def values_of(work: StageWork, *, recompute: bool) -> tuple[FloatArray, FloatArray]:
    """Bytes of every saved value, in the order of `saved_in_order`, and seconds to redo it."""
    names = saved_in_order(work.training)
    sizes = {v.name: float(v.nbytes) for v in work.training.saved}
    again = [work.recompute(n) if recompute else inf for n in names]
    return np.array([sizes[n] for n in names]), np.array(again)


@contextmanager
def refused(stage: int, device: int, limit: float, left: float) -> Iterator[None]:
    """Say of what does not fit which stage and device it is, and how far it is from fitting.

    Args:
        stage: The stage.
        device: Its device.
        limit: All bytes of the device.
        left: What weights and so on leave of them to saved values.

    Raises:
        PassError: Instead of a `DoesNotFitError`.
    """
    try:
        yield
    except DoesNotFitError as error:
        raise PassError(
            f"stage {stage} does not fit device {device}, with all that may move or be recomputed",
            where=f"{limit:,.0f} bytes of memory",
            got=f"{error.least:,.0f} bytes of saved values at least",
            want=f"{max(left, 0):,.0f} bytes, which is what weights and messages leave: "
            f"{error.least - left:,.0f} bytes short",
            hint=error.hint,
        ) from error


def together(training: Training) -> list[dict[int, float]]:
    """Values that are alive while each saved value is computed again: itself and what it reads."""
    names = saved_in_order(training)
    at, nodes = {n: v for v, n in enumerate(names)}, training.F.nodes
    found = []
    for v, name in enumerate(names):
        alive = {v: float(own_bytes(nodes[name]))}
        for read in {holder(n) for n in nodes[name].all_input_nodes} - {holder(nodes[name])}:
            if read.name in at:
                alive[at[read.name]] = float(own_bytes(read))
            elif read.op == "call_function":
                alive[v] += own_bytes(read)
        found.append(alive)
    return found


@dataclass(frozen=True)
class WorkingBytes:
    """Bytes that recomputing costs: values alive in B, and inputs that are saved in their place."""

    training: Training
    flight: int
    known: dict[frozenset[str], Working] = field(default_factory=dict)

    def __call__(self, decision: IntArray) -> Working:
        """See `Problem.working`; decisions that were asked for are remembered."""
        again = frozenset(self._names[v] for v in np.flatnonzero(decision == RECOMPUTE).tolist())
        if again not in self.known:
            self.known[again] = self._working(again)
        return self.known[again]

    def _working(self, again: frozenset[str]) -> Working:
        """As of `recomputed`, from the order of its nodes alone."""
        replays = Replays(self.training, again)
        new, old = self._bytes(replays.read), self._bytes({*self._names} - again)
        each = (replays.B, replays.I, replays.W)
        alive, nodes = max(map(self._peak, each), key=lambda p: p[0])
        values = tuple(v for v, name in enumerate(self._names) if name in again & nodes)
        return Working(alive + self.flight * (new - old), alive, values)

    def _peak(self, replay: Replay) -> tuple[int, frozenset[str]]:
        results = [o.node for o in replay.outputs]
        return peak_of(replay.nodes, results, replay.computed & self._calls)

    def _bytes(self, names: Collection[str]) -> float:
        """Bytes that these values of F take if they are saved."""
        return float(sum(nbytes(n) for name, n in self._nodes.items() if name in names))

    @cached_property
    def _names(self) -> list[str]:
        return saved_in_order(self.training)

    @cached_property
    def _nodes(self) -> dict[str, fx.Node]:
        return self.training.F.nodes

    @cached_property
    def _calls(self) -> set[str]:
        return {n.name for n in self.training.F.calls if not is_comm(n)}
