"""Pass ``schedule``: when everything runs."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import ClassVar

from pipec.compiler.backend import load_backend
from pipec.compiler.complete import complete
from pipec.compiler.pass_base import Pass
from pipec.compiler.replicate import with_replicas
from pipec.compiler.reside import save_to_host
from pipec.compiler.timeline import plan_timeline
from pipec.errors import PipecError, ScheduleError
from pipec.plan.model import Fact, Plan, Tried
from pipec.schedule.registry import (
    STREAMING,
    SYNCHRONOUS,
    SYNTHESIZED,
    generate,
    parse_options,
    plain_name,
)
from pipec.schedule.schedule import Placement, Schedule
from pipec.simulate.costs import stage_costs, takes_costs


@dataclass(frozen=True)
class SchedulePass(Pass):
    """Orders the compute actions of all stages; adds sends and receives, reductions and steps.

    1. ``fastest`` is ``inference`` for a model without a loss. For one with, every synchronous
       schedule is simulated on the plan's own stages, links and memory, an order that is made
       from their costs (``synthesized``) among them; the fastest that fits is taken (of equally
       fast ones that of least memory), and the plan keeps all predictions. What else could be
       varied (stages, replicas, microbatches) stays: `pipec.explore` varies it.
    2. Every channel of the plan gets its actions, and in training its gradient's.
    3. Where forward and backward run on two devices and saved values go through the host, these
       become host slots, with their nodes in F and B.

    Attributes:
        generator: Name of a schedule (`pipec schedule` lists them), its options behind it:
            ``interleaved{chunks=4}``, ``pipedream{replicas=3,1}``; ``replicas=auto`` are those
            that the plan was cut for.
        microbatches: Microbatches of one step.
    """

    name: ClassVar[str] = "schedule"
    requires: ClassVar[frozenset[Fact]] = frozenset({Fact.COMM})
    provides: ClassVar[frozenset[Fact]] = frozenset({Fact.SCHEDULE})
    generator: str = "fastest"
    microbatches: int = 8

    def run(self, plan: Plan) -> Plan:
        if plan.schedule is not None:
            return plan
        if self.generator == "fastest" and plan.trains:
            return self._explore(plan)
        name = "inference" if self.generator == "fastest" else with_replicas(self.generator, plan)
        schedule = self._make(name, plan)
        check_placement(plan, schedule)
        plan = save_to_host(plan, schedule)
        return plan.replace(schedule=complete(schedule, plan))

    def _make(self, name: str, plan: Plan) -> Schedule:
        """The order of compute actions; a generator that asks for costs gets the plan's."""
        options = parse_options(name, {})
        if takes_costs(name):
            like = complete(generate("1f1b", len(plan.stages), self.microbatches), plan)
            limits = [d.memory_bytes for d in plan.cluster.devices]
            options = {**stage_costs(plan_timeline(_time_stages(plan), like), limits), **options}
        return generate(plain_name(name), len(plan.stages), self.microbatches, **options)

    def _explore(self, plan: Plan) -> Plan:
        """The plan with the best schedule and what was tried to find it."""
        streams = all(d.streams for d in plan.cluster.devices)
        tried: dict[str, Schedule | PipecError] = {}
        for name in STREAMING if streams else (*SYNCHRONOUS, SYNTHESIZED):
            try:
                tried[name] = complete(self._make(name, plan), plan)
            except PipecError as error:
                tried[name] = error
        explored = choose_schedule(_time_stages(plan), tried)
        chosen = tried[explored[0].schedule]
        assert isinstance(chosen, Schedule)
        return plan.replace(schedule=chosen, explored=explored)


def _time_stages(plan: Plan) -> Plan:
    """The plan with the seconds of its stages."""
    if plan.timing:
        return plan
    return plan.replace(timing=load_backend(plan.target).stage_seconds(plan))


