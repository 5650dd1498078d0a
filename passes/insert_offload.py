"""Pass ``insert-offload``: saved values that do not fit wait in host memory."""

from dataclasses import dataclass, replace
from typing import ClassVar

from pipec.autodiff.model import Training
from pipec.autodiff.rewrite import offloaded, recomputed
from pipec.compiler.complete import completed, host_channels
from pipec.compiler.fit import Residency, fit
from pipec.compiler.pass_base import Pass
from pipec.errors import PassError
from pipec.plan.model import Fact, HostSlot, Plan, Stage
from pipec.schedule.offload import insert_offload
from pipec.schedule.registry import generate
from pipec.schedule.schedule import Schedule


@dataclass(frozen=True)
class InsertOffload(Pass):
    """Sends saved values to host memory where a device's memory is too small for them.

    1. Each stage's saved values, their bytes and the device's bandwidth to the host make a
       residency problem; its linear relaxation bounds the added time from below.
    2. F ends with one ``offload`` node per value that leaves, B and I start with its ``fetch``.
    3. The schedule gets an OFFLOAD behind every F and a FETCH beside the action before the
       backward; of what leaves, one set on its way out and one on its way in are on the device.

    Attributes:
        memory_limit: Bytes per device; its cluster's figure if not given.
        recompute: Whether values may also be computed again (see ``insert-recompute``).
        generator: The schedule that is planned for, where the plan has none yet.
        microbatches: Its microbatches.
    """

    name: ClassVar[str] = "insert-offload"
    requires: ClassVar[frozenset[Fact]] = frozenset({Fact.SAVED, Fact.TIMING})
    memory_limit: float | None = None
    recompute: bool = False
    generator: str = "1f1b"
    microbatches: int = 8

    def run(self, plan: Plan) -> Plan:
        schedule = planned(plan, self.generator, self.microbatches)
        return fitted(plan, schedule, self.memory_limit, recompute=self.recompute, host=True)


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
    if not any(r.recompute or r.offload for r in chosen):
        return plan
    stages = [_rewritten(s, r) for s, r in zip(plan.stages, chosen, strict=True)]
    slots = [_slot(stage, r) for stage, r in zip(plan.stages, chosen, strict=True) if r.offload]
    new = plan.replace(stages=tuple(stages), slots=tuple(slots), timeline=None)
    if slots and plan.schedule is not None:
        return new.replace(schedule=insert_offload(plan.schedule, host_channels(new)))
    return new


def _rewritten(stage: Stage, residency: Residency) -> Stage:
    training = recomputed(_training(stage), residency.recompute)
    training = offloaded(training, residency.offload, slot_name(stage.index))
    return replace(stage, training=training)


def _slot(stage: Stage, residency: Residency) -> HostSlot:
    values = [v for v in _training(stage).saved if v.name in residency.offload]
    names = tuple(v.name for v in values)
    return HostSlot(slot_name(stage.index), stage.index, names, sum(v.nbytes for v in values))


def slot_name(stage: int) -> str:
    """Name of the host slot of a stage."""
    return f"s{stage}.host"


def _training(stage: Stage) -> Training:
    assert stage.training is not None
    return stage.training
