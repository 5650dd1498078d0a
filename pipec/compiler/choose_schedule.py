"""Which schedule a plan should use: each is predicted on the plan, the fastest that fits wins."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf

from pipec.compiler.timeline import plan_timeline
from pipec.errors import PipecError, ScheduleError
from pipec.plan.model import Plan, Tried
from pipec.schedule.schedule import Schedule


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
