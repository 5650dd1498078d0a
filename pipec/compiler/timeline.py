"""A schedule on a plan: the plan's stage times, links and memory, simulated."""

from collections.abc import Collection

from pipec.compiler.residency import stage_times, working_bytes
from pipec.errors import PlanError
from pipec.graph.ir import InputKind, nbytes, tensor, tensor_nbytes
from pipec.plan.model import Plan, Stage
from pipec.schedule.channels import Channel, ChannelKind
from pipec.schedule.schedule import Schedule
from pipec.simulate.memory import Memory
from pipec.simulate.simulate import simulate
from pipec.simulate.timeline import Timeline
from pipec.simulate.times import Times

OPTIMIZER_COPIES = 2.0
"""Weight-sized tensors of the optimizer's state: the two moments of Adam."""


def plan_timeline(plan: Plan, schedule: Schedule) -> Timeline:
    """Play ``schedule`` with the backend's stage times and the cluster's links.

    1. A forward takes the stage's interval, a backward twice as long and what it recomputes.
    2. A transfer takes its channel's bytes over the link of the two devices, a copy to the host
       or back the slot's bytes at the device's host bandwidth.
    3. Weights stay; once stages are differentiated, gradients, optimizer state, the values that
       every microbatch in flight saves and those that a backward recomputes are counted too.

    Args:
        plan: With stages and timing.
        schedule: With communication inserted.

    Raises:
        PlanError: The stages are not timed.
        ScheduleError: It deadlocks at the channels' depths; the shortest cycle of waits is told.
    """
    if len(plan.timing) != len(plan.stages):
        raise PlanError("the stages are not timed", want="the pass time-stages")
    compute = stage_times(plan).compute
    links = tuple((_seconds(plan, schedule, c),) for c in schedule.channels)
    times = Times(compute, transfer=links, host=_copies(plan, schedule))
    return simulate(schedule, times, plan_memory(plan))


def plan_memory(plan: Plan) -> Memory:
    """Bytes that every stage holds; see `plan_timeline`."""
    weights = [_weight_bytes(stage) for stage in plan.stages]
    if not (plan.trains and plan.differentiated):
        return Memory(weights=weights)
    trained = [_trained_bytes(stage) for stage in plan.stages]
    hosted = {slot.stage: set(slot.values) for slot in plan.slots}
    saved = [_saved_bytes(stage, hosted.get(stage.index, set())) for stage in plan.stages]
    return Memory(
        weights=weights,
        gradients=trained,
        optimizer=[OPTIMIZER_COPIES * b for b in trained],
        saved=[s for s, _ in saved],
        saved_for_w=[w for _, w in saved],
        working=[float(working_bytes(s.training)) for s in plan.stages if s.training],
    )


def _copies(plan: Plan, schedule: Schedule) -> dict[int, float]:
    """Seconds of one copy of each host slot, by channel number."""
    place, devices = schedule.placement.forward, plan.cluster.devices
    return {
        k: c.nbytes / devices[place[c.src][0]].host_bandwidth
        for k, c in enumerate(schedule.channels)
        if c.kind is ChannelKind.H and c.nbytes
    }


def _seconds(plan: Plan, schedule: Schedule, channel: Channel) -> float:
    """Transfer time of one message of a channel; stages on one device hand values over."""
    place = schedule.placement
    sides = {"F": (place.forward, place.forward), "B": (place.backward, place.backward)}
    sources, targets = sides.get(channel.kind.name, (place.forward, place.forward))
    src, dst = sources[channel.src][0], targets[channel.dst][0]
    return 0.0 if src == dst else plan.cluster.link(src, dst).seconds(channel.nbytes)


def _weight_bytes(stage: Stage) -> float:
    kinds = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT)
    nodes = stage.graph.nodes
    return float(sum(nbytes(nodes[i.node]) for i in stage.graph.inputs_of(*kinds)))


def _trained_bytes(stage: Stage) -> float:
    """Of the parameters that get a gradient."""
    assert stage.training is not None
    nodes, trained = stage.graph.nodes, set(stage.training.trained)
    parameters = stage.graph.inputs_of(InputKind.PARAMETER)
    return float(sum(nbytes(nodes[i.node]) for i in parameters if i.name in trained))


def _saved_bytes(stage: Stage, hosted: Collection[str]) -> tuple[float, float]:
    """What F keeps on the device for the backward, and what is left of it for W after I."""
    assert stage.training is not None
    w = stage.training.W
    nodes = w.nodes
    kept = [i for i in w.inputs_of(InputKind.SAVED) if i.name not in hosted]
    left = sum(tensor_nbytes(tensor(nodes[i.node])) for i in kept)
    return float(stage.training.saved_bytes), float(left)
