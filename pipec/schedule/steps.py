"""Insert optimizer steps, gradient reductions, and the publishing of weights."""

import numpy as np

from pipec.errors import ScheduleError
from pipec.schedule.action import ActionKind
from pipec.schedule.channels import ChannelKind
from pipec.schedule.routes import routes_of
from pipec.schedule.schedule import LanePolicy, Schedule
from pipec.schedule.splice import Insertion, Values, splice
from pipec.schedule.tables import Tables

_K = ActionKind


def insert_steps(schedule: Schedule, joint: tuple[tuple[int, ...], ...] = ()) -> Schedule:
    """Add a ``STEP`` behind the last backward of every update of every stage replica.

    Where forward and backward of a stage run on different devices, the new weights are sent to
    the forward device (``SEND_W``, ``RECV_W``); the receive stands before the first forward
    that uses this version or a newer one.

    Args:
        schedule: Without steps.
        joint: Sets of devices whose steps stand at the end of their rows, as they add something
            up first (`Schedule.joint`).

    Raises:
        ScheduleError: Steps are there already, the schedule does not train, or joint steps would
            come before the end of a row because there is no flush.
    """
    _refuse(schedule, "steps")
    if joint and not schedule.rule.flush:
        got = f"rule {schedule.rule.name}"
        raise ScheduleError("joint steps need a flush", where=schedule.name, got=got)
    anchor, stage, replica, version = _updates(schedule)
    late = np.isin(schedule.device[anchor], [d for group in joint for d in group])
    anchor = np.where(late, schedule.device_ptr[1:][schedule.device[anchor]] - 1, anchor)
    order = np.lexsort((stage, anchor))  # joint ones by stage: the first bears the sums
    step = _select(_K.STEP, order, stage, replica, version)
    inserted = schedule.inserted | {"steps"}
    insertions = [Insertion(anchor[order], True, step), *_publishing(schedule)]
    return splice(schedule, insertions, inserted=inserted, joint=joint)


def insert_reduce(schedule: Schedule, *, overlap: bool = True) -> Schedule:
    """Add a ``REDUCE_GRAD`` per update, blocking compute or not, to every stage that has replicas.

    Run it before `insert_steps`, so that it stands before the step.

    Raises:
        ScheduleError: Reductions or steps are there already, or the schedule does not train.
    """
    _refuse(schedule, "reduce")
    _refuse(schedule, "steps")
    anchor, stage, replica, version = _updates(schedule)
    shared = Tables(schedule).replicas[stage] > 1
    reduce = _select(_K.REDUCE_GRAD, shared, stage, replica, version)
    policy = schedule.lanes
    return splice(
        schedule,
        [Insertion(anchor[shared], True, reduce)],
        inserted=schedule.inserted | {"reduce"},
        lanes=LanePolicy(policy.compute, policy.comm, "overlap" if overlap else "compute"),
    )


def insert_state(schedule: Schedule, beside: int) -> Schedule:
    """Add ``OFFLOAD_O`` and ``FETCH_O``: the optimizer's state waits in host memory.

    ``beside`` sets of state, 1 or more, are on the device at once.

    ```text
    beside 1       0OFFLOAD_O@1 0F0 ... 0FETCH_O@1 0B3 0STEP@1
    ```

    It leaves at the begin of the row, or behind the step before, beside so many compute actions
    of the device, and comes back beside the last ones of its update.
    """
    at, rows = Tables(schedule), np.flatnonzero(schedule.kind == _K.STEP)
    stage, replica = schedule.stage[rows], schedule.replica[rows]
    version, begin = schedule.version[rows], schedule.device_ptr[schedule.device[rows]]
    compute, first = np.flatnonzero(schedule.kind <= _K.W), version == 1
    behind = np.where(first, begin, at.updates(_K.STEP)[stage, replica, version - 1])
    last = np.searchsorted(compute, at.last_backward[stage, replica, version])
    turn = np.maximum(last + 1 - beside, np.searchsorted(compute, behind))
    of = stage, replica, version
    insertions = [
        Insertion(begin[first], False, _select(_K.OFFLOAD_O, first, *of)),
        Insertion(behind[~first], True, _select(_K.OFFLOAD_O, ~first, *of)),
        Insertion(compute[turn], False, _select(_K.FETCH_O, version > 0, *of)),
    ]
    return splice(schedule, insertions, state_beside=beside)


