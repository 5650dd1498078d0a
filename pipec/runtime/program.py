"""What an executor needs to know of a plan: graphs per stage, and where each value goes.

A value has one name everywhere, and one channel per reader; a gradient travels on the channel of
its value, called ``<channel>.grad``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from pipec.autodiff.model import Training
from pipec.errors import PlanError
from pipec.graph.ir import Graph, OutputKind, tensor
from pipec.graph.lower import lower
from pipec.plan.model import Plan, Stage, ValueChannel
from pipec.runtime.draws import Draws, number_draws
from pipec.runtime.tensors import TensorType
from pipec.schedule.schedule import Schedule
from pipec.simulate.times import Float


def gradient_of(channel: str) -> str:
    """Name of the channel on which the gradient of a channel's value comes back."""
    return f"{channel}.grad"


@dataclass(frozen=True)
class StageProgram:
    """One stage, ready to run.

    Attributes:
        index: The stage.
        forward: F: the stage's own graph in inference.
        training: B, I and W and what is saved, or None in inference.
        incoming: Value that the stage reads, to the channel that brings it.
        outgoing: Value that it yields, to the channels that take it on.
        gradients_in: Value that it yields, to those channels whose reader returns a gradient.
        gradients_out: Value that it reads, to the channel on which it returns the gradient.
        loss: Name of the loss if the stage computes it.
        draws: Numbers of its draws in the whole model, in their order.
        hosted: Host slot to the saved values that wait in it.
    """

    index: int
    forward: Graph
    training: Training | None
    incoming: dict[str, ValueChannel]
    outgoing: dict[str, list[ValueChannel]]
    gradients_in: dict[str, list[ValueChannel]] = field(default_factory=dict)
    gradients_out: dict[str, ValueChannel] = field(default_factory=dict)
    loss: str | None = None
    draws: Draws = ()
    hosted: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def weights(self) -> list[str]:
        """Parameters, buffers and constants that F or B reads."""
        graphs = [self.forward, self.training.B] if self.training else [self.forward]
        return list(dict.fromkeys(i.name for g in graphs for i in g.inputs if i.kind.is_weight))

    def list_moved(self, channel: str) -> dict[str, TensorType]:
        """Types of the saved values that leave the device by a channel.

        They are those of its host slot; all of them where it is none of the plan.
        """
        found = self.training.saved if self.training else ()
        hosted = self.hosted.get(channel)
        return {
            v.name: TensorType(v.shape, v.dtype, v.stride)
            for v in found
            if hosted is None or v.name in hosted
        }

    @property
    def loss_dtype(self) -> torch.dtype:
        """The dtype of the loss that the stage computes."""
        (node,) = (o.node for o in self.forward.outputs_of(OutputKind.LOSS))
        return tensor(self.forward.node(node)).dtype

    def type_of(self, weight: str) -> TensorType:
        """Shape, dtype and stride of a weight as the graph wants it."""
        node = next(i.node for i in self.forward.inputs if i.kind.is_weight and i.name == weight)
        return TensorType.of(tensor(self.forward.node(node)))