def check_placement(plan: Plan, schedule: Schedule) -> None:
    """Refuse a schedule that runs stages elsewhere than where the plan has cut for.

    Raises:
        ScheduleError: With the partition that would fit.
    """
    planned, wanted = plan.placement, schedule.placement
    if planned is None or planned == wanted:
        return
    if not schedule.training and planned.forward == wanted.forward:
        return
    if schedule.training and not plan.trains:
        raise ScheduleError(
            f"schedule {schedule.name} trains, and this model has no loss",
            got="outputs " + ", ".join(o.name for o in plan.graph.outputs),
            want="a loss, or --schedule inference",
            hint="trace with --training; --loss names what the model lacks",
        )
    raise ScheduleError(
        f"schedule {schedule.name} runs stages on other devices than the plan was cut for",
        got=_format_placement(wanted),
        want=_format_placement(planned),
        hint="cut for it: partition{schedule=...}, which compile --schedule does",
    )


def _format_placement(place: Placement) -> str:
    """Such as ``stages on devices 0, 1, 0, 1``; replicas as ``0+1``."""
    sides = [", ".join("+".join(map(str, d)) for d in p) for p in (place.forward, place.backward)]
    apart = f", backward on {sides[1]}" if place.separate else ""
    return f"stages on devices {sides[0]}{apart}"


@dataclass(frozen=True)
class _Played:
    """A schedule as the plan would run it; ``fullest`` is the largest share of a memory used."""

    tried: Tried
    fullest: float = inf

    @property
    def order(self) -> tuple[float, float]:
        """The fastest that fits first, then least memory; times that tie are equal."""
        seconds = self.tried.seconds
        fits = seconds is not None and self.fullest <= 1
        return float(f"{seconds:.9g}") if fits else inf, self.fullest


def choose_schedule(
    plan: Plan, schedules: Mapping[str, Schedule | PipecError]
) -> tuple[Tried, ...]:
    """Predict every schedule on the plan's own stages, links and memory.

    ``schedules`` are names to completed schedules, or to why there is none.

    Returns:
        All of them, the chosen one first. None that fits is predicted to be faster.

    Raises:
        ScheduleError: None fits the plan; the message names what came closest.
    """
    played = [_play(plan, name, schedule) for name, schedule in schedules.items()]
    best = min(played, key=lambda p: p.order)
    if best.order[0] == inf:
        closest = min(played, key=lambda p: p.fullest)
        raise ScheduleError(
            "no schedule fits the plan",
            got=f"{closest.tried.schedule}: {closest.tried.why}",
            hint="fewer microbatches or larger devices; or name a schedule with --schedule",
        )
    return tuple(_with_reason(p, best) for p in sorted(played, key=lambda p: p.order))


def _play(plan: Plan, name: str, schedule: Schedule | PipecError) -> _Played:
    if isinstance(schedule, PipecError):
        return _impossible(name, str(schedule).splitlines()[0])
    if plan.placement is not None and schedule.placement.forward != plan.placement.forward:
        why = f"wants {schedule.devices} devices of {schedule.chunks} stages each"
        return _impossible(name, f"{why}; the plan has one stage per device")
    try:
        timeline = plan_timeline(plan, schedule)
    except PipecError as error:
        return _impossible(name, str(error).splitlines()[0])
    peak = timeline.peak_bytes
    used = [p / d.memory_bytes for p, d in zip(peak, plan.cluster.devices, strict=False)]
    fullest = max(used)
    fits = fullest <= 1
    over = used.index(fullest)
    why = "" if fits else (
        f"does not fit: device {over} needs {peak[over] / 2**30:.2f} of "
        f"{plan.cluster.devices[over].memory_bytes / 2**30:.2f} GiB"
    )  # fmt: skip
    return _Played(Tried(name, timeline.seconds, timeline.bubble, peak, why), fullest)


def _impossible(name: str, why: str) -> _Played:
    return _Played(Tried(name, None, 0.0, (), why))


def _with_reason(p: _Played, best: _Played) -> Tried:
    """The prediction with why it lost."""
    if p is best:
        return replace(p.tried, why="chosen")
    if p.tried.why:
        return p.tried
    if p.order[0] == best.order[0]:
        more = "more memory" if p.fullest > best.fullest else "the same memory"
        return replace(p.tried, why=f"as fast, {more}")
    slower = f"{p.order[0] / best.order[0] - 1:.1%} slower"
    bubble = f"bubble {p.tried.bubble:.0%} against {best.tried.bubble:.0%}"
    return replace(p.tried, why=f"{slower}: {bubble}")
