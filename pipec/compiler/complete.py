"""From the compute actions of a generator to a schedule that a plan can run."""

from collections.abc import Sequence
from dataclasses import replace

from pipec.compiler.facts import count_trained, find_shared
from pipec.compiler.timeline import joint_devices
from pipec.plan.facts import SharedSum
from pipec.plan.model import STATE_WAITS, HostSlot, Plan, ValueChannel
from pipec.runtime.program import check_paired, check_shared
from pipec.schedule.channels import Channel, ChannelKind, value
from pipec.schedule.comm import insert_comm
from pipec.schedule.offload import insert_offload
from pipec.schedule.schedule import Schedule
from pipec.schedule.steps import insert_reduce, insert_state, insert_steps


def complete(compute: Schedule, plan: Plan) -> Schedule:
    """A schedule of compute actions with everything else that a plan needs.

    Adds sends and receives of the plan's channels, copies of saved values that wait in host
    memory, reductions over replicas (which wait for the last backward, as the runtime's do), and
    optimizer steps. In a schedule with a flush, devices that add something up step together.

    Raises:
        PlanError: The backward has other stages than the forward, or as `check_shared`.
    """
    check_shared(plan, compute)
    kept = [c for c in compute.channels if c.kind not in (ChannelKind.F, ChannelKind.B)]
    if compute.placement.separate and plan.differentiated:
        saved = [s.training.saved_bytes for s in plan.stages if s.training]
        kept = [set_bytes(c, saved, [count_trained(s) for s in plan.stages]) for c in kept]
    compute = compute.replace(channels=tuple(kept))  # no gradient may go back: then none is sent
    return assemble(
        compute,
        _channels(plan, training=compute.training),
        host_channels(plan.slots) if compute.training else [],
        tuple(find_shared(plan)) if plan.differentiated else (),
        state=plan.options.get(STATE_WAITS, 0),
    )


def assemble(
    compute: Schedule,
    channels: Sequence[Channel],
    slots: Sequence[Channel] = (),
    shared: Sequence[SharedSum] = (),
    *,
    state: object = 0,
) -> Schedule:
    """`complete`, of what stages exchange.

    Args:
        compute: Schedule of compute actions, without channels of activations and gradients.
        channels: What crosses between stages.
        slots: What waits in host memory.
        shared: What stages add up before they step.
        state: Compute actions beside which the optimizer's state leaves, and comes back.

    Raises:
        PlanError: The backward has other stages than the forward.
    """
    check_paired(compute)
    schedule = insert_comm(compute, channels)
    if slots or any(c.kind is ChannelKind.H for c in schedule.channels):
        schedule = insert_offload(schedule, slots)
    if schedule.training:
        joint = joint_devices(shared, schedule)
        schedule = insert_steps(insert_reduce(schedule, overlap=False), joint)
        if isinstance(state, int) and state > 0:
            schedule = insert_state(schedule, state)
    return schedule


def set_bytes(channel: Channel, saved: Sequence[int], trained: Sequence[int]) -> Channel:
    """A generator's channel from F to B or back, with the bytes that it moves.

    Args:
        channel: A channel of any kind.
        saved: Bytes that each stage saves, which leave of every microbatch.
        trained: Bytes of the weights that it trains, which leave after every update.
    """
    of = {ChannelKind.S: saved, ChannelKind.H: saved, ChannelKind.W: trained}.get(channel.kind)
    known = of is not None and channel.src < len(of)
    return replace(channel, nbytes=of[channel.src]) if known and of else channel


def host_channels(slots: Sequence[HostSlot]) -> list[Channel]:
    """Host slots as the schedule knows them."""
    return [Channel(ChannelKind.H, s.stage, s.stage, s.name, s.nbytes, s.depth) for s in slots]


def _channels(plan: Plan, *, training: bool) -> list[Channel]:
    """The plan's channels as the schedule knows them, gradients included."""
    found: list[Channel] = []
    for c in plan.channels:
        gradient = training and _has_gradient(plan, c)
        found += value(c.name, c.src, c.dst, c.nbytes, depth=c.depth, gradient=gradient)
    return found


def _has_gradient(plan: Plan, channel: ValueChannel) -> bool:
    """Whether the reader gives a gradient back; a guess from the dtype before it is known."""
    training = plan.stages[channel.dst].training
    if training is not None:
        return channel.value in training.gradients_out()
    return channel.dtype.startswith(("float", "bfloat"))
