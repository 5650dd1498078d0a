"""Putting a residency into a plan: training graphs, host slots and schedule rewritten together.

What the passes ``insert-offload`` and ``insert-recompute`` share; they differ in what is allowed.
"""

import difflib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial

import numpy as np

from pipec.autodiff.model import Training
from pipec.autodiff.recompute import everything
from pipec.autodiff.rewrite import lineage, offload, reads_trained, recompute_values
from pipec.compiler.complete import complete, host_channels
from pipec.compiler.endless import drains, fill, round_of
from pipec.compiler.fates import KEPT, Fates, host_slots
from pipec.compiler.fit import Apply, Fit, Fitted, PredictedChoice
from pipec.compiler.refine import Search
from pipec.compiler.replicate import with_replicas
from pipec.compiler.residency import list_saved, list_work
from pipec.compiler.timeline import plan_timeline
from pipec.compiler.working import Rewrites
from pipec.cost.table import CostTable
from pipec.errors import PassError, PipecError, PlanError
from pipec.graph.eager import is_tape
from pipec.graph.ir import origin
from pipec.plan.model import STATE_WAITS, HostSlot, Plan, Stage
from pipec.schedule.action import ActionKind
from pipec.schedule.channels import ChannelKind
from pipec.schedule.in_flight import in_flight
from pipec.schedule.offload import insert_offload
from pipec.schedule.registry import generate, spell
from pipec.schedule.schedule import Schedule
from pipec.schedule.steps import insert_state
from pipec.simulate.costs import takes_costs
from pipec.simulate.timeline import Timeline

LIMIT = "memory_limit"
"""Name of the plan's option that remembers the limit that a memory pass keeps."""


def find_schedule(plan: Plan, generator: str, microbatches: int) -> Schedule:
    """The plan's schedule, or a named one where it has none yet.

    One without a flush is as long as a run that is not drained needs to be full.

    Raises:
        PassError: The model has no loss.
    """
    if not plan.trains:
        raise PassError(
            "the model has no loss, so nothing is saved for a backward",
            hint="give it a loss: loss=..., or --loss path/file.py:function",
        )
    if plan.schedule is not None:
        return plan.schedule
    name, stages = with_replicas(generator, plan), len(plan.stages)
    return complete(fill(generate(name, stages, microbatches)), plan)


def fit_memory(
    plan: Plan,
    schedule: Schedule,
    limit: float | None,
    *,
    recompute: bool,
    host: bool,
    values: Sequence[str] = (),
) -> Plan:
    """The plan with training graphs, host slots and schedule that keep every device's limit.

    Where values are named, these are computed again, or wait in host memory, and no others.

    Raises:
        PassError: A limit cannot be met, values wait in host memory already or cannot, or a name
            leaves nothing to choose, or names nothing.
    """
    if plan.slots:
        raise PassError(
            "saved values wait in host memory already",
            got=", ".join(s.name for s in plan.slots),
            hint="choose recomputation and offload together, before the pass schedule: "
            "insert-offload{recompute=true}",
        )
    if values:
        if limit is not None or (recompute and host):
            got = "a memory limit, or a choice between recompute and offload, beside names"
            raise PassError("values that are named leave nothing to choose", got=got)
        if schedule.placement.separate and host:
            raise PassError("all that is saved leaves already", got=f"schedule {schedule.name}")
        named = choose_named(plan, schedule, values, host=host)
        made, order = make_applier(plan, schedule)(named)
        return made.replace(schedule=None if plan.schedule is None else order)
    if plan.schedule is None and takes_costs(schedule.name):
        again = f"generator={schedule.name} microbatches={schedule.microbatches}"
        raise PassError(
            "an order that is made from costs would be another one once saved values are fitted",
            got=f"schedule {schedule.name} behind the memory pass",
            want="the order first, and the memory fitted to it",
            hint=f"schedule{{{again}}} in front of the memory pass",
        )
    if limit is not None:
        plan = plan.replace(options={**plan.options, LIMIT: float(limit)})
    fit = Fit(plan, schedule, limit, make_applier(plan, schedule), recompute, host)
    hosts = any(c.kind is ChannelKind.H for c in schedule.channels)
    if schedule.placement.separate and host and not hosts:
        raise PassError(
            "saved values go straight to the device of the backward; none waits in host memory",
            got=f"schedule {schedule.name} with {dict(schedule.options)}",
            hint="pipefb{saved=host}, or insert-recompute",
        )
    if not schedule.placement.separate and not fit.needed:
        return plan
    found = best(fit)
    return found.plan.replace(schedule=None if plan.schedule is None else found.schedule)


