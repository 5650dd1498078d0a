"""Which actions of a device run side by side: every action has one lane.

```text
compute              F B I W STEP                (split: F on compute.F, the rest on compute.B)
out:<device>         sends towards a device      one per link direction, or "comm" for all,
in:<device>          receives from a device      or "compute" (`LanePolicy.comm`)
d2h, h2d             OFFLOAD, FETCH; OFFLOAD_O, FETCH_O
reduce               REDUCE_GRAD                 (or "compute")
```
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pipec.schedule.action import FROM_HOST, TO_HOST, ActionKind
from pipec.schedule.channels import ChannelKind
from pipec.schedule.routes import routes_of
from pipec.schedule.schedule import Int32, Schedule

_K = ActionKind
_RECEIVES = tuple(c.receive for c in ChannelKind if c is not ChannelKind.H)
_SENDS = tuple(c.send for c in ChannelKind if c is not ChannelKind.H)


class Lane(NamedTuple):
    """One queue of one device."""

    device: int
    name: str

    @property
    def receives(self) -> bool:
        """Whether it carries nothing but receives."""
        return self.name.startswith("in:")

    def __str__(self) -> str:
        return f"{self.device}.{self.name}"


@dataclass(frozen=True)
class Lanes:
    """The lanes of a schedule.

    Attributes:
        names: What each lane is.
        of: Lane number of every action.
        order: Positions of all actions, lane by lane, each lane in row order.
        start: Where each lane begins in ``order``; one more entry than lanes.
    """

    names: tuple[Lane, ...]
    of: npt.NDArray[np.signedinteger]
    order: np.ndarray
    start: np.ndarray


def assign_lanes(schedule: Schedule) -> Lanes:
    """Put every action on its lane."""
    numbering = _Numbering(schedule)
    of = numbering.plain()
    if schedule.lanes.comm == "links":
        numbering.links(of)
    count = len(numbering.names)
    narrow = of.astype(np.int16) if count < np.iinfo(np.int16).max else of
    order = np.argsort(narrow, kind="stable").astype(np.int32)  # radix sort on 16 bits
    start = np.searchsorted(narrow[order], np.arange(count + 1, dtype=narrow.dtype))
    return Lanes(tuple(numbering.names), narrow, order, start)


def previous_in_lane(queue: Lanes) -> Int32:
    """The action before each one on its lane; the number of actions where there is none."""
    before = np.empty(len(queue.order), dtype=np.int32)
    before[queue.order[1:]] = queue.order[:-1]
    first = queue.start[:-1][np.diff(queue.start) > 0]
    before[queue.order[first]] = len(queue.order)
    return before


class _Numbering:
    """Hands out lane numbers."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.names: list[Lane] = []
        self._number: dict[Lane, int] = {}

    def lane(self, device: int, name: str) -> int:
        """The number of a lane, a new one if it was not asked for before."""
        key = Lane(device, name)
        if key not in self._number:
            self._number[key] = len(self.names)
            self.names.append(key)
        return self._number[key]

    def plain(self) -> Int32:
        """Lanes that depend on kind and device alone."""
        s = self.schedule
        name_of = {kind: self._name(kind) for kind in _K}
        present = np.bincount(s.kind, minlength=len(_K)) > 0
        table = np.zeros((len(_K), s.devices), dtype=np.int32)
        if s.lanes.comm == "links":
            present[[*_SENDS, *_RECEIVES]] = False
        for device in range(s.devices):
            for kind in np.flatnonzero(present).tolist():
                table[kind, device] = self.lane(device, name_of[_K(kind)])
        return table[s.kind, s.device]

    def _name(self, kind: ActionKind) -> str:
        policy = self.schedule.lanes
        if kind in (*_SENDS, *_RECEIVES):
            return "comm" if policy.comm == "one" else "compute"
        if kind is _K.REDUCE_GRAD and policy.reduce == "overlap":
            return "reduce"
        if kind in TO_HOST:
            return "d2h"
        if kind in FROM_HOST:
            return "h2d"
        if policy.compute == "split":
            return "compute.F" if kind is _K.F else "compute.B"
        return "compute"

    def links(self, of: Int32) -> None:
        """Fill in the lanes of sends and receives, one per pair of devices and direction."""
        s, routes = self.schedule, routes_of(self.schedule)
        sends, receives = np.zeros_like(routes.sender, int), np.zeros_like(routes.sender, int)
        for c, m in np.argwhere(routes.explicit).tolist():
            src, dst = int(routes.sender[c, m]), int(routes.receiver[c, m])
            if s.channels[c].kind is not ChannelKind.H:
                sends[c, m] = self.lane(src, f"out:{dst}")
                receives[c, m] = self.lane(dst, f"in:{src}")
        for channel in ChannelKind:
            if channel is not ChannelKind.H:
                for kind, table in ((channel.send, sends), (channel.receive, receives)):
                    rows = np.flatnonzero(s.kind == kind)
                    message = s.replica if channel is ChannelKind.W else s.microbatch
                    cell = s.channel[rows]
                    if routes.period > 1:
                        cell = cell * routes.period + message[rows] % routes.period
                    of[rows] = table.ravel()[cell]
