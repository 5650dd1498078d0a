"""The one predictor: facts of stages and a schedule to a timeline.

```text
F, B, I, W, STEP   what the stage's facts say; where messages were measured, with the time of the
                   sending and receiving processors
SEND, RECV         what the backend says of the value, else the channel's bytes over the link of the
                   two devices
OFFLOAD, FETCH     the slot's bytes at the device's host bandwidth
REDUCE_GRAD        gradients of a stage          its replicas            where it stands in the row
STEP, with         the optimizer's state to the device and back, if it waits in host memory and no
                   OFFLOAD_O and FETCH_O copy it
                   of a shared weight            the stages that read    behind the rows of all
                   the norm of all gradients     all, with a flush       behind the rows of all
```

What devices add up takes what was measured of two, else a ring over the slowest of their links.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from pipec.cluster.device import Device
from pipec.compiler.facts import plan_facts
from pipec.cost.stage import MessageCost
from pipec.plan.facts import Facts, SharedSum, StageFacts
from pipec.plan.model import Plan
from pipec.schedule.action import ActionKind
from pipec.schedule.channels import Channel, ChannelKind
from pipec.schedule.routes import routes_of
from pipec.schedule.schedule import Placement, Schedule
from pipec.simulate.engine import Prepared
from pipec.simulate.memory import shares
from pipec.simulate.simulate import simulate
from pipec.simulate.timeline import Timeline
from pipec.simulate.times import Times

Devices = tuple[int, ...]
_K, _C = ActionKind, ChannelKind
_BACKWARD = (_K.B, _K.I)
_READER = {_C.F: (_K.F,), _C.B: _BACKWARD, _C.S: _BACKWARD, _C.H: _BACKWARD, _C.W: (_K.F,)}
_WRITER = {_C.F: (_K.F,), _C.B: _BACKWARD, _C.S: (_K.F,), _C.H: (_K.F,), _C.W: (_K.STEP,)}


def timeline_of(facts: Facts, order: Schedule | Prepared) -> Timeline:
    """Play a schedule with what is known of its stages.

    Raises:
        ScheduleError: It deadlocks at the channels' depths; the shortest cycle of waits is shown.
    """
    schedule = Prepared.of(order).schedule
    times = facts.times(schedule)
    turns = range(routes_of(schedule).period)
    times = replace(
        times,
        transfer=tuple(
            tuple(_seconds(facts, schedule, k, c, turn) for turn in turns)
            for k, c in enumerate(schedule.channels)
        ),
        host=copies(schedule, facts.cluster.devices),
        reduce=_reductions(facts, schedule),
        step=_steps(facts, schedule, times),
        state=_state(facts, schedule) if schedule.state_beside else (),
    )
    return simulate(order, _with_processors(facts, schedule, times), facts.memory())


def plan_timeline(plan: Plan, schedule: Schedule) -> Timeline:
    """`timeline_of` the plan's facts.

    Raises:
        PlanError: The stages are not timed.
        ScheduleError: As `timeline_of`.
    """
    return timeline_of(plan_facts(plan), schedule)


def joint_devices(shared: Sequence[SharedSum], schedule: Schedule) -> tuple[Devices, ...]:
    """Sets of devices that add something up before they step; none without a flush."""
    place = schedule.placement
    if not schedule.rule.flush or not place.backward:
        return ()
    groups: list[set[int]] = []
    for _, stages in _select(shared, schedule):
        group = set(_homes(place, stages))
        overlapping = [g for g in groups if g & group]
        groups = [g for g in groups if not g & group] + [group.union(*overlapping)]
    return tuple(sorted(tuple(sorted(g)) for g in groups))


def copies(schedule: Schedule, devices: Sequence[Device]) -> dict[int, float]:
    """Seconds of one copy of each host slot, by channel number.

    Between unlike devices either copy takes as long as the slower.
    """
    return {
        k: c.nbytes / min(devices[d].host_bandwidth for d in _ends(schedule, k))
        for k, c in enumerate(schedule.channels)
        if c.kind is ChannelKind.H and c.nbytes
    }


def _with_processors(facts: Facts, schedule: Schedule, times: Times) -> Times:
    """What sending and receiving takes of the processors, added to what computes the values."""
    own = {**times.compute, _K.STEP: times.step or (0.0,) * schedule.stages}
    taken = {kind: list(seconds) for kind, seconds in own.items()}
    for number, c in enumerate(schedule.channels):
        src, dst = _ends(schedule, number)
        ends = (
            (src, c.src, _WRITER[c.kind], MessageCost.sending),
            (dst, c.dst, _READER[c.kind], MessageCost.receiving),
        )
        for device, stage, kinds, seconds in ends if src != dst else ():
            for cost in _find_measured(facts, (device,)):
                for kind in kinds:
                    taken[kind][stage] += seconds(cost, c.nbytes)
    step = tuple(taken.pop(_K.STEP))
    return replace(times, compute={kind: tuple(s) for kind, s in taken.items()}, step=step)


def _seconds(facts: Facts, schedule: Schedule, number: int, channel: Channel, turn: int) -> float:
    """Transfer time of one message of a channel; stages on one device hand values over."""
    src, dst = _ends(schedule, number, turn)
    if src == dst:
        return 0.0
    if found := _find_measured(facts, (src, dst)):
        return max(cost.on_the_way(channel.nbytes) for cost in found)
    seconds = facts.stages[channel.src].sends.get(channel.name)
    return facts.cluster.link(src, dst).seconds(channel.nbytes) if seconds is None else seconds


def _ends(schedule: Schedule, number: int, turn: int = 0) -> tuple[int, int]:
    """The devices that a channel's messages run between; those of one turn of the replicas."""
    routes = routes_of(schedule)
    return int(routes.sender[number, turn]), int(routes.receiver[number, turn])