def rest_state(
    plan: Plan, limit: float | None = None, generator: str = "1f1b", microbatches: int = 8
) -> Plan:
    """The plan whose optimizer's state waits in host memory between steps.

    Each step copies it, or it is copied beside as many compute actions as make the whole schedule
    the fastest, of those with which no device holds more than with the copies of steps, or than
    the limit.

    Raises:
        PassError: A device steps no optimizer of ours, or has no way to host memory.
    """
    for device in plan.cluster.devices:
        if device.fpga or not device.host_bandwidth > 0:
            raise PassError(
                "the optimizer's state cannot wait in host memory",
                got=f"device {device.kind}",
                want="devices with a way to host memory, and target torch",
            )
    order = find_schedule(plan, generator, microbatches)
    count, tried = int((order.kind <= ActionKind.W).sum()), list[tuple[Plan, Timeline]]()
    for beside in [0, *(1 << k for k in range((count // order.devices).bit_length()))]:
        then = insert_state(order, beside) if beside else order
        waits = plan.replace(options={**plan.options, STATE_WAITS: beside}, timeline=None)
        made = waits.replace(schedule=None if plan.schedule is None else then)
        tried.append((made, plan_timeline(made, then)))
    most = np.maximum(tried[0][1].peak_bytes, limit or 0.0)
    fits = [t for t in tried if (np.array(t[1].peak_bytes) <= most).all()]
    return min(fits, key=lambda t: t[1].seconds)[0]


def check_memory(plan: Plan, timeline: Timeline) -> None:
    """Refuse a schedule that takes more than the limit of a memory pass before it.

    Without a flush it is asked of a run that goes on, whose devices must also have what it takes.

    Raises:
        PassError: What was fitted for one schedule does not fit the one that is run.
        PlanError: A run that goes on takes more memory than a device has.
    """
    limit, peaks, going = plan.options.get(LIMIT), timeline.peak_bytes, tuple[float, ...]()
    with suppress(PipecError):  # one that always drains
        if not drains(plan.order):
            peaks = going = round_of(plan).peak_bytes
    if isinstance(limit, float) and (peak := max(peaks)) > limit:
        name, count = spell(plan.order), plan.order.microbatches
        raise PassError(
            "saved values were fitted to a limit for another schedule than the one that is run",
            where=f"device {peaks.index(peak)}",
            want=f"{limit:,.0f} bytes",
            got=f"{peak:,.0f} bytes under {name} with {count} microbatches",
            hint=f"give it to the memory pass too: generator={name} microbatches={count}",
        )
    for number, (peak, device) in enumerate(zip(going, plan.cluster.devices, strict=False)):
        if peak > device.memory_bytes:
            raise PlanError(
                "a run that goes on from round to round does not fit the device's memory",
                where=f"device {number} ({device.kind})",
                got=f"{peak:,.0f} bytes",
                want=f"at most {device.memory_bytes:,.0f}",
                hint="a memory pass, smaller microbatches or another schedule takes less",
            )


WARY = 0.5
"""Share of a link's rate on which stages count that know nothing of filling and draining."""


def best(fit: Fit) -> Fitted:
    """What keeps the limit and, as the whole schedule is simulated, takes the least time.

    Where values may both leave and be computed again, either alone is tried too.

    Raises:
        PassError: A limit cannot be met.
    """
    fit.check_static()
    found = _find_best(fit)
    if found is None:
        raise fit.refusal()
    return fit.make(found.stages)


def _find_best(fit: Fit) -> PredictedChoice | None:
    """As `Fit.solve`; what less freedom gives is where more of it starts. None if nothing fits."""
    apart, both = fit.schedule.placement.separate, fit.recompute and fit.host
    fits = list[PredictedChoice]()
    for less in [(True, False), (False, True)] if both and not apart else []:
        narrower = fit.with_freedom(*less)
        if found := _find_best(narrower):
            fits.append(found)
        fit.tried.extend(narrower.tried)
    if all(f.timeline.seconds > fit.plain.seconds for f in fits):
        for link in (1.0, WARY) if both and not apart else (1.0,):
            each = fit.with_freedom(fit.recompute, fit.host, link)
            if found := each.solve():
                fits.append(found)
            fit.tried.extend(each.tried)
        if not apart and (found := Search(fit).best([f.stages for f in fits])):
            fits.append(found)
    return min(fits, key=lambda f: f.timeline.seconds, default=None)


def make_applier(plan: Plan, schedule: Schedule) -> Apply:
    """What makes the plan with a choice, and its schedule.

    Where forward and backward run on two devices all that is saved leaves: in slots, unless it
    goes straight to the other device.
    """
    apart = schedule.placement.separate
    direct = apart and all(c.kind is not ChannelKind.H for c in schedule.channels)

    def apply(chosen: Sequence[Fates]) -> tuple[Plan, Schedule]:
        """The plan with a choice, and its schedule."""
        if apart:
            pairs = zip(plan.stages, chosen, strict=True)
            chosen = [replace(r, slots=() if direct else _fill_slots(s, r)) for s, r in pairs]
        new = _with(plan, chosen)
        if plan.schedule is not None and not apart:
            slots = host_channels(new.slots)
            return new, insert_offload(schedule, slots) if slots else schedule
        name, count = schedule.name, schedule.microbatches
        return new, complete(generate(name, len(plan.stages), count, **schedule.options), new)

    return apply


def save_to_host(plan: Plan, schedule: Schedule) -> Plan:
    """The plan with all that stages save in host slots, where the schedule moves it so.

    Forward and backward then run on two devices (PipeFB), and each value that F saves is an
    ``offload`` node of F and a ``fetch`` node of B.

    Raises:
        PassError: Some values were chosen to wait in host memory, for another schedule.
    """
    place = schedule.placement
    paired = len(place.forward) == len(place.backward)
    hosts = any(c.kind is ChannelKind.H for c in schedule.channels)
    if not (place.separate and paired and hosts and plan.trains and plan.differentiated):
        return plan
    left = [s.index for s in plan.stages if s.training is not None and s.training.saved]
    if plan.slots and left:
        raise PassError(
            "offload was chosen for a schedule that runs forward and backward on one device",
            got=f"schedule {schedule.name}; stage {left[0]} keeps values on its device",
            hint=f"insert-offload{{generator={schedule.name}}}",
        )
    if plan.slots:
        return plan
    return _with(plan, [replace(KEPT, slots=_fill_slots(s, KEPT)) for s in plan.stages])


def _fill_slots(stage: Stage, residency: Fates) -> tuple[tuple[int, tuple[str, ...]], ...]:
    """The slots of a residency, what is saved for its recomputation in the last one too."""
    names = list_saved(recompute_values(stage.phases, residency.recompute))
    *first, (depth, _) = residency.slots or ((2, ()),)
    before = {name for _, values in first for name in values}
    last = tuple(name for name in names if name not in before)
    return tuple(slot for slot in (*first, (depth, last)) if slot[1])


def _with(plan: Plan, chosen: Sequence[Fates]) -> Plan:
    """The plan with these residencies in its stages and slots."""
    pairs = list(zip(plan.stages, chosen, strict=True))
    slots = [
        slot
        for stage, r in pairs
        if stage.training is not None
        for slot in host_slots(stage.index, stage.training, r)
    ]
    stages = tuple(_rewrite(stage, r, slots) for stage, r in pairs)
    costs = _costs(plan, stages, chosen)
    return plan.replace(stages=stages, slots=tuple(slots), timeline=None, costs=costs)


def _costs(plan: Plan, stages: Sequence[Stage], chosen: Sequence[Fates]) -> CostTable | None:
    """The plan's table, with what its measured stages take once they are rewritten."""
    if plan.costs is None or not plan.costs.stages:
        return plan.costs
    found = {kind: dict(table) for kind, table in plan.costs.stages.items()}
    for old, new, work, fates in zip(plan.stages, stages, list_work(plan), chosen, strict=True):
        for table in found.values() if new != old else ():
            if measured := table.get(old.cost_key):
                rewrites = Rewrites(work, measured.kernels)
                cost = rewrites.cost(measured, fates.recompute, measured=True)
                table.setdefault(new.cost_key, cost)
    return replace(plan.costs, stages=found)


def _rewrite(stage: Stage, residency: Fates, slots: list[HostSlot]) -> Stage:
    training = recompute_values(stage.phases, residency.recompute)
    hosted = {s.name: s.values for s in slots if s.stage == stage.index}
    return replace(stage, training=offload(training, hosted))


def choose_named(
    plan: Plan, schedule: Schedule, patterns: Sequence[str], *, host: bool
) -> list[Fates]:
    """What becomes of the saved values of every stage.

    A slot is as deep as leaves at least one set of its values on the host at the fullest.

    Args:
        plan: Differentiated.
        schedule: What it will run.
        patterns: Patterns of modules, of ONNX nodes, or of values; ``*`` stands for any text:
            ``layers.*.mlp`` is all that is made in such a module and saved for the backward.
        host: Whether they wait in host memory; else they are computed again.

    Raises:
        PassError: A pattern names nothing that is saved, or that can be computed again.
    """
    able = _list_movable if host else partial(_list_recomputable, alike=schedule.rule.alike)
    used, found = set[str](), []
    for stage, turns in zip(plan.stages, in_flight(schedule), strict=True):
        hits = {p: _matching(stage.phases, p) for p in patterns}
        wanted = able(stage.phases, [name for names in hits.values() for name in names])
        used |= {p for p, names in hits.items() if not wanted.isdisjoint(names)}
        order = tuple(v.name for v in stage.phases.saved if v.name in wanted)
        slots = ((min(2, max(0, turns.most - 2)), order),) if host and order else ()
        found.append(Fates(frozenset() if host else wanted, slots))
    for pattern in patterns:
        if pattern not in used:
            trained = [s.training for s in plan.stages if s.training is not None]
            every = [t.F.nodes[v] for t in trained for v in able(t, _matching(t, "*"))]
            places = {origin(n).name or n.name for n in every}
            raise _names_nothing(pattern, places, host=host)
    return found


def _matching(training: Training, pattern: str) -> list[str]:
    """Saved values that are made in a module of this name, or have it."""
    nodes = [training.F.nodes[v.name] for v in training.saved]
    made = [n for n in nodes if n.op == "call_function"]
    return [
        n.name
        for n in made
        if fnmatchcase(n.name, pattern)
        or any(fnmatchcase(origin(n).name, p) for p in (pattern, f"{pattern}.*"))
    ]


def _list_movable(training: Training, values: Sequence[str]) -> frozenset[str]:
    """Those of some values that may leave the device: all but autograd's tapes."""
    return frozenset(v for v in values if not is_tape(training.F.nodes[v]))


def _list_recomputable(training: Training, values: Sequence[str], *, alike: bool) -> frozenset[str]:
    """Those of some values that come from all others without random numbers.

    And, where B may have other weights than F (not ``alike``), without weights.
    """
    saved, found = {v.name for v in training.saved}, set[str]()
    for name in list_saved(training):
        if name in values:
            steps = lineage(training, name, saved - found - {name})
            calls = [n for n in steps if n.op == "call_function"]
            if all(map(everything, calls)) and (alike or not reads_trained(training, calls)):
                found.add(name)
    return frozenset(found)


def _names_nothing(pattern: str, places: set[str], *, host: bool) -> PassError:
    near = difflib.get_close_matches(pattern, places, n=3, cutoff=0.4) or sorted(places)[:3]
    what = "waits in host memory" if host else "can be computed again"
    return PassError(
        f"nothing of this name {what}",
        got=pattern,
        want="a module of which something can, such as " + ", ".join(near) if near else None,
        hint="pipec inspect OUT lists what stages save",
    )
