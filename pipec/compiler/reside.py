"""Putting a residency into a plan: training graphs, host slots and schedule rewritten together.

What the passes ``insert-offload`` and ``insert-recompute`` share; they differ in what is allowed.
"""

from dataclasses import replace

from pipec.autodiff.rewrite import offloaded, recomputed
from pipec.compiler.complete import completed, host_channels
from pipec.compiler.fit import Residency, fit
from pipec.errors import PassError
from pipec.plan.model import HostSlot, Plan, Stage
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
            hint="choose recomputation and offload together: insert-offload{recompute=true}",
        )
    chosen = fit(plan, schedule, limit, recompute=recompute, host=host)
    if not any(r.changes for r in chosen):
        return plan
    pairs = list(zip(plan.stages, chosen, strict=True))
    slots = [slot for stage, r in pairs for slot in _slots(stage, r)]
    stages = tuple(_rewritten(stage, r, slots) for stage, r in pairs)
    new = plan.replace(stages=stages, slots=tuple(slots), timeline=None)
    if slots and plan.schedule is not None:
        return new.replace(schedule=insert_offload(plan.schedule, host_channels(new)))
    return new


def _slots(stage: Stage, residency: Residency) -> list[HostSlot]:
    assert stage.training is not None
    sizes = {v.name: v.nbytes for v in stage.training.saved}
    return [
        HostSlot(
            f"s{stage.index}.host{k}", stage.index, values, sum(sizes[v] for v in values), depth
        )
        for k, (depth, values) in enumerate(residency.slots)
    ]


def _rewritten(stage: Stage, residency: Residency, slots: list[HostSlot]) -> Stage:
    assert stage.training is not None
    training = recomputed(stage.training, residency.recompute)
    mine = {s.name: s.values for s in slots if s.stage == stage.index}
    return replace(stage, training=offloaded(training, mine))
