"""Partition, placement, costs, timing and schedule against the graph, the stages and each other."""

import math
from collections.abc import Iterator, Mapping

from pipec.cost.count import count
from pipec.errors import ScheduleError
from pipec.graph.finding import Finding
from pipec.graph.ir import nbytes
from pipec.plan.rules.parts import Parts, PlanRule
from pipec.schedule.channels import ChannelKind
from pipec.simulate.verify import findings as broken


def _partition_is_timed(parts: Parts) -> Iterator[Finding]:
    plan, cut = parts.plan, parts.plan.partition
    if cut is None:
        return
    if plan.stages and len(cut.seconds) != len(plan.stages):
        yield Finding(
            "partition", f"{len(cut.seconds)} times", f"{len(plan.stages)}, one per stage"
        )
    for k, s in enumerate(cut.seconds):
        if not _is_time(s):
            yield Finding(f"partition, stage {k}", f"{s} seconds", "a time")
    reached = cut.step_seconds or max(cut.seconds, default=math.inf)
    if not cut.lower_bound <= reached * (1 + 1e-6):
        yield Finding("partition", f"a lower bound of {cut.lower_bound} s", f"at most {reached} s")


def _is_time(seconds: float) -> bool:
    return math.isfinite(seconds) and seconds >= 0


def _placement_fits(parts: Parts) -> Iterator[Finding]:
    """Every stage has devices of the cluster, each of them once."""
    plan, place = parts.plan, parts.plan.placement
    if place is None or not plan.stages:
        return
    for phase, stages in (("forward", place.forward), ("backward", place.backward)):
        if len(stages) != len(plan.stages) and (stages or phase == "forward"):
            yield Finding(f"placement, {phase}", f"{len(stages)} stages", len(plan.stages))
        for k, devices in enumerate(stages):
            wrong = [d for d in devices if not 0 <= d < plan.cluster.size]
            if not devices or wrong or len(set(devices)) < len(devices):
                at = f"placement, {phase} of stage {k}"
                yield Finding(at, f"devices {devices}", f"some of 0 to {plan.cluster.size - 1}")


def _costs_cover(parts: Parts) -> Iterator[Finding]:
    """Every node of the model has a cost and a time on every kind of device, and no other has."""
    plan, costs = parts.plan, parts.plan.costs
    if costs is None:
        return
    calls = {n.name for n in plan.graph.calls}
    tables: dict[str, Mapping[str, object]] = {"counts": costs.nodes}
    tables |= {f"seconds on {kind}": row for kind, row in costs.seconds.items()}
    tables |= {f"backward seconds on {kind}": row for kind, row in costs.backward.items()}
    for kind in sorted({d.kind for d in plan.cluster.devices} - costs.seconds.keys()):
        yield Finding(f"costs, seconds on {kind}", "none", "one per node: the cluster has such")
    for what, row in tables.items():
        for name in sorted(calls ^ row.keys()):
            got, want = ("none", "one") if name in calls else ("one", "none: no such node")
            yield Finding(f"costs, {what} of {name}", got, want)
    for kind, seconds in [*costs.seconds.items(), *costs.backward.items()]:
        for name, s in seconds.items():
            if not _is_time(s):
                yield Finding(f"costs, {name} on {kind}", f"{s} seconds", "a time")


def _costs_follow_graph(parts: Parts) -> Iterator[Finding]:
    """Counts are those of the graph as it is."""
    plan, costs = parts.plan, parts.plan.costs
    if costs is None:
        return
    calls = [n for n in plan.graph.calls if n.name in costs.nodes]
    for n in calls:
        if costs.nodes[n.name].output_bytes != nbytes(n):
            got = f"{costs.nodes[n.name].output_bytes} bytes"
            yield Finding(f"costs of {n.name}", got, f"{nbytes(n)} bytes as in the graph")
    if parts.has_changed("graph", "costs"):
        counted = count(plan.graph)
        for n in calls:
            if costs.nodes[n.name] != counted[n.name]:
                yield Finding(f"costs of {n.name}", costs.nodes[n.name], counted[n.name])


def _stages_are_timed(parts: Parts) -> Iterator[Finding]:
    plan = parts.plan
    if plan.timing and len(plan.timing) != len(plan.stages):
        got = f"{len(plan.timing)} stages timed"
        yield Finding("timing", got, f"{len(plan.stages)}, one per stage")
    for k, t in enumerate(plan.timing):
        for name in ("interval_seconds", "latency_seconds", "memory_bytes", "backward_seconds"):
            if not _is_time(getattr(t, name)):
                yield Finding(f"timing of stage {k}", f"{name} {getattr(t, name)}", "0 or more")
        if not 0 <= t.transfer_seconds <= t.interval_seconds:
            got = f"transfer_seconds {t.transfer_seconds}"
            yield Finding(f"timing of stage {k}", got, f"0 to {t.interval_seconds}, a part of it")


_PLAIN = (str, int, type(None))


