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
    seconds: float
    fullest: float
    rank: int

    @property
    def order(self) -> tuple[float, float, int]:
        """Fastest first, then least memory, then as given; times that tie are equal."""
        rounded = float(f"{self.seconds:.9g}") if self.seconds < inf else inf
        return rounded, self.fullest, self.rank


def choose_schedule(
    plan: Plan, schedules: Mapping[str, Schedule | PipecError]
) -> tuple[Tried, ...]:
    """Predict every schedule on the plan's own stages, links and memory.

    Args:
        plan: With stages, placement and timing.
        schedules: Name to the completed schedule, or to why there is none.

    Returns:
        All of them, the chosen one first. None that fits is predicted to be faster.

    Raises:
        ScheduleError: None fits the plan; what came closest is told.
    """
    played = [_play(plan, name, s, k) for k, (name, s) in enumerate(schedules.items())]
    played.sort(key=lambda p: p.order)
    best = played[0]
    if best.seconds == inf:
        closest = min(played, key=lambda p: p.fullest)
        raise ScheduleError(
            "no schedule fits the plan",
            got=f"{closest.tried.schedule}: {closest.tried.why}",
            hint="fewer microbatches or larger devices; or name a schedule with --schedule",
        )
    return tuple(_with_reason(p, best) for p in played)


def _play(plan: Plan, name: str, schedule: Schedule | PipecError, rank: int) -> _Played:
    if isinstance(schedule, PipecError):
        return _impossible(name, str(schedule).splitlines()[0], rank)
    if plan.placement is not None and schedule.placement.forward != plan.placement.forward:
        why = f"wants {schedule.devices} devices of {schedule.chunks} stages each"
        return _impossible(name, f"{why}; the plan has one stage per device", rank)
    try:
        timeline = plan_timeline(plan, schedule)
    except PipecError as error:
        return _impossible(name, str(error).splitlines()[0], rank)
    peak = timeline.peak_bytes
    used = [p / d.memory_bytes for p, d in zip(peak, plan.cluster.devices, strict=False)]
    fullest = max(used)
    fits = fullest <= 1
    over = used.index(fullest)
    why = "" if fits else (
        f"does not fit: device {over} needs {peak[over] / 2**30:.2f} of "
        f"{plan.cluster.devices[over].memory_bytes / 2**30:.2f} GiB"
    )  # fmt: skip
    seconds = timeline.seconds if fits else inf
    tried = Tried(name, timeline.seconds, timeline.bubble, peak, why)
    return _Played(tried, seconds, fullest, rank)


def _impossible(name: str, why: str, rank: int) -> _Played:
    return _Played(Tried(name, None, 0.0, (), why), inf, inf, rank)


def _with_reason(p: _Played, best: _Played) -> Tried:
    """The prediction with why it lost."""
    if p is best:
        return replace(p.tried, why="chosen")
    if p.tried.why:
        return p.tried
    if p.order[0] == best.order[0]:
        more = "more memory" if p.fullest > best.fullest else "the same memory"
        return replace(p.tried, why=f"as fast, {more}")
    slower = f"{p.seconds / best.seconds - 1:.1%} slower"
    bubble = f"bubble {p.tried.bubble:.0%} against {best.tried.bubble:.0%}"
    return replace(p.tried, why=f"{slower}: {bubble}")
