"""What is known of a pipeline's stages before anything runs: the one input of every prediction.

Whoever wants a time, a bubble or a peak of memory states its stages as `StageFacts` and asks
`pipec.compiler.timeline.timeline_of`; there is no other formula.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pipec.cluster.cluster import Cluster
from pipec.cost.stage import MessageCost, StageCost
from pipec.schedule.schedule import Schedule
from pipec.simulate.memory import SLOTS, WORKSPACES, Memory
from pipec.simulate.times import Times


@dataclass(frozen=True)
class StageFacts:
    """One stage on its kind of device; seconds and bytes are of one microbatch.

    Attributes:
        kind: The kind of device that runs it; the slowest if it has replicas.
        cost: Seconds of F, B, I, W and a step, what they allocate while they run, and the bytes
            of the optimizer's state.
        weights: Bytes of one version of all weights, buffers and constants.
        gradients: Bytes of the gradients of the parameters that are trained.
        parameters: Bytes of each of them.
        saved: Bytes that F keeps on the device for the backward.
        saved_for_w: The part of ``saved`` that I leaves for W; all of it if absent.
        outputs: In inference, bytes of the model's outputs that a forward leaves.
        together: Seconds of F and of B where a device runs both at a time; 0 where it does not.
        sends: Seconds of a channel's message on its link, where the backend says so.
    """

    kind: str
    cost: StageCost
    weights: float = 0.0
    gradients: float = 0.0
    parameters: tuple[float, ...] = ()
    saved: float = 0.0
    saved_for_w: float | None = None
    outputs: float = 0.0
    together: float = 0.0
    sends: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class SharedSum:
    """What stages add up before they step.

    Attributes:
        nbytes: Bytes of the sum.
        stages: The stages whose devices take part.
        norm: Whether it is the norm of all gradients, which there is with a flush alone.
    """

    nbytes: float
    stages: tuple[int, ...]
    norm: bool = False

    @classmethod
    def of_norm(cls, trained: int, stages: int, cluster: Cluster) -> "list[SharedSum]":
        """That of the norm of all gradients together: a float64 of each trained weight.

        Boards step by themselves.
        """
        boards = any(d.fpga for d in cluster.devices)
        return [] if boards or not trained else [cls(8.0 * trained, tuple(range(stages)), True)]


@dataclass(frozen=True)
class Facts:
    """All stages of one pipeline, and the cluster that they run on.

    What crosses between stages stands in the channels of the schedule, with its bytes.

    Attributes:
        cluster: Devices and links.
        stages: In order.
        trains: Whether there is a backward.
        shared: What several stages add up: gradients of weights that all of them read, and with a
            flush the norm of all gradients.
        messages: What was measured of messages, by kind of device.
        moved_for_w: See `pipec.simulate.memory.Memory`.
        saved_too: See `pipec.simulate.memory.Memory`.
        state_waits: Whether the optimizer's state waits in host memory between steps.
    """

    cluster: Cluster
    stages: tuple[StageFacts, ...]
    trains: bool
    shared: tuple[SharedSum, ...] = ()
    messages: Mapping[str, MessageCost] = field(default_factory=dict)
    moved_for_w: Mapping[str, float] = field(default_factory=dict)
    saved_too: tuple[str, ...] = ()
    state_waits: bool = False

    def times(self, order: Schedule | None = None) -> Times:
        """Seconds of F, B, I, W and a step, per stage.

        Args:
            order: When weights change: how many microbatches add to one update, and whether a
                step leaves older versions as they are. Else every microbatch is an update of
                its own.
        """
        costs = [s.cost for s in self.stages]
        if not self.trains:
            return Times.of_stages([c.F for c in costs])
        added = [c.accumulate * share for c, share in zip(costs, self._adding(order), strict=False)]
        times = Times.of_stages(
            [c.F for c in costs],
            [c.B + more for c, more in zip(costs, added, strict=True)],
            [c.I for c in costs],
            [c.W + more for c, more in zip(costs, added, strict=True)],
        )
        in_place = order is None or order.rule.flush
        step = tuple(c.step if in_place else c.step_copied for c in costs)
        together = tuple(s.together for s in self.stages)
        return Times(times.compute, step=step, together=together)

    def _adding(self, order: Schedule | None) -> list[float]:
        """The share of microbatches that add to gradients that are there, per stage."""
        if order is None or not order.placement.backward:
            return [0.0] * len(self.stages)
        return [order.rule.adding(order.microbatches, len(d)) for d in order.placement.backward]

    def memory(self) -> Memory:
        """Bytes per stage, as the simulation follows them.

        Where no messages were measured, inference is taken to post its receives ahead, since they
        are a large part of what it holds; boards have streams.
        """
        posted = 0 if self.trains or any(d.fpga for d in self.cluster.devices) else SLOTS
        slots = max(
            (m.slots for s in self.stages if (m := self.messages.get(s.kind))), default=posted
        )
        every = self.stages
        workspace = {
            kind: [float(s.cost.workspace.get(kind, 0)) for s in every] for kind in WORKSPACES
        }
        apart = any(s.saved_for_w is not None for s in every)
        return Memory(
            weights=[s.weights for s in every],
            gradients=[s.gradients for s in every] if self.trains else (),
            optimizer=[float(s.cost.optimizer_bytes) for s in every] if self.trains else (),
            state_waits=self.state_waits,
            parameters=[s.parameters for s in every] if any(s.parameters for s in every) else (),
            saved=[s.saved for s in every] if self.trains else (),
            saved_for_w=[s.saved if s.saved_for_w is None else s.saved_for_w for s in every]
            if apart
            else None,
            moved_for_w=self.moved_for_w,
            workspace={kind: values for kind, values in workspace.items() if any(values)},
            slots=slots,
            saved_too=self.saved_too,
            outputs=[s.outputs for s in every] if any(s.outputs for s in every) else (),
        )