@dataclass(frozen=True)
class Program:
    """A plan as executors see it.

    Attributes:
        plan: The plan.
        schedule: The schedule with its transfers.
        stages: Every stage.
        channels: Name to channel, values only.
        tied: Weights that several stages train, with these stages.
    """

    plan: Plan
    schedule: Schedule
    stages: tuple[StageProgram, ...]
    channels: dict[str, ValueChannel]
    tied: dict[str, tuple[int, ...]]

    @classmethod
    def of(cls, plan: Plan, schedule: Schedule | None = None) -> "Program":
        """Read a plan.

        Raises:
            PlanError: There is no schedule, or it trains a model that was not differentiated, or
                it asks for something that no stage can do.
        """
        schedule = schedule or plan.schedule
        if schedule is None:
            raise PlanError("the plan has no schedule", hint="run the pass schedule")
        if schedule.training and not plan.differentiated:
            raise PlanError(
                "the schedule has backward actions, but the stages have no backward graphs",
                hint="run the pass differentiate before the pass schedule",
            )
        if schedule.stages != len(plan.stages):
            raise PlanError(
                "the schedule is for another number of stages",
                got=schedule.stages,
                want=len(plan.stages),
            )
        training = schedule.training
        draws = number_draws(plan.graph, [s.graph for s in plan.stages])
        stages = tuple(
            _stage(plan, s, numbers, training=training)
            for s, numbers in zip(plan.stages, draws, strict=True)
        )
        program = cls(
            plan,
            schedule,
            stages,
            {c.name: c for c in plan.channels},
            plan.find_tied(trained=True) if training else {},
        )
        check_paired(schedule)
        check_shared(plan, schedule)
        return program

    def parameters(self, stage: int) -> tuple[str, ...]:
        """Parameters that the stage's optimizer steps: those with a gradient, and shared ones."""
        training = self.stages[stage].training
        own = training.trained if training else ()
        shared = (n for n, stages in self.tied.items() if stage in stages and n not in own)
        return (*own, *shared)

    def sharers(self, weight: str) -> tuple[int, ...]:
        """Devices that hold a shared weight and step it."""
        backward = self.schedule.placement.backward
        return tuple(sorted({d for s in self.tied[weight] for d in backward[s]}))

    @property
    def steppers(self) -> tuple[int, ...]:
        """Devices that step some stage."""
        return tuple(sorted({d for devices in self.schedule.placement.backward for d in devices}))

    @property
    def steps_apart(self) -> bool:
        """Whether the parameters are stepped by several optimizers."""
        stages = [s.index for s in self.stages if self.parameters(s.index)]
        return len(stages) > 1 or any(len(self.schedule.placement.backward[s]) > 1 for s in stages)

    def groups(self) -> set[tuple[int, ...]]:
        """Sets of devices that sum something together."""
        backward = self.schedule.placement.backward
        shared = {self.sharers(name) for name in self.tied} if backward else set()
        return {*backward, *shared, self.steppers} - {()}

    @property
    def times(self) -> tuple[Float, Float] | None:
        """When each action begins and ends, if the plan's timeline is of this schedule."""
        found = self.plan.timeline
        if found is None or found.schedule is not self.schedule:
            return None
        return found.begin, found.end

    @property
    def flush(self) -> bool:
        """Whether weights change only when no microbatch is under way."""
        return self.schedule.rule.flush


def _stage(plan: Plan, stage: Stage, draws: Draws, *, training: bool) -> StageProgram:
    leaving = [c for c in plan.channels if c.src == stage.index]
    found = stage.training.lower() if stage.training and training else None
    hosted = {s.name: s.values for s in plan.slots if s.stage == stage.index}
    forward = found.F if found else lower(stage.graph).graph
    incoming = {c.value: c for c in plan.channels if c.dst == stage.index}
    outgoing: dict[str, list[ValueChannel]] = {}
    gradients_in: dict[str, list[ValueChannel]] = {}
    for c in leaving:
        outgoing.setdefault(c.value, []).append(c)
        back = plan.stages[c.dst].training if training else None
        if back is not None and c.value in back.gradients_out():
            gradients_in.setdefault(c.value, []).append(c)
    given = found.gradients_out() if found else ()
    losses = [o.name for o in forward.outputs_of(OutputKind.LOSS)]
    return StageProgram(
        index=stage.index,
        forward=forward,
        training=found,
        incoming=incoming,
        outgoing=outgoing,
        gradients_in=gradients_in,
        gradients_out={v: incoming[v] for v in given},
        loss=losses[0] if losses else None,
        draws=draws,
        hosted=hosted,
    )


def check_paired(schedule: Schedule) -> None:
    """Refuse a schedule whose backward has other stages than its forward: no plan has both.

    Raises:
        PlanError: It is such a schedule.
    """
    place = schedule.placement
    if place.separate and len(place.backward) != len(place.forward):
        raise PlanError(
            "forward and backward are cut differently; stages can be run only if they are paired",
            where=f"schedule {schedule.name}",
            got=f"{len(place.forward)} forward and {len(place.backward)} backward stages",
            hint="leave out backward_stages; `pipec schedule` shows and times such schedules",
        )


def check_shared(plan: Plan, schedule: Schedule) -> None:
    """Refuse a schedule without a flush where several stages read a weight that is trained.

    Raises:
        PlanError: It would change in each of them at another time.
    """
    for name, stages in plan.find_tied(trained=True).items() if schedule.training else ():
        if not schedule.rule.flush:
            raise PlanError(
                "a weight is shared by several stages, which an asynchronous schedule would update "
                "at different times",
                where=f"weight {name}, stages {', '.join(map(str, stages))}",
                got=f"schedule {schedule.name}",
                want="one stage that reads it",
                hint="name the schedule to the pass partition, or one with a flush, such as 1f1b",
            )
