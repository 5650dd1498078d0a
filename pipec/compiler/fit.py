"""Making training fit a device: which saved values stay, leave for the host, or come by recompute.

Each stage is a `pipec.residency` problem: its saved values, how many of its microbatches are in
flight, and what may be held of them. The finished plan is simulated; where a device is fuller than
its limit its stages get less room, until it fits or they cannot:

```text
room of a device ──► problems of its stages ──► choices ──► plan ──► simulated peak
       ▲                                                                  │
       └───────────────── less by what is above the limit ◄───────────────┘
```
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from pipec.autodiff.model import Training
from pipec.compiler.complete import complete
from pipec.compiler.fates import FatePredictor, Fates
from pipec.compiler.residency import list_saved
from pipec.compiler.timeline import plan_timeline, timeline_of
from pipec.compiler.working import WorkingBytes, together, values_of
from pipec.errors import PassError, PipecError
from pipec.graph.eager import eager_parts
from pipec.options import format_options
from pipec.plan.model import STATE_WAITS, Plan
from pipec.residency.choose import Choice, DoesNotFitError, choose
from pipec.residency.problem import RECOMPUTE, Problem
from pipec.schedule.action import ActionKind
from pipec.schedule.channels import ChannelKind
from pipec.schedule.in_flight import Turns, in_flight
from pipec.schedule.registry import generate, placing, spell, with_options
from pipec.schedule.schedule import Schedule
from pipec.simulate.timeline import Timeline

_ROUNDS = 10
"""Most times that a choice is simulated and tightened."""
_MORE = 1 + 1e-9
"""What a limit that a choice meets exactly is widened by."""
_WIDER = 1.01
"""What the room of a stage at least grows by where nothing fits it."""
_SAVED = (ChannelKind.S, ChannelKind.H)
_OPTIMIZER = "the optimizer's state in host memory (insert-offload{optimizer=true})"


@dataclass(frozen=True)
class Residency(Fates):
    """What an optimiser made of the saved values of one stage.

    Attributes:
        choice: Its result: added time of the stage alone, and its bound.
    """

    choice: Choice

    @classmethod
    def name_values(cls, training: Training, choice: Choice) -> Self:
        """A choice by the names of the values."""
        names = list_saved(training)
        again = np.flatnonzero(choice.decision == RECOMPUTE).tolist()
        slots = tuple((s.depth, tuple(names[v] for v in s.values)) for s in choice.slots)
        return cls(frozenset(names[v] for v in again), slots, choice)


@dataclass(frozen=True, eq=False)
class PredictedChoice:
    """Choices for all stages, and what the plan takes with them.

    Attributes:
        stages: What becomes of the values of each stage.
        timeline: With it.
    """

    stages: Sequence[Fates]
    timeline: Timeline


@dataclass(frozen=True, eq=False)
class Fitted(PredictedChoice):
    """Choices for all stages, and what the plan is with them.

    Attributes:
        plan: With them in its stages and slots.
        schedule: With the copies.
    """

    plan: Plan
    schedule: Schedule


Floats = npt.NDArray[np.float64]


class ValueOptions(NamedTuple):
    """What may become of a saved value.

    Attributes:
        name: The node of the value in F.
        nbytes: Bytes of the value.
        seconds: To compute it again; infinite where that is not allowed.
        leaves: Whether it may wait in host memory.
    """

    name: str
    nbytes: float
    seconds: float
    leaves: bool


Apply = Callable[[Sequence[Fates]], tuple[Plan, Schedule]]


@dataclass(frozen=True, eq=False)
class Fit:
    """A plan that is to keep a limit.

    Attributes:
        plan: Differentiated and timed.
        schedule: What it will run, communication included.
        limit: Bytes per device; what its cluster says if None.
        apply: Makes plan and schedule of a choice.
        recompute: Whether values may be computed again.
        host: Whether values may leave for host memory; where forward and backward run on two
            devices, whether a part may leave, and come, while nothing is computed.
        link: The share of a link's rate that stages count on for copies.
        tried: Choices that were simulated.
        enough: Seconds of stages, each alone, with choices that fit.
        leaving: By the depth of slots, choices of which values leave until all fits.
    """

    plan: Plan
    schedule: Schedule
    limit: float | None
    apply: Apply
    recompute: bool
    host: bool
    link: float = 1.0
    tried: list[Sequence[Fates]] = field(default_factory=list, init=False)
    enough: dict[int, float] = field(default_factory=dict)
    leaving: dict[int, list[Fates] | None] = field(default_factory=dict)
    _known: dict[tuple[int, float], Residency] = field(default_factory=dict, init=False)

    def solve(self) -> PredictedChoice | None:
        """Choices whose plan, simulated, keeps every limit; None where it is not found so.

        Raises:
            PassError: Forward and backward run on two devices, and one set does not fit.
        """
        room, floors, turn = self._first_room(), dict[int, float](), 0
        apart = self.schedule.placement.separate
        while True:
            chosen = [self._choice(s, room, floors) for s in range(len(self.plan.stages))]
            self.tried.append(chosen)
            timeline = self.simulate(chosen)
            over = self.excess(timeline)
            if over.max() <= 0:
                self.enough.update((s, r.choice.seconds) for s, r in enumerate(chosen))
                return PredictedChoice(chosen, timeline)
            worst, turn = int(over.argmax()), turn + 1
            if turn >= _ROUNDS or all(s in floors for s in self._stages_of(worst)):
                return None
            eager = 1 + turn / 4  # little is left when this no longer helps
            held = room if apart else self._sum([r.choice.peak_bytes for r in chosen])
            room = np.where(over > 0, np.minimum(room, held) - eager * over, room)

    def with_freedom(self, recompute: bool, host: bool, link: float = 1.0) -> Self:
        """The same with other freedom, and what was found of the plan."""
        other = replace(self, recompute=recompute, host=host, link=link)
        known = {"foresight": self.foresight, "plain": self.plain, "_saved": self._saved}
        other.__dict__.update(known)
        return other

    def make(self, chosen: Sequence[Fates]) -> Fitted:
        """The plan with a choice, and what it takes."""
        plan, order = self.apply(chosen)
        return Fitted(chosen, plan_timeline(plan, order), plan, order)

    def simulate(self, chosen: Sequence[Fates]) -> Timeline:
        """What the plan takes with a choice."""
        if self.schedule.placement.separate:
            return self.make(chosen).timeline
        return self.foresight.timeline(chosen)

    @cached_property
    def foresight(self) -> FatePredictor:
        """What predicts it without making the plan."""
        return FatePredictor(self.plan, self.schedule)

    def list_able(self, stage: int) -> list[ValueOptions]:
        """The saved values of a stage; they leave if something else runs before they are read."""
        problem, names = self._problems[stage], list_saved(self.foresight.works[stage].training)
        pairs = zip(names, problem.nbytes.tolist(), problem.recompute.tolist(), strict=True)
        shares = any(len(self._stages_of(d)) > 1 for d in self._homes[stage])
        leaves = problem.bandwidth > 0 and (shares or problem.flight > 1)
        return [ValueOptions(*pair, leaves) for pair in pairs]

    @property
    def needed(self) -> bool:
        """Whether the plan as it is, simulated, is above a limit."""
        return bool(self.excess(self.plain).max() > 0)

    def excess(self, timeline: Timeline) -> Floats:
        """Bytes above the limit, of each device."""
        return np.asarray(np.array(timeline.peak_bytes) - self.limits, np.float64)

    @cached_property
    def plain(self) -> Timeline:
        """Of the plan as it is."""
        return timeline_of(self.foresight.facts, self.schedule)

    @cached_property
    def static(self) -> Timeline:
        """Of the plan with nothing sent, or saved but what W surely reads: the least of any."""
        facts, split = self.foresight.facts, ActionKind.W in self.schedule.kind
        stages = tuple(
            replace(
                t,
                saved=0.0,
                saved_for_w=self.least_for_w(s) if split else 0.0,
                cost=replace(t.cost, workspace={}),
            )
            for s, t in enumerate(facts.stages)
        )
        light = tuple(replace(c, nbytes=0) for c in self.schedule.channels)
        return timeline_of(replace(facts, stages=stages), self.schedule.replace(channels=light))

    def least_for_w(self, stage: int) -> float:
        """Bytes of what W reads whether nothing or all that may be is computed again."""
        able = frozenset(v.name for v in self.list_able(stage) if v.seconds < inf)
        some, every = (self.foresight.rewrites[stage].of(k).for_w for k in (frozenset(), able))
        return float(sum(min(size, every.get(name, 0)) for name, size in some.items()))

    @cached_property
    def limits(self) -> Floats:
        """Bytes of each device."""
        devices = self.plan.cluster.devices[: self.schedule.devices]
        limits = [d.memory_bytes if self.limit is None else self.limit for d in devices]
        return np.array(limits, dtype=np.float64)

    @cached_property
    def _turns(self) -> list[Turns]:
        return in_flight(self.schedule)

    @cached_property
    def _wanted(self) -> list[float]:
        """Bytes that every stage holds with everything kept."""
        pairs = zip(self._turns, self.plan.stages, strict=True)
        return [float(t.most * s.training.saved_bytes) for t, s in pairs if s.training]

    @cached_property
    def _homes(self) -> list[tuple[int, ...]]:
        """Devices of every stage, those of its backward too."""
        place = self.schedule.placement
        return [tuple({*f, *b}) for f, b in zip(place.forward, place.backward, strict=True)]

    def _stages_of(self, device: int) -> list[int]:
        return [s for s, home in enumerate(self._homes) if device in home]

    def _sum(self, of_stage: Sequence[float]) -> Floats:
        """Per device the sum over its stages."""
        devices = range(self.schedule.devices)
        return np.array([sum(of_stage[s] for s in self._stages_of(d)) for d in devices])

    def _first_room(self) -> Floats:
        """What all saved values may take of a device, if what they take less is what it holds less.

        Where forward and backward run on two devices, what is left without any.
        """
        if not self.schedule.placement.separate:
            return self._sum(self._wanted) - np.maximum(self.excess(self.plain), 0.0)
        light = [replace(c, nbytes=0) if c.kind in _SAVED else c for c in self.schedule.channels]
        bare = timeline_of(self.foresight.facts, self.schedule.replace(channels=tuple(light)))
        return np.subtract(self.limits, bare.peak_bytes, dtype=np.float64)

    def _cap(self, room: Floats, floors: dict[int, float], stage: int, device: int) -> float:
        """A stage's part of the room of a device; the others' that can take no less is theirs."""
        if stage in floors:
            return floors[stage]
        own = self._stages_of(device)
        left = room[device] - sum(floors[s] for s in own if s in floors)
        whole = sum(self._wanted[s] for s in own if s not in floors)
        return max(float(left * self._wanted[stage] / whole if whole else left), 0.0)

    def _choice(self, stage: int, room: Floats, floors: dict[int, float]) -> Residency:
        """As `_choose`; a stage that fits in no way is named, with its device."""
        try:
            return self._choose(stage, room, floors)
        except DoesNotFitError as error:
            device = min(self._homes[stage], key=lambda d: room[d])
            raise PassError(
                f"stage {stage} does not fit device {device}, with all that may move or be "
                "recomputed",
                where=f"{self.limits[device]:,.0f} bytes of memory",
                got=f"{error.least:,.0f} bytes of saved values at least",
                want=f"{error.cap:,.0f} bytes, which is what all else leaves: "
                f"{error.least - error.cap:,.0f} bytes short",
                hint=error.hint,
            ) from error

    def _choose(self, stage: int, room: Floats, floors: dict[int, float]) -> Residency:
        """The choice for a stage; the least that it can hold where it has not that much room."""
        place, training = self.schedule.placement, self.foresight.works[stage].training
        cap = min(self._cap(room, floors, stage, d) for d in place.forward[stage])
        if place.separate:
            behind = self._cap(room, floors, stage, place.backward[stage][0])
            problem = replace(self._problem(stage, cap), behind=behind, parts=self.host)
            return Residency.name_values(training, choose(problem))
        if (stage, cap) not in self._known:
            found, least = None, cap
            while found is None:
                try:
                    found = choose(self._problem(stage, least), self.enough.get(stage, inf))
                except DoesNotFitError as error:  # with that room another one may come out
                    floors[stage] = least = max(error.least * _MORE, least * _WIDER)
            self._known[stage, cap] = Residency.name_values(training, found)
        return self._known[stage, cap]

    def _problem(self, stage: int, cap: float) -> Problem:
        return replace(self._problems[stage], cap=cap)

    @cached_property
    def _saved(self) -> list[tuple[Floats, Floats, list[dict[int, float]]]]:
        """Of every stage bytes of saved values, seconds of each again, and what is alive then."""
        alike, works = self.schedule.rule.alike, self.foresight.works
        return [(*values_of(w, alike=alike), together(w.training)) for w in works]

    @cached_property
    def _problems(self) -> list[Problem]:
        """Every stage's, with no room."""
        times = self.foresight.facts.times().compute
        apart, found = self.schedule.placement.separate, []
        for s, (saved, turns) in enumerate(zip(self._saved, self._turns, strict=True)):
            nbytes, again, alive = saved
            flight = 1 if apart else max(turns.most, 1)
            problem = Problem(
                nbytes,
                again if self.recompute else np.full(len(again), inf),
                forward=times[ActionKind.F][s],
                backward=times[ActionKind.B][s],
                cap=0.0,
                bandwidth=self._bandwidth(s),
                flight=flight,
                alternates=turns.alternates or apart,
                together=alive,
                working=WorkingBytes(self.foresight.rewrites[s], flight),
            )
            found.append(problem)
        return found

    def _bandwidth(self, stage: int) -> float:
        """Bytes per second of what is saved, to host memory or to the device of the backward.

        Stages that share a device share its link. Of a stage that runs eagerly nothing leaves.
        """
        if eager_parts(self.plan.stages[stage].graph):
            return 0.0
        place, devices = self.schedule.placement, self.plan.cluster.devices
        ahead, behind = place.forward[stage][0], place.backward[stage][0]
        if place.separate:
            if any(c.kind is ChannelKind.S for c in self.schedule.channels):
                return self.plan.cluster.link(ahead, behind).bytes_per_second
            return min(devices[d].host_bandwidth for d in (ahead, behind))
        sharing = max(len(self._stages_of(d)) for d in place.forward[stage])
        return devices[ahead].host_bandwidth * self.link / sharing if self.host else 0.0

    def check_static(self) -> None:
        """Refuse at once where weights, what belongs to them and what W reads are above a limit.

        Raises:
            PassError: They are.
        """
        over = self.excess(self.static)
        device = int(over.argmax())
        if over[device] <= 0:
            return
        more = ["more stages"] + [_OPTIMIZER] * (STATE_WAITS not in self.plan.options)
        and_w = ", with what W waits for," * (ActionKind.W in self.schedule.kind)
        raise PassError(
            f"schedule {spell(self.schedule)} does not fit device {device}: weights, their "
            f"gradients and the optimizer's state alone{and_w} are above its memory",
            where=f"{self.limits[device]:,.0f} bytes of memory",
            got=f"{self.static.peak_bytes[device]:,.0f} bytes at least, nothing else saved",
            want=f"{self.limits[device]:,.0f} bytes: {over[device]:,.0f} bytes short",
            hint=self._other(self.plan) or ", or ".join(more),
        )

    def refusal(self) -> PassError:
        """That no choice fits, with the one of those that were tried which is nearest to it."""
        chosen = min(self.tried, key=lambda t: self.excess(self.simulate(t)).max())
        found = self.make(chosen)
        device = int(self.excess(found.timeline).argmax())
        peak, limit = found.timeline.peak_bytes[device], self.limits[device]
        allowed = {"move": self.host, "be recomputed": self.recompute}
        return PassError(
            f"schedule {spell(self.schedule)} does not fit device {device}, with all that may "
            + " or ".join(a for a in allowed if allowed[a]),
            where=f"{limit:,.0f} bytes of memory",
            got=f"{peak:,.0f} bytes at least",
            want=f"{limit:,.0f} bytes: {peak - limit:,.0f} bytes short",
            hint=self._hint(found.plan),
        )

    def _other(self, plan: Plan) -> str | None:
        """A schedule, or a count of microbatches, with which the stages of a plan, as cut, fit."""
        name, n, given = self.schedule.name, len(self.plan.stages), self.schedule.options
        m = self.schedule.microbatches if self.schedule.rule.flush else n
        others = {k: v for k, v in placing(self.schedule).items() if k != "chunks"}
        tries = (name, given, m // 2), ("1f1b", others, m), ("1f1b", others, max(n, m // 2))
        for other, options, count in tries:
            if count < 1 or (other == name and not count < m * self.schedule.rule.flush):
                continue
            try:
                compute = generate(other, n, count, **options)
                if compute.placement != self.schedule.placement:
                    continue
                peaks = np.array(plan_timeline(plan, complete(compute, plan)).peak_bytes)
            except PipecError:
                continue
            if (peaks <= self.limits).all():
                order = spell(self.schedule) if options is given else format_options(other, others)
                return f"schedule {order} with {count} microbatches fits, cut as here"
        return None

    def _hint(self, plan: Plan) -> str:
        """What would fit, or may: other schedules, more freedom."""
        if other := self._other(plan):
            return other
        more = [t for t, able in (("recompute=true", self.recompute), ("insert-offload", self.host))
                if not able]  # fmt: skip
        if self.schedule.rule.alike and ActionKind.I not in self.schedule.kind:  # it yields to W
            more.append("differentiate{recompute=all}")
        more += ["fewer microbatches in flight", "more stages"]
        if self.host and self.schedule.rule.flush and "parts" not in self.schedule.options:
            more.append(f"stages in parts ({with_options(spell(self.schedule), parts=4)})")
        return f"{', '.join(more)} take less memory, but perhaps still too much"