def _refuse(schedule: Schedule, name: str) -> None:
    if not schedule.training:
        raise ScheduleError("a schedule without backward makes no steps", where=schedule.name)
    if name in schedule.inserted:
        raise ScheduleError(f"{name} are in the schedule already", where=schedule.name)


def _select(kind: ActionKind, which: np.ndarray, *columns: np.ndarray) -> Values:
    """Actions of a kind for some updates, of which there are stage, replica and version."""
    own = zip(("stage", "replica", "version"), columns, strict=True)
    return {"kind": int(kind), **{name: column[which] for name, column in own}}


def _updates(schedule: Schedule) -> tuple[np.ndarray, ...]:
    """Anchor, stage, replica, version of every update, in the order of the anchors."""
    last = Tables(schedule).last_backward
    stage, replica, version = np.nonzero(last < len(schedule))
    anchor = last[stage, replica, version]
    behind = _behind(schedule, anchor, stage, replica, version)
    order = np.argsort(behind, kind="stable")
    return behind[order], stage[order], replica[order], version[order]


def _behind(
    schedule: Schedule,
    anchor: np.ndarray,
    stage: np.ndarray,
    replica: np.ndarray,
    version: np.ndarray,
) -> np.ndarray:
    """Behind the reduction, or behind what the last backward sends."""
    if "reduce" in schedule.inserted:
        reduced = Tables(schedule).updates(_K.REDUCE_GRAD)[stage, replica, version]
        anchor = np.where(reduced < len(schedule), reduced, anchor)
    sends = np.isin(schedule.kind, (_K.SEND_B, _K.SEND_F))
    behind = np.append(sends[1:], False)
    while behind[anchor].any():
        anchor = anchor + behind[anchor]
    return anchor


def _publishing(schedule: Schedule) -> list[Insertion]:
    """SEND_W behind the step, RECV_W before the first forward that uses it, per W channel."""
    routes, at = routes_of(schedule), Tables(schedule)
    found: list[tuple[int, int, int, int, int]] = []
    if not at.numbers(ChannelKind.W):
        return []
    anchors = zip(*(column.tolist() for column in _updates(schedule)), strict=True)
    behind = {(s, r, v): anchor for anchor, s, r, v in anchors}  # where the step goes
    for number in at.numbers(ChannelKind.W):
        channel = schedule.channels[number]
        for replica, _ in enumerate(schedule.placement.forward[channel.dst]):
            if routes.sender[number, replica] == routes.receiver[number, replica]:
                continue
            found += _messages(schedule, at, number, replica, behind)
    if not found:
        return []
    table = np.array(found)
    source, target, number, replica, version = table.T
    common: Values = {"replica": replica, "channel": number}
    send = common | {"kind": int(_K.SEND_W), "stage": at.source[number], "version": version}
    receive = common | {"kind": int(_K.RECV_W), "stage": at.target[number], "version": version}
    return [Insertion(source, True, send), Insertion(target, False, receive)]


def _messages(
    schedule: Schedule,
    at: Tables,
    number: int,
    replica: int,
    behind: dict[tuple[int, int, int], int],
) -> list[tuple[int, int, int, int, int]]:
    channel = schedule.channels[number]
    forward = at.forward[channel.dst, replica :: len(schedule.placement.forward[channel.dst])]
    used = schedule.version[forward]
    source_replica = replica % int(at.replicas[channel.src])
    messages = []
    for version in range(1, int(used.max(initial=0)) + 1):
        source = behind[channel.src, source_replica, version]
        target = int(forward[used >= version].min())
        messages.append((source, target, number, replica, version))
    return messages
