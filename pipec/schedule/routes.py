"""Which devices a message of a channel runs between; with replicas that depends on the message.

Message m of a channel goes from replica ``m mod senders`` to replica ``m mod receivers``, so the
pattern repeats after the least common multiple of all replica counts (the *period*). A weight
message is one per update and receiving replica; there, the replica takes the place of m.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pipec.schedule.channels import FROM_FORWARD, TO_FORWARD, Channel, ChannelKind
from pipec.schedule.schedule import Int16, Placement, Schedule


def routes_of(schedule: Schedule) -> "Routes":
    """The routes of a schedule, found once."""
    if "routes" not in schedule.memo:
        schedule.memo["routes"] = Routes(
            schedule.placement, schedule.channels, schedule.inserted, schedule.stages
        )
    found = schedule.memo["routes"]
    assert isinstance(found, Routes)
    return found


@dataclass(frozen=True, eq=False)
class Routes:
    """The two ends of every channel.

    Attributes:
        placement: (stage, phase) to devices.
        channels: The channels.
        inserted: Passes that have run.
        stages: Number of stages.
    """

    placement: Placement
    channels: tuple[Channel, ...]
    inserted: frozenset[str]
    stages: int

    @cached_property
    def period(self) -> int:
        """After how many microbatches the pattern of devices repeats."""
        place = self.placement
        return math.lcm(*(len(d) for d in (*place.forward, *place.backward)))

    @cached_property
    def sender(self) -> Int16:
        """Device that sends, by (channel, message mod period)."""
        return self._ends(FROM_FORWARD, lambda c: c.src)

    @cached_property
    def receiver(self) -> Int16:
        """Device that receives, by (channel, message mod period)."""
        return self._ends(TO_FORWARD, lambda c: c.dst)

    def _ends(self, forward: tuple[ChannelKind, ...], end: Callable[[Channel], int]) -> Int16:
        place, table = self.placement, []
        for c in self.channels:
            phase = place.forward if c.kind in forward else place.backward
            devices = phase[end(c)]
            table.append([devices[m % len(devices)] for m in range(self.period)])
        return np.array(table, dtype=np.int16).reshape(len(table), self.period)

    @cached_property
    def explicit(self) -> np.ndarray:
        """Whether a message is sent and received by actions, by (channel, message mod period).

        It is once communication (for weights: steps) is inserted, unless both ends lie on one
        device; saved values that go through the host are always copied by actions.
        """
        kinds = np.array([c.kind for c in self.channels], dtype=np.int8)[:, None]
        done = self.inserted
        sent = np.where(kinds == ChannelKind.W, "steps" in done, "comm" in done)
        crosses = sent & (self.sender != self.receiver)
        return np.where(kinds == ChannelKind.H, "offload" in done, crosses)

    def incoming(self, kind: ChannelKind) -> np.ndarray:
        """Channel numbers that end in each stage, (stages, most per stage), padded with -1."""
        return self._table(kind, [c.dst for c in self.channels])

    def outgoing(self, kind: ChannelKind) -> np.ndarray:
        """Channel numbers that start in each stage, (stages, most per stage), padded with -1."""
        return self._table(kind, [c.src for c in self.channels])

    def _table(self, kind: ChannelKind, ends: list[int]) -> np.ndarray:
        lists: list[list[int]] = [[] for _ in range(self.stages)]
        for number, (c, stage) in enumerate(zip(self.channels, ends, strict=True)):
            if c.kind is kind:
                lists[stage].append(number)
        width = max((len(numbers) for numbers in lists), default=0)
        padded = [numbers + [-1] * (width - len(numbers)) for numbers in lists]
        return np.array(padded, dtype=np.int32).reshape(len(lists), width)
