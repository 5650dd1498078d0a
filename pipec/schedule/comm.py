"""Insert communication: a send behind every producer, a receive before every consumer.

```text
0: 0F0 0F1 0B0 0B1            0: 0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1
1: 1F0 1B0 1F1 1B1     ->     1: 1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1
```

A value whose two ends lie on one device is not sent. Over each link, receives stand in the order
of the sends, so that in-order transports (NCCL) match them; a receive may therefore stand
earlier than its own consumer needs it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipec.errors import ScheduleError
from pipec.schedule.channels import Channel, ChannelKind, check_channels
from pipec.schedule.routes import routes_of
from pipec.schedule.schedule import LanePolicy, Schedule
from pipec.schedule.splice import Insertion, Values, splice
from pipec.schedule.tables import Tables

_C = ChannelKind
VALUES = (_C.F, _C.B, _C.S)


def insert_comm(
    schedule: Schedule, channels: Sequence[Channel] | None = None, *, comm: str = "links"
) -> Schedule:
    """Add ``SEND_x`` and ``RECV_x`` for activations, gradients and saved values.

    Args:
        schedule: Compute actions only.
        channels: The values that cross between stages; a kind (F, B, S, W) that is given here
            replaces all channels of this kind. The schedule's own if absent.
        comm: Which lanes they take, `LanePolicy.comm`.

    Raises:
        ScheduleError: Communication is there already, or a channel does not fit.
    """
    if "comm" in schedule.inserted:
        raise ScheduleError("communication is in the schedule already", where=schedule.name)
    given = tuple(channels or ())
    place = schedule.placement
    check_channels(given, len(place.forward), len(place.backward))
    replaced = {g.kind for g in given}
    kept = [c for c in schedule.channels if c.kind not in replaced]
    policy = LanePolicy(schedule.lanes.compute, comm, schedule.lanes.reduce)
    schedule = schedule.replace(
        channels=tuple(sorted([*kept, *given], key=lambda c: c.kind)),
        lanes=policy,
        inserted=schedule.inserted | {"comm"},
    )
    found = _messages(schedule)
    if not len(found.channel):
        return schedule
    sends = Insertion(found.source, True, found.values(schedule, "send", found.source))
    anchor = _in_order_of_sends(schedule, found)
    receives = Insertion(anchor, False, found.values(schedule, "receive", found.target))
    return splice(schedule, [receives, sends])


@dataclass(frozen=True)
class _Messages:
    """Messages that cross devices, as arrays of one length, in the order of their producers.

    Attributes:
        channel: Channel number.
        microbatch: The microbatch that it belongs to.
        source: Position of the producer.
        target: Position of the consumer.
        link: A number for each pair of devices and direction.
    """

    channel: np.ndarray
    microbatch: np.ndarray
    source: np.ndarray
    target: np.ndarray
    link: np.ndarray

    def values(self, schedule: Schedule, end: str, own: np.ndarray) -> Values:
        """The columns of one end of all messages; ``own`` is the action at that end."""
        kinds = np.array([getattr(c.kind, end) for c in schedule.channels], dtype=np.int8)
        return {
            "kind": kinds[self.channel],
            "stage": schedule.stage[own],
            "microbatch": self.microbatch,
            "replica": schedule.replica[own],
            "channel": self.channel,
        }


def _messages(schedule: Schedule) -> _Messages:
    """Everything that crosses devices; messages without a producer or consumer are left out."""
    routes, at = routes_of(schedule), Tables(schedule)
    parts = []
    for kind in VALUES:
        numbers = np.array(at.numbers(kind), dtype=np.int32)
        turn = np.arange(schedule.microbatches) % routes.period
        row, message = np.nonzero(routes.explicit[numbers][:, turn])
        channel = numbers[row]
        produced, consumed = at.ends(kind)
        source = produced[at.source[channel], message]
        target = consumed[at.target[channel], message]
        there = (source < len(schedule)) & (target < len(schedule))
        parts.append(
            (channel[there], message[there].astype(np.int32), source[there], target[there])
        )
    channel, microbatch, source, target = (np.concatenate(p) for p in zip(*parts, strict=True))
    order = np.argsort(source, kind="stable")
    channel, microbatch = channel[order], microbatch[order]
    turn = microbatch % routes.period
    link = routes.sender[channel, turn].astype(np.int32) * schedule.devices
    link += routes.receiver[channel, turn]
    return _Messages(channel, microbatch, source[order], target[order], link)


def _in_order_of_sends(schedule: Schedule, found: _Messages) -> np.ndarray:
    """Where each receive stands: before its consumer and before all that are sent later."""
    order = np.argsort(found.link, kind="stable")
    wanted, link = found.target[order].astype(np.int64), found.link[order]
    change = np.diff(link, prepend=-1) != 0
    if not ((np.diff(wanted, prepend=0) < 0) & ~change).any():
        return found.target
    offset = np.cumsum(change) * len(schedule)  # lifts later links, so minima stay in their link
    anchor = np.empty_like(found.target)
    anchor[order] = np.minimum.accumulate((wanted + offset)[::-1])[::-1] - offset
    return anchor
