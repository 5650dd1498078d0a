"""Where an action is: look-up tables from what it does to its position in the schedule.

The tables hold positions, ``missing`` for an action that is not there, and are indexed by
(stage, microbatch), (channel, microbatch) or (stage, replica, version). Microbatches and
versions that are out of range are left to the verifier and land in no table.
"""

from collections import Counter
from functools import cached_property

import numpy as np

from pipec.schedule.action import OF_UPDATES, ActionKind
from pipec.schedule.channels import FROM_FORWARD, TO_FORWARD, ChannelKind
from pipec.schedule.schedule import Int32, Int64, Schedule

_K = ActionKind
UNLIMITED = np.iinfo(np.int32).max


class Tables:
    """Positions of the actions of one schedule."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.nothing = len(schedule)
        self.missing = len(schedule) + 1
        channels = schedule.channels
        self._rows: dict[ActionKind, Int64] = {}
        kinds = [c.kind for c in channels]
        self.first = {k: kinds.index(k) if k in kinds else 0 for k in ChannelKind}
        self._count = Counter(kinds)
        self.source = np.array([c.src for c in channels] or [0], dtype=np.int32)
        self.target = np.array([c.dst for c in channels] or [0], dtype=np.int32)
        depths = [UNLIMITED if c.depth is None else c.depth for c in channels]
        self.depth = np.array(depths or [UNLIMITED], dtype=np.int64)
        self.swaps = np.array([c.in_place for c in channels] or [False])
        self.depth[self.swaps & (self.depth == 0)] = 1  # one set on the device in all
        self.replicas = schedule.replicas

    def rows(self, kind: ActionKind) -> Int64:
        """Positions of all actions of a kind, those with an impossible index left out."""
        if kind not in self._rows:
            self._rows[kind] = self._find(kind)
        return self._rows[kind]

    def _find(self, kind: ActionKind) -> Int64:
        s = self.schedule
        found = np.flatnonzero(s.kind == kind)
        if kind in OF_UPDATES:
            return found
        microbatch = s.microbatch[found]
        return found[(microbatch >= 0) & (microbatch < s.microbatches)]

    def _compute(self, *kinds: ActionKind) -> Int32:
        s = self.schedule
        table = np.full((s.stages, s.microbatches), self.missing, dtype=np.int32)
        for kind in kinds:
            rows = self.rows(kind)
            table.ravel()[self.cells(rows)] = rows
        return table

    def cells(self, rows: Int64) -> Int64:
        """Where compute actions are in flat tables by (stage, microbatch); faster than a pair."""
        s = self.schedule
        flat: Int64 = s.stage[rows].astype(np.int64) * s.microbatches + s.microbatch[rows]
        return flat

    def letters(self, channel: ChannelKind, rows: Int64) -> Int64:
        """Where sends or receives are in the flat tables of `messages`."""
        s = self.schedule
        number = s.channel[rows] - self.first[channel]
        flat: Int64 = number.astype(np.int64) * s.microbatches + s.microbatch[rows]
        return flat

    @cached_property
    def forward(self) -> Int32:
        """F by (stage, microbatch)."""
        return self._compute(_K.F)

    @cached_property
    def backward(self) -> Int32:
        """B or I, which yield the gradients of inputs, by (stage, microbatch)."""
        return self._compute(_K.B, _K.I)

    @cached_property
    def input_gradient(self) -> Int32:
        """I alone by (stage, microbatch)."""
        return self._compute(_K.I)

    @cached_property
    def final(self) -> Int32:
        """B or W, which complete the gradients of weights, by (stage, microbatch)."""
        return self._compute(_K.B, _K.W)

    def ends(self, channel: ChannelKind) -> tuple[Int32, Int32]:
        """What produces and what consumes the values of a kind, by (stage, microbatch)."""
        produced = self.forward if channel in FROM_FORWARD else self.backward
        return produced, self.forward if channel in TO_FORWARD else self.backward

    def messages(self, channel: ChannelKind, kind: ActionKind) -> Int32:
        """Sends or receives by (channel number less the first of its kind, microbatch)."""
        shape = max(len(self.numbers(channel)), 1), self.schedule.microbatches
        table = np.full(shape, self.missing, dtype=np.int32)
        rows = self.rows(kind)
        table.ravel()[self.letters(channel, rows)] = rows
        return table

    def numbers(self, channel: ChannelKind) -> range:
        """The channels of a kind."""
        first = self.first[channel]
        return range(first, first + self._count[channel])

    @cached_property
    def versions(self) -> int:
        """One more than the highest version that the schedule speaks of."""
        s = self.schedule
        most = s.rule.updates(s.microbatches, 1)
        return 1 + max(most, int(s.version.max(initial=0)))

    def updates(self, kind: ActionKind) -> Int32:
        """STEP, REDUCE_GRAD, OFFLOAD_O or FETCH_O by (stage, replica, version)."""
        s = self.schedule
        shape = (s.stages, self._most_replicas, self.versions)
        table = np.full(shape, self.missing, dtype=np.int32)
        rows = self.rows(kind)
        table[s.stage[rows], s.replica[rows], s.version[rows]] = rows
        return table

    def weights(self, kind: ActionKind) -> Int32:
        """SEND_W or RECV_W by (channel less the first W channel, receiving replica, version)."""
        s = self.schedule
        shape = (max(len(self.numbers(ChannelKind.W)), 1), self._most_replicas, self.versions)
        table = np.full(shape, self.missing, dtype=np.int32)
        rows = self.rows(kind)
        message = s.channel[rows] - self.first[ChannelKind.W], s.replica[rows], s.version[rows]
        table[message] = rows
        return table

    @property
    def _most_replicas(self) -> int:
        place = self.schedule.placement
        return max(len(d) for d in (*place.forward, *place.backward))

    @cached_property
    def last_backward(self) -> Int32:
        """The last B or W of an update in its row, by (stage, replica, version)."""
        s = self.schedule
        shape = (s.stages, self._most_replicas, self.versions)
        table = np.full(shape, -1, dtype=np.int32)
        stage, microbatch = np.indices(self.final.shape)
        replicas = self.replicas[stage]
        version = s.rule.update_of(microbatch, replicas)
        np.maximum.at(table, (stage, microbatch % replicas, version), self.final)
        return np.where(table < 0, self.nothing, table)
