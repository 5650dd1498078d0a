"""What an order made from costs has to know, read off a timeline of the same stages."""

import inspect
from collections.abc import Sequence

import numpy as np

from pipec.schedule.action import ActionKind
from pipec.schedule.channels import ChannelKind
from pipec.schedule.lower import lower
from pipec.schedule.registry import find_generator, generate
from pipec.schedule.schedule import Schedule
from pipec.simulate.memory import CATEGORIES
from pipec.simulate.simulate import simulate
from pipec.simulate.timeline import Timeline
from pipec.simulate.times import Times

_K = ActionKind


def takes_costs(name: str) -> bool:
    """Whether a generator makes its order from costs: it has options F, I and W."""
    return {"F", "I", "W"} <= set(inspect.signature(find_generator(name)).parameters)


def stage_costs(timeline: Timeline, limits: Sequence[float] = ()) -> dict[str, list[float]]:
    """The options of `pipec.schedule.generators.synthesized.synthesized` for these stages.

    Args:
        timeline: Timeline of any order with a flush, one stage per device.
        limits: Bytes of each device; what the stages hold whatever the order is taken off. Empty:
            memory is not limited.
    """
    schedule, compute = timeline.schedule, timeline.times.compute
    found = {kind.name: list(compute[kind]) for kind in (_K.F, _K.I, _K.W)}
    found["transfer"] = _hops(timeline)
    saved = timeline.memory.of("saved", schedule.stages)
    if limits and saved.any():
        apart = timeline.memory.saved_for_w
        found["saved"] = saved.tolist()
        found["saved_for_w"] = saved.tolist() if apart is None else list(apart)
        found["memory"] = [max(0.0, n) for n in _room(timeline, limits)]
    return found


def _hops(timeline: Timeline) -> list[float]:
    """Seconds of the longest transfer from each stage to the next, or back."""
    schedule = timeline.schedule
    durations = timeline.times.durations(schedule).transfer
    hops = [0.0] * schedule.stages
    for k, c in enumerate(schedule.channels):
        if c.kind in (ChannelKind.F, ChannelKind.B) and abs(c.src - c.dst) == 1:
            first = min(c.src, c.dst)
            hops[first] = max(hops[first], float(durations[:, k].max()))
    return hops


def _room(timeline: Timeline, limits: Sequence[float]) -> list[float]:
    """Bytes of each device that are left for what microbatches save."""
    schedule, kept = timeline.schedule, CATEGORIES.index("activations")
    work = timeline.memory.workspaces(schedule.stages, first=True)
    work = np.maximum(work, timeline.memory.workspaces(schedule.stages, first=False)).max(axis=0)
    found, lists = [], schedule.list_stages()
    for curve, limit, stages in zip(timeline.memory_curves, limits, lists, strict=False):
        held = curve.held
        always = (held.sum(axis=1) - held[:, kept]).max(initial=0.0)
        found.append(limit - float(always) - max((float(work[s]) for s in stages), default=0.0))
    return found


def generate_for(
    name: str, stages: int, microbatches: int, times: Times, **options: object
) -> Schedule:
    """`pipec.schedule.registry.generate`, with the costs that the generator may ask for.

    Raises:
        PipecError: As `generate`.
    """
    if takes_costs(name):
        other = simulate(lower(generate("1f1b", stages, microbatches)), times)
        options = {**stage_costs(other), **options}
    return generate(name, stages, microbatches, **options)
