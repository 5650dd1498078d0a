"""Putting a residency into a plan: training graphs, host slots and schedule rewritten together.

What the passes ``insert-offload`` and ``insert-recompute`` share; they differ in what is allowed.
"""

from collections.abc import Sequence
from dataclasses import replace

from pipec.autodiff.rewrite import offloaded, recomputed
from pipec.compiler.complete import completed, host_channels
from pipec.compiler.fit import Fates, Residency, fit
from pipec.compiler.fit_apart import fit_apart
from pipec.compiler.residency import saved_in_order
from pipec.errors import PassError
from pipec.graph.ir import nbytes
from pipec.plan.model import HostSlot, Plan, Stage
from pipec.schedule.channels import ChannelKind
from pipec.schedule.offload import insert_offload
from pipec.schedule.registry import generate
from pipec.schedule.schedule import Schedule


def planned(plan: Plan, generator: str, microbatches: int) -> Schedule:
    """The plan's schedule, or a named one where it has none yet.

    Raises:
        PassError: The model has no loss.
    """
    if not plan.trains:
        raise PassError("the model has no loss, so nothing is saved for a backward")
    if plan.schedule is not None:
        return plan.schedule
    return completed(generate(generator, len(plan.stages), microbatches), plan)


def fitted(
    plan: Plan, schedule: Schedule, limit: float | None, *, recompute: bool, host: bool
) -> Plan:
    """The plan with training graphs, host slots and schedule that keep every device's limit.

    Raises:
        PassError: A limit cannot be met, or values wait in host memory already.
    """
    if plan.slots:
        raise PassError(
            "saved values wait in host memory already",
            got=", ".join(s.name for s in plan.slots),
            hint="choose recomputation and offload together, before the pass schedule: "
            "insert-offload{recompute=true}",
        )
    if schedule.placement.separate:
        return _fitted_apart(plan, schedule, limit, recompute=recompute, host=host)
    chosen = fit(plan, schedule, limit, recompute=recompute, host=host)
    if not any(r.changes for r in chosen):
        return plan
    new = _with(plan, chosen)
    if new.slots and plan.schedule is not None:
        return new.replace(schedule=insert_offload(plan.schedule, host_channels(new)))
    return new


def _fitted_apart(
    plan: Plan, schedule: Schedule, limit: float | None, *, recompute: bool, host: bool
) -> Plan:
    """Where all that is saved leaves: in slots, unless it goes straight to the other device."""
    direct = all(c.kind is not ChannelKind.H for c in schedule.channels)

    def applied(chosen: Sequence[Residency]) -> tuple[Plan, Schedule]:
        """The plan with a choice, and its schedule."""
        pairs = zip(plan.stages, chosen, strict=True)
        new = _with(plan, [replace(r, slots=() if direct else _all(s, r)) for s, r in pairs])
        compute = generate(
            schedule.name, len(plan.stages), schedule.microbatches, **schedule.options
        )
        return new, completed(compute, new)

    chosen = fit_apart(plan, schedule, limit, applied, recompute=recompute, host=host)
    new, order = applied(chosen)
    return new.replace(schedule=None if plan.schedule is None else order)


def through_host(plan: Plan, schedule: Schedule) -> Plan:
    """The plan with all that stages save in host slots, where the schedule moves it so.

    Forward and backward then run on two devices (PipeFB), and each value that F saves is an
    ``offload`` node of F and a ``fetch`` node of B.

    Args:
        plan: Any plan.
        schedule: What it will run.

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
    none = Fates(frozenset(), ())
    return _with(plan, [replace(none, slots=_all(s, none)) for s in plan.stages])


def _all(stage: Stage, residency: Fates) -> tuple[tuple[int, tuple[str, ...]], ...]:
    """The slots of a residency, what is saved for its recomputation in the last one too."""
    assert stage.training is not None
    names = saved_in_order(recomputed(stage.training, residency.recompute))
    *first, (depth, _) = residency.slots or ((2, ()),)
    before = {name for _, values in first for name in values}
    last = tuple(name for name in names if name not in before)
    return tuple(slot for slot in (*first, (depth, last)) if slot[1])


def _with(plan: Plan, chosen: Sequence[Fates]) -> Plan:
    """The plan with these residencies in its stages and slots."""
    pairs = list(zip(plan.stages, chosen, strict=True))
    slots = [slot for stage, r in pairs for slot in _slots(stage, r)]
    stages = tuple(_rewritten(stage, r, slots) for stage, r in pairs)
    return plan.replace(stages=stages, slots=tuple(slots), timeline=None)


def _slots(stage: Stage, residency: Fates) -> list[HostSlot]:
    assert stage.training is not None
    F = stage.training.F
    return [
        HostSlot(
            f"s{stage.index}.host{k}",
            stage.index,
            values,
            sum(nbytes(F.node(v)) for v in values),
            depth,
        )
        for k, (depth, values) in enumerate(residency.slots)
    ]


def _rewritten(stage: Stage, residency: Fates, slots: list[HostSlot]) -> Stage:
    assert stage.training is not None
    training = recomputed(stage.training, residency.recompute)
    mine = {s.name: s.values for s in slots if s.stage == stage.index}
    return replace(stage, training=offloaded(training, mine))
