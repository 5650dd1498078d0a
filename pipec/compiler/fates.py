"""What becomes of saved values, and what a plan then takes, without making its graphs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from pipec.autodiff.model import Training
from pipec.compiler.complete import host_channels
from pipec.compiler.facts import list_saved_too, plan_facts
from pipec.compiler.residency import StageWork, list_work
from pipec.compiler.stage_timing import find_measured
from pipec.compiler.timeline import timeline_of
from pipec.compiler.working import Rewrites
from pipec.graph.ir import nbytes
from pipec.plan.facts import Facts, StageFacts
from pipec.plan.model import HostSlot, Plan
from pipec.schedule.action import ActionKind
from pipec.schedule.channels import Channel
from pipec.schedule.offload import insert_offload
from pipec.schedule.schedule import Schedule
from pipec.simulate.engine import Prepared
from pipec.simulate.timeline import Timeline


@dataclass(frozen=True)
class Fates:
    """What becomes of the saved values of one stage.

    Attributes:
        recompute: Values that B computes again.
        slots: The values that wait in host memory: (depth, names) of every slot.
    """

    recompute: frozenset[str]
    slots: tuple[tuple[int, tuple[str, ...]], ...]


KEPT = Fates(frozenset(), ())
"""All values stay."""


def host_slots(stage: int, training: Training, fates: Fates) -> list[HostSlot]:
    """Where the values of a stage wait that leave the device."""
    nodes = training.F.nodes
    return [
        HostSlot(f"s{stage}.host{k}", stage, names, sum(nbytes(nodes[n]) for n in names), depth)
        for k, (depth, names) in enumerate(fates.slots)
    ]


@dataclass(frozen=True)
class Forecast:
    """A stage whose values have some fates.

    Attributes:
        facts: Facts of the stage.
        slots: The host slots of the stage.
        for_w: Bytes of each slot that W reads too, by its name.
        saved: What stays on the device.
    """

    facts: StageFacts
    slots: tuple[HostSlot, ...]
    for_w: Mapping[str, float]
    saved: frozenset[str]


class FatePredictor:
    """As `plan_timeline` of the plan with other fates, from facts alone.

    Args:
        plan: Differentiated and timed, nothing offloaded.
        schedule: What it will run, communication included.
    """

    def __init__(self, plan: Plan, schedule: Schedule) -> None:
        self.plan, self.schedule = plan, schedule
        self._known: dict[tuple[int, Fates], Forecast] = {}
        self._prepared: dict[tuple[tuple[int, ...], ...], Prepared] = {}

    def timeline(self, chosen: Sequence[Fates]) -> Timeline:
        """The whole schedule, simulated."""
        found = [self.forecast(s, fates) for s, fates in enumerate(chosen)]
        facts = replace(
            self.facts,
            stages=tuple(t.facts for t in found),
            moved_for_w={name: size for t in found for name, size in t.for_w.items()},
            saved_too=list_saved_too(self.plan, [t.saved for t in found]),
        )
        slots = host_channels([slot for t in found for slot in t.slots])
        return timeline_of(facts, self._with(slots, chosen))

    def _with(self, slots: list[Channel], chosen: Sequence[Fates]) -> Prepared:
        """The schedule with copies of these slots; where they stand depends on depths alone."""
        depths = tuple(tuple(depth for depth, _ in fates.slots) for fates in chosen)
        if depths not in self._prepared:
            order = insert_offload(self.schedule, slots) if slots else self.schedule
            self._prepared[depths] = Prepared.of(order)
        like = self._prepared[depths]
        sizes = {c.name: c for c in slots}
        return like.resize([sizes.get(c.name, c) for c in like.schedule.channels])

    def forecast(self, stage: int, fates: Fates) -> Forecast:
        """What is known of a stage."""
        if (stage, fates) not in self._known:
            self._known[stage, fates] = self._forecast(stage, fates)
        return self._known[stage, fates]

    def _forecast(self, stage: int, fates: Fates) -> Forecast:
        work, before = self.works[stage], self.facts.stages[stage]
        again = self.rewrites[stage].of(fates.recompute)
        slots = host_slots(stage, work.training, fates)
        gone = {name for slot in slots for name in slot.values}
        stay = {name: size for name, size in again.saved.items() if name not in gone}
        splits = "W" in self.rewrites[stage].kinds
        for_w = again.for_w if splits else {}
        left = sum(size for name, size in for_w.items() if name not in gone)
        return Forecast(
            replace(
                before,
                cost=self.rewrites[stage].cost(
                    before.cost, fates.recompute, measured=self._measured[stage]
                ),
                saved=float(sum(stay.values())),
                saved_for_w=float(left) if splits else None,
            ),
            tuple(slots),
            {s.name: float(sum(for_w.get(n, 0) for n in s.values)) for s in slots if splits},
            frozenset(stay),
        )

    @cached_property
    def works(self) -> list[StageWork]:
        """The seconds of every stage, node by node."""
        return list_work(self.plan)

    @cached_property
    def rewrites(self) -> list[Rewrites]:
        """The graphs of every stage with values that are computed again."""
        stages = zip(self.works, self.facts.stages, strict=True)
        backward = (ActionKind.B, ActionKind.I, ActionKind.W)
        kinds = [k.name for k in backward if k in self.schedule.kind]
        return [Rewrites(work, s.cost.kernels, kinds) for work, s in stages]

    @cached_property
    def _measured(self) -> list[bool]:
        return [find_measured(self.plan, stage) is not None for stage in self.plan.stages]

    @cached_property
    def facts(self) -> Facts:
        """What is known of the plan as it is."""
        return plan_facts(self.plan)
