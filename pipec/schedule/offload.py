"""Insert offload: copy saved values to host memory behind F, and back before the backward.

```text
0F0 0F1 0B0      ->      0F0 0OFFLOAD0 0FETCH0 0F1 0OFFLOAD1 0B0
```

Copies run on their own lanes. A fetch is issued some compute actions before its backward, so that
it runs beside them, and never before its own offload. The channel's depth says how many (1 where it
has no limit), and how many sets of saved values are on the device on each side.

```text
depth 0   F4 OFFLOAD4 FETCH0 B0             one set in all: out, then in, nothing beside them
depth 1   FETCH0 F4 OFFLOAD4 B0             fetched beside a forward, copied out beside a backward
depth 2   OFFLOAD4 FETCH1 B0 F5 OFFLOAD5    fetched beside a backward and a forward
```

A device gives memory away in the order of its row, so that what comes back has its place from when
the fetch is issued. At depth 2 that would be beside what is leaving; so the fetch waits until the
last set has left and takes its place: two sets are there. Of several slots one comes while another
leaves.
"""

from collections.abc import Sequence

import numpy as np

from pipec.errors import ScheduleError
from pipec.schedule.action import ActionKind
from pipec.schedule.channels import Channel, ChannelKind, check_channels
from pipec.schedule.routes import routes_of
from pipec.schedule.schedule import Schedule
from pipec.schedule.splice import Insertion, Values, splice
from pipec.schedule.tables import Tables


def insert_offload(schedule: Schedule, slots: Sequence[Channel] | None = None) -> Schedule:
    """Add ``OFFLOAD`` and ``FETCH`` for saved values that wait in host memory.

    A slot is a channel of kind H; the schedule's own count by default.

    Raises:
        ScheduleError: Offload is there already, or a channel is no slot or does not fit.
    """
    if "offload" in schedule.inserted:
        raise ScheduleError("offload is in the schedule already", where=schedule.name)
    place = schedule.placement
    given = tuple(slots or ())
    check_channels(given, len(place.forward), len(place.backward))
    if wrong := [c for c in given if c.kind is not ChannelKind.H]:
        raise ScheduleError("not a host slot", got=wrong[0], want="a channel of kind H")
    kept = [c for c in schedule.channels if not given or c.kind is not ChannelKind.H]
    schedule = schedule.replace(
        channels=tuple(sorted([*kept, *given], key=lambda c: c.kind)),
        channel=_renumber(schedule, kept, given),
        inserted=schedule.inserted | {"offload"},
    )
    at = Tables(schedule)
    insertions: list[Insertion] = []
    for number, channel in enumerate(schedule.channels):
        if channel.kind is ChannelKind.H:
            source, target = at.forward[channel.src], at.backward[channel.dst]
            insertions.append(_copies(schedule, number, source, source, after=True))
            depth = 1 if channel.depth is None else channel.depth
            anchors = _anchor(schedule, source, target, depth)
            if channel.depth is not None:
                anchors = _not_too_early(schedule, target, anchors, depth)
            insertions.append(_copies(schedule, number, target, anchors, after=False))
    return splice(schedule, insertions)


def _renumber(schedule: Schedule, kept: list[Channel], given: tuple[Channel, ...]) -> np.ndarray:
    """Channel numbers after slots come between the other kinds."""
    after = sorted([*kept, *given], key=lambda c: c.kind)
    position = {id(c): n for n, c in enumerate(after)}
    moved = np.array([position.get(id(c), -1) for c in schedule.channels] + [-1], dtype=np.int32)
    numbers: np.ndarray = moved[schedule.channel]  # -1 picks the last entry, -1
    return numbers


def _anchor(schedule: Schedule, source: np.ndarray, target: np.ndarray, ahead: int) -> np.ndarray:
    """The action before which each fetch stands.

    ``ahead`` compute actions before its backward, but on the same device behind its forward,
    and not before the row begins.
    """
    compute = np.flatnonzero(schedule.kind <= ActionKind.W)
    count = len(schedule)
    there = (source < count) & (target < count)
    last = np.where(there, target, 0)
    first = schedule.device_ptr[schedule.device[last]]
    forward = np.where(there, source, 0)
    here = schedule.device[forward] == schedule.device[last]
    first = np.where(here, np.maximum(first, forward + 1), first)
    turn = np.searchsorted(compute, last)
    lowest = np.searchsorted(compute, first)
    issued = compute[np.maximum(np.maximum(turn - ahead, lowest), 0)]
    return np.where(there, np.minimum(issued, last), count)


def _not_too_early(
    schedule: Schedule, target: np.ndarray, anchors: np.ndarray, depth: int
) -> np.ndarray:
    """Fetches moved so that not more sets wait on the device than the depth says.

    At depths 0 and 1 behind the backward before theirs. At depth n from 2 on in front of the
    backward n - 1 before theirs, at the first: earlier, where forwards fill the pipeline or
    backwards drain it, a set would come back before the one that was made last begins to leave.
    """
    period = routes_of(schedule).period
    message = np.arange(len(target))
    back = message - max(depth - 1, 1) * period
    older = np.where(back >= 0, target[np.maximum(back, 0)], -1)
    if depth > 1:
        older = np.where(back >= 0, older, target[message % period])
    there = (older >= 0) & (older < len(schedule)) & (anchors < len(schedule))
    device = np.append(schedule.device, [-1, -1])
    local = there & (device[older] == device[np.minimum(target, len(schedule))])
    first = older + (depth <= 1)
    return np.where(local, np.clip(first, anchors, np.maximum(target, anchors)), anchors)


def _copies(
    schedule: Schedule, number: int, actions: np.ndarray, anchors: np.ndarray, *, after: bool
) -> Insertion:
    """One copy per microbatch: of what ``actions`` compute, standing next to ``anchors``."""
    there = np.flatnonzero(anchors < len(schedule))
    order = there[np.lexsort((actions[there], anchors[there]))]
    end = ChannelKind.H.send if after else ChannelKind.H.receive
    own = actions[order]
    values: Values = {
        "kind": int(end),
        "stage": schedule.stage[own],
        "microbatch": schedule.microbatch[own],
        "replica": schedule.replica[own],
        "channel": number,
    }
    return Insertion(anchors[order], after, values)