def _reductions(facts: Facts, schedule: Schedule) -> tuple[float, ...]:
    """Seconds of a REDUCE_GRAD, per stage, and of giving what was stepped to the others.

    Each replica gets the sums of its share of the parameters, and all get what it steps: the two
    halves of an all-reduce, in which every share is as long as the longest.
    """
    backward = schedule.placement.backward
    if not (backward and facts.trains):
        return ()
    found = []
    for devices, stage in zip(backward, facts.stages, strict=False):
        nbytes = len(devices) * _longest_share(stage, devices) * stage.gradients
        found.append(sum_seconds(facts, devices, nbytes))
    return tuple(found)


def _steps(facts: Facts, schedule: Schedule, times: Times) -> tuple[float, ...]:
    """Seconds of a step per stage; the first that a device steps bears what it adds up before.

    A replica steps its share; that of the largest one counts.
    """
    place = schedule.placement
    if not schedule.training:
        return times.step
    found = list(times.step or (0.0,) * schedule.stages)
    if not (place.backward and facts.trains):
        return tuple(found)
    for stage, devices in enumerate(place.backward):
        known = facts.stages[stage]
        found[stage] -= known.cost.step * (1 - _longest_share(known, devices))
    if facts.state_waits and not schedule.state_beside:
        found = [s + 2 * copy for s, copy in zip(found, _state(facts, schedule), strict=True)]
    for size, stages in _select(facts.shared, schedule):
        devices = _homes(place, stages)
        first = {min(s for s in stages if d in place.backward[s]) for d in devices}
        for stage in first:
            found[stage] += sum_seconds(facts, devices, size)
    return tuple(found)


def _state(facts: Facts, schedule: Schedule) -> tuple[float, ...]:
    """Seconds of a copy of the optimizer's state to or from host memory, per stage."""
    found = []
    for known, devices in zip(facts.stages, schedule.placement.backward, strict=False):
        rate = min(facts.cluster.devices[d].host_bandwidth for d in devices)
        found.append(_longest_share(known, devices) * known.cost.optimizer_bytes / rate)
    return tuple(found)


def _longest_share(stage: StageFacts, devices: Devices) -> float:
    """The part of a stage's parameters that one replica steps, of the one that steps most."""
    return max(shares(stage.parameters, len(devices)))


def _select(shared: Sequence[SharedSum], schedule: Schedule) -> Iterator[tuple[float, list[int]]]:
    for one in shared:
        if schedule.rule.flush or not one.norm:
            yield one.nbytes, [s for s in one.stages if s < len(schedule.placement.backward)]


def _homes(place: Placement, stages: Sequence[int]) -> Devices:
    return tuple(sorted({d for s in stages for d in place.backward[s]}))


def sum_seconds(facts: Facts, devices: Devices, nbytes: float) -> float:
    """Seconds in which devices add up a tensor, over their links if that was not measured.

    What was measured is of two devices of each kind.
    """
    if len(devices) < 2:
        return 0.0
    found = [cost.all_reduce(nbytes, len(devices)) for cost in _find_measured(facts, devices)]
    measured = [seconds for seconds in found if seconds is not None]
    return max(measured) if measured else facts.cluster.all_reduce(devices, nbytes)


def _find_measured(facts: Facts, devices: Devices) -> list[MessageCost]:
    """What was measured of messages between devices of the kinds of these."""
    kinds = {facts.cluster.devices[d].kind for d in devices}
    return [facts.messages[kind] for kind in sorted(kinds) if kind in facts.messages]
