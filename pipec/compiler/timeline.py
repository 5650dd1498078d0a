"""A schedule on a plan: the plan's stage times, links and memory, simulated."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from pipec.cluster.device import Device
from pipec.compiler.residency import stage_times, working_bytes
from pipec.compiler.stage_timing import measured_messages, measured_stage
from pipec.compiler.sums import before_steps, reductions, trained_bytes
from pipec.errors import PlanError
from pipec.graph.ir import InputKind, nbytes, tensor, tensor_nbytes
from pipec.plan.model import HostSlot, Plan, Stage
from pipec.schedule.action import ActionKind
from pipec.schedule.channels import Channel, ChannelKind
from pipec.schedule.routes import routes_of
from pipec.schedule.schedule import Schedule
from pipec.simulate.memory import WORKSPACES, Memory
from pipec.simulate.simulate import simulate
from pipec.simulate.timeline import Timeline
from pipec.simulate.times import Times

OPTIMIZER_COPIES = 2.0
"""Weight-sized tensors of the optimizer's state where it was not measured: Adam's two moments."""
_K, _C = ActionKind, ChannelKind
_BACKWARD = (_K.B, _K.I)
_READER = {_C.F: (_K.F,), _C.B: _BACKWARD, _C.S: _BACKWARD, _C.H: _BACKWARD, _C.W: (_K.F,)}
_WRITER = {_C.F: (_K.F,), _C.B: _BACKWARD, _C.S: (_K.F,), _C.H: (_K.F,), _C.W: (_K.STEP,)}


def plan_timeline(plan: Plan, schedule: Schedule, *, clipped: bool = False) -> Timeline:
    """Play ``schedule`` with the backend's stage times and the cluster's links.

    1. Every action of a measured stage takes what was measured. Else a forward takes the stage's
       interval, a backward and a step what the plan's timing says, and what is recomputed.
    2. A transfer takes its channel's bytes over the link of the two devices, a copy to the host
       or back the slot's bytes at the device's host bandwidth.
    3. Where messages were measured, these take what they took, and the time of the sending and
       receiving processors is added to the actions that yield and read them.
    4. Replicas of a stage add up their gradients: as was measured of two, else in a ring over the
       slowest of their links. So do, as part of their step, the devices of stages that share a
       weight, and all devices where gradients are clipped (`pipec.compiler.sums`).
    5. Weights stay. In inference the values of a forward are counted while it runs, and the
       model's outputs from then on. In training, once stages are differentiated, gradients,
       optimizer state, the values that every microbatch in flight saves and those that a backward
       recomputes are counted; of a measured stage, all that an action allocates while it runs.

    Args:
        plan: With stages and timing.
        schedule: With communication inserted.
        clipped: Whether the norm of all gradients is found before the steps.

    Raises:
        PlanError: The stages are not timed.
        ScheduleError: It deadlocks at the channels' depths; the shortest cycle of waits is told.
    """
    if len(plan.timing) != len(plan.stages):
        raise PlanError("the stages are not timed", want="the pass time-stages")
    times = stage_times(plan, schedule.rule, schedule.microbatches)
    turns = range(routes_of(schedule).period)
    times = replace(
        times,
        transfer=tuple(
            tuple(_seconds(plan, schedule, k, c, turn) for turn in turns)
            for k, c in enumerate(schedule.channels)
        ),
        host=copies(schedule, plan.cluster.devices),
        reduce=reductions(plan, schedule),
        step=_steps(plan, schedule, times, clipped=clipped),
    )
    return simulate(schedule, _with_processors(plan, schedule, times), _with_posts(plan))


def _steps(plan: Plan, schedule: Schedule, times: Times, *, clipped: bool) -> tuple[float, ...]:
    """Seconds of a step per stage, with what devices add up before it."""
    if not schedule.training:
        return times.step
    own = times.step or (0.0,) * schedule.stages
    added = before_steps(plan, schedule, clipped=clipped)
    return tuple(a + b for a, b in zip(own, added, strict=True))


def _with_processors(plan: Plan, schedule: Schedule, times: Times) -> Times:
    """What sending and receiving takes of the processors, added to what computes the values."""
    own = {**times.compute, _K.STEP: times.step or (0.0,) * schedule.stages}
    taken = {kind: list(seconds) for kind, seconds in own.items()}
    for number, c in enumerate(schedule.channels):
        src, dst = _ends(schedule, number)
        cost = measured_messages(plan, plan.stages[c.src])
        if cost is None or src == dst:
            continue
        for kind in _WRITER[c.kind]:
            taken[kind][c.src] += cost.sending(c.nbytes)
        for kind in _READER[c.kind]:
            taken[kind][c.dst] += cost.receiving(c.nbytes)
    step = tuple(taken.pop(_K.STEP))
    return replace(times, compute={kind: tuple(s) for kind, s in taken.items()}, step=step)


def plan_memory(plan: Plan) -> Memory:
    """Bytes that every stage holds; see `plan_timeline`."""
    weights = [_weight_bytes(stage) for stage in plan.stages]
    if not plan.trains:
        return _of_inference(plan, weights)
    if not plan.differentiated:
        return Memory(weights=weights)
    trained = [float(trained_bytes(stage)) for stage in plan.stages]
    hosted = {(slot.stage, value) for slot in plan.slots for value in slot.values}
    saved = [
        _saved_bytes(stage, {v for s, v in hosted if s == stage.index}) for stage in plan.stages
    ]
    return Memory(
        weights=weights,
        gradients=trained,
        optimizer=[_optimizer_bytes(plan, s, b) for s, b in zip(plan.stages, trained, strict=True)],
        saved=[s for s, _ in saved],
        saved_for_w=[w for _, w in saved],
        moved_for_w={slot.name: _moved_for_w(plan, slot) for slot in plan.slots},
        workspace=_workspace(plan),
    )


def _of_inference(plan: Plan, weights: list[float]) -> Memory:
    measured = [measured_stage(plan, stage) for stage in plan.stages]
    workspace = [
        float(whole.workspace.get("F", 0) if whole else timing.workspace_bytes)
        for whole, timing in zip(measured, plan.timing, strict=True)
    ]
    outputs = [float(timing.output_bytes) for timing in plan.timing]
    return Memory(weights=weights, workspace={"F": workspace}, outputs=outputs)


def _with_posts(plan: Plan) -> Memory:
    """What stages hold; where messages were measured, as their transport has them."""
    memory = plan_memory(plan)
    costs = [measured_messages(plan, stage) for stage in plan.stages]
    slots = max((c.slots for c in costs if c), default=0)
    if not slots:
        return memory
    saved = [{v.name for v in s.training.saved} if s.training else set() for s in plan.stages]
    both = [c.name for c in plan.channels if c.value in saved[c.src]]
    return replace(memory, slots=slots, saved_too=both)


def _workspace(plan: Plan) -> dict[str, list[float]]:
    """Kind of action to bytes per stage: measured, else what a backward computes again."""
    found: dict[str, list[float]] = {k: [] for k in WORKSPACES}
    for stage in plan.stages:
        assert stage.training is not None
        whole = measured_stage(plan, stage)
        again = 0 if whole else working_bytes(stage.training)
        other = {k: again for k in WORKSPACES if k not in ("F", "STEP")}
        for kind, values in found.items():
            values.append(float((whole.workspace if whole else other).get(kind, 0)))
    return {kind: values for kind, values in found.items() if any(values)}


def copies(schedule: Schedule, devices: Sequence[Device]) -> dict[int, float]:
    """Seconds of one copy of each host slot, by channel number.

    Between unlike devices either copy takes as long as the slower.

    Args:
        schedule: With offloads inserted.
        devices: What its rows run on.
    """
    return {
        k: c.nbytes / min(devices[d].host_bandwidth for d in _ends(schedule, k))
        for k, c in enumerate(schedule.channels)
        if c.kind is ChannelKind.H and c.nbytes
    }


def _seconds(plan: Plan, schedule: Schedule, number: int, channel: Channel, turn: int) -> float:
    """Transfer time of one message of a channel; stages on one device hand values over."""
    src, dst = _ends(schedule, number, turn)
    if src == dst:
        return 0.0
    cost = measured_messages(plan, plan.stages[channel.src])
    if cost is not None:
        return cost.on_the_way(channel.nbytes)
    return plan.cluster.link(src, dst).seconds(channel.nbytes)


def _ends(schedule: Schedule, number: int, turn: int = 0) -> tuple[int, int]:
    """The devices that a channel's messages run between; those of one turn of the replicas."""
    routes = routes_of(schedule)
    return int(routes.sender[number, turn]), int(routes.receiver[number, turn])


