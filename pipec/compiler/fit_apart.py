"""Making PipeFB fit: forward and backward of a stage on two devices, what is saved on the way.

Each stage is a `pipec.residency.apart` problem. What weights and messages leave of the two devices
depends on when these are there, and that on the copies: the choice is simulated, and where a
device is fuller than thought its stage is told to leave as much free.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from pipec.compiler.facts import plan_facts
from pipec.compiler.fit import Residency, WorkingBytes, refused, together, values_of
from pipec.compiler.residency import stage_work
from pipec.compiler.timeline import plan_timeline
from pipec.errors import PassError
from pipec.plan.model import Plan
from pipec.residency.apart import Apart, choose_apart
from pipec.residency.problem import Problem
from pipec.schedule.action import ActionKind
from pipec.schedule.channels import ChannelKind
from pipec.schedule.schedule import Schedule

_ROUNDS = 6
"""Most times that a choice is simulated and tightened."""
_SAVED = (ChannelKind.S, ChannelKind.H)

Apply = Callable[[Sequence[Residency]], tuple[Plan, Schedule]]


def fit_apart(
    plan: Plan,
    schedule: Schedule,
    limit: float | None,
    apply: Apply,
    *,
    recompute: bool,
    host: bool,
) -> list[Residency]:
    """Choose for every stage what is computed again, and in which slots the rest leaves.

    Args:
        plan: Differentiated and timed.
        schedule: What it will run, communication included.
        limit: Bytes per device; what its cluster says if absent.
        apply: Makes plan and schedule of a choice.
        recompute: Whether values may be computed again.
        host: Whether a part of what leaves may leave, and come, while nothing is computed.

    Raises:
        PassError: A device's limit cannot be met, or forward and backward are cut differently.
    """
    _check(plan, schedule, host=host)
    devices = plan.cluster.devices
    limits = [d.memory_bytes if limit is None else limit for d in devices]
    room = [
        bytes_ - fixed for bytes_, fixed in zip(limits, _fixed_bytes(plan, schedule), strict=False)
    ]
    peaks: Sequence[float] = limits
    over = [0.0]
    for again in range(_ROUNDS):
        found = [
            _chosen(plan, schedule, s.index, limits, room, recompute=recompute, host=host)
            for s in plan.stages
        ]
        peaks = plan_timeline(*apply(found)).peak_bytes
        over = [peak - most for peak, most in zip(peaks, limits, strict=False)]
        if max(over) <= 0:
            return found
        eager = 1 + again / 4  # little is left when this no longer helps
        room = [there - eager * max(more, 0.0) for there, more in zip(room, over, strict=True)]
    worst = over.index(max(over))
    raise PassError(
        f"device {worst} is too full for what schedule {schedule.name} keeps on it",
        got=f"{peaks[worst]:,.0f} bytes",
        want=f"{limits[worst]:,.0f} bytes: {over[worst]:,.0f} bytes short",
    )


def _check(plan: Plan, schedule: Schedule, *, host: bool) -> None:
    place = schedule.placement
    if len(place.forward) != len(place.backward):
        raise PassError(
            "forward and backward are cut differently: what F of one stage saves, B of several "
            "stages reads, which have no graphs of their own",
            got=f"{len(place.forward)} forward and {len(place.backward)} backward stages",
            want="as many",
        )
    kinds = {c.kind for c in schedule.channels}
    if host and ChannelKind.H not in kinds:
        raise PassError(
            "saved values go straight to the device of the backward; none waits in host memory",
            got=f"schedule {schedule.name} with {dict(schedule.options)}",
            hint="pipefb{saved=host}, or insert-recompute",
        )


def _chosen(
    plan: Plan,
    schedule: Schedule,
    stage: int,
    limits: Sequence[float],
    room: Sequence[float],
    *,
    recompute: bool,
    host: bool,
) -> Residency:
    work, times = stage_work(plan)[stage], plan_facts(plan).times().compute
    ahead, behind = (p[stage][0] for p in (schedule.placement.forward, schedule.placement.backward))
    problem = Problem(
        *values_of(work, recompute=recompute),
        forward=times[ActionKind.F][stage],
        backward=times[ActionKind.B][stage],
        cap=max(room[ahead], 0.0),
        bandwidth=_bandwidth(plan, schedule, ahead, behind),
        together=together(work.training),
        working=WorkingBytes(work.training, 1),
    )
    tight = min((ahead, behind), key=lambda d: room[d])
    with refused(stage, tight, limits[tight], room[tight]):
        choice = choose_apart(Apart(problem, max(room[behind], 0.0), parts=host))
    return Residency.of(work.training, choice)


def _bandwidth(plan: Plan, schedule: Schedule, ahead: int, behind: int) -> float:
    """Bytes per second of what is saved, from the device of F to that of B."""
    if any(c.kind is ChannelKind.S for c in schedule.channels):
        return plan.cluster.link(ahead, behind).bytes_per_second
    return min(plan.cluster.devices[d].host_bandwidth for d in (ahead, behind))


def _fixed_bytes(plan: Plan, schedule: Schedule) -> list[float]:
    """Peak of each device without saved values: weights, gradients, optimizer, messages."""
    light = [replace(c, nbytes=0) if c.kind in _SAVED else c for c in schedule.channels]
    return list(plan_timeline(plan, schedule.replace(channels=tuple(light))).peak_bytes)