def _options_are_plain(parts: Parts) -> Iterator[Finding]:
    """What is remembered can be written: strings and numbers."""
    for name, value in parts.plan.options.items():
        key: object = name
        plain = math.isfinite(value) if isinstance(value, float) else isinstance(value, _PLAIN)
        if not isinstance(key, str) or not plain:
            got = f"{key!r}: {value!r}"
            yield Finding(f"option {key}", got, "a name, and a string, a number or nothing")


def _schedule_fits_stages(parts: Parts) -> Iterator[Finding]:
    """A schedule is for these stages, on the devices that they are placed on."""
    plan, schedule = parts.plan, parts.plan.schedule
    if schedule is None:
        return
    if schedule.stages != len(plan.stages):
        yield Finding("schedule", f"{schedule.stages} stages", len(plan.stages))
    got, want = schedule.placement, plan.placement
    if want is not None and got != want and (got.backward or got.forward != want.forward):
        yield Finding("schedule", got, f"as planned: {want}")
    if schedule.training and not plan.trains:
        yield Finding("schedule", "backward actions", "none: the model has no loss")


def _schedule_carries_channels(parts: Parts) -> Iterator[Finding]:
    """The messages of a schedule are the plan's, and in training the gradients' way back."""
    plan, schedule = parts.plan, parts.plan.schedule
    if schedule is None or len(plan.stages) != schedule.stages:
        return
    want = {(ChannelKind.F, c.name): (c.src, c.dst, c.nbytes, c.depth) for c in plan.channels}
    if schedule.training:
        for c in plan.channels:
            training = plan.stages[c.dst].training if c.dst < len(plan.stages) else None
            if training is not None and c.value in training.gradients_out():
                back = (c.dst, c.src, c.nbytes, c.depth)
                want[ChannelKind.B, f"{c.name}.grad"] = back
    kinds = {kind for kind, _ in want} | {ChannelKind.F}
    if not schedule.training or plan.differentiated:
        kinds.add(ChannelKind.B)
    got = {
        (c.kind, c.name): (c.src, c.dst, c.nbytes, c.depth)
        for c in schedule.channels
        if c.kind in kinds
    }
    for key in sorted(want.keys() | got.keys()):
        if want.get(key) != got.get(key):
            place = f"schedule, channel {key[1] or 'without a name'}"
            names = "(from, to, bytes, depth)"
            yield Finding(place, f"{got.get(key)} {names}", want.get(key))


def _schedule_is_whole(parts: Parts) -> Iterator[Finding]:
    """Communication and steps are in it; it is complete, in order, and true to its versions."""
    schedule = parts.plan.schedule
    if schedule is None:
        return
    wanted = {"comm", *(("reduce", "steps") if schedule.training else ())}
    for part in sorted(wanted - schedule.inserted):
        yield Finding("schedule", f"no {part} inserted", "what pipec.compiler.complete makes")
    if wanted <= schedule.inserted and parts.has_changed("schedule"):
        try:
            for finding in broken(schedule):
                yield Finding(f"schedule {schedule.name}", finding, "a legal order")
        except ScheduleError as error:
            yield Finding(f"schedule {schedule.name}", error.what, "a legal order")


def _timeline_is_the_schedules(parts: Parts) -> Iterator[Finding]:
    plan = parts.plan
    if plan.timeline is not None and plan.timeline.schedule is not plan.schedule:
        yield Finding("timeline", "of another schedule", "the plan's, simulated again")


def _memory_is_kept(parts: Parts) -> Iterator[Finding]:
    """No device holds more than it has, as the timeline follows it."""
    plan = parts.plan
    if plan.timeline is None:
        return
    pairs = zip(plan.timeline.memory_curves, plan.cluster.devices, strict=False)
    for k, (curve, device) in enumerate(pairs):
        if curve.peak > device.memory_bytes:
            held = ", ".join(f"{n} {v / 1e6:.4g} MB" for n, v in curve.at_peak.items() if v)
            needs = (
                f"device {k} ({device.kind}) needs {curve.peak / 1e6:.4g} of "
                f"{device.memory_bytes / 1e6:.4g} MB ({curve.peak / device.memory_bytes:.1%})"
            )
            less = "less: --schedule auto, insert-offload or smaller microbatches need it"
            yield Finding(needs, held, less)


RULES: dict[str, PlanRule] = {
    "partition-is-timed": _partition_is_timed,
    "placement-fits": _placement_fits,
    "costs-cover": _costs_cover,
    "costs-follow-graph": _costs_follow_graph,
    "stages-are-timed": _stages_are_timed,
    "options-are-plain": _options_are_plain,
    "schedule-fits-stages": _schedule_fits_stages,
    "schedule-carries-channels": _schedule_carries_channels,
    "schedule-is-whole": _schedule_is_whole,
    "timeline-is-the-schedules": _timeline_is_the_schedules,
    "memory-is-kept": _memory_is_kept,
}