def _weight_bytes(stage: Stage) -> float:
    kinds = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT)
    nodes = stage.graph.nodes
    return float(sum(nbytes(nodes[i.node]) for i in stage.graph.inputs_of(*kinds)))


def _optimizer_bytes(plan: Plan, stage: Stage, trained: float) -> float:
    whole = measured_stage(plan, stage)
    return float(whole.optimizer_bytes) if whole else OPTIMIZER_COPIES * trained


def _moved_for_w(plan: Plan, slot: HostSlot) -> float:
    """Bytes of a slot that W reads too."""
    training = plan.stages[slot.stage].training
    assert training is not None
    W = training.W
    read = {i.name: i.node for i in W.inputs_of(InputKind.SAVED)}
    nodes = W.nodes
    return float(sum(tensor_nbytes(tensor(nodes[read[v]])) for v in slot.values if v in read))


def _saved_bytes(stage: Stage, hosted: Collection[str]) -> tuple[float, float]:
    """What F keeps on the device for the backward, and what is left of it for W after I."""
    assert stage.training is not None
    w = stage.training.W
    nodes = w.nodes
    kept = [i for i in w.inputs_of(InputKind.SAVED) if i.name not in hosted]
    left = sum(tensor_nbytes(tensor(nodes[i.node])) for i in kept)
    return float(stage.training.saved_bytes), float(left)
