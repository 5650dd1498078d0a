"""From a simulated schedule to what is held from when to when (see `pipec.simulate.memory`)."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pipec.schedule.acknowledgements import NONE, acknowledgements
from pipec.schedule.action import FROM_HOST, ActionKind
from pipec.schedule.channels import ChannelKind
from pipec.schedule.routes import Routes, routes_of
from pipec.schedule.schedule import Schedule
from pipec.schedule.tables import Tables
from pipec.simulate.memory import Memory, Spans, find_issue
from pipec.simulate.times import Float, Positions

_K, _C = ActionKind, ChannelKind


@dataclass(frozen=True, eq=False)
class HeldMemory:
    """What is held while a schedule runs.

    Attributes:
        schedule: What ran.
        at: Tables of the places of its actions.
        begin: When each action started.
        end: When it ended.
    """

    schedule: Schedule
    at: Tables
    begin: Float
    end: Float

    @cached_property
    def _routes(self) -> Routes:
        return routes_of(self.schedule)

    @cached_property
    def _until(self) -> Float:
        """End by position, or the end of all for positions that mean "nothing" or "missing"."""
        last = self.end.max(initial=0.0)
        return np.append(self.end, [last, last])

    @cached_property
    def _from(self) -> Float:
        return np.append(self.begin, [0.0, 0.0])

    @cached_property
    def _issued(self) -> Float:
        return np.append(find_issue(self.schedule, self.begin), [0.0, 0.0])

    @cached_property
    def _placed(self) -> Float:
        """As `find_issue`; what takes the place of what is leaving has it once that has left."""
        s, found = self.schedule, self._issued.copy()
        out, back = (
            rows[self.at.swaps[s.channel[rows]]]
            for rows in (self.at.rows(_K.OFFLOAD), self.at.rows(_K.FETCH))
        )
        if not (len(out) and len(back)):
            return found
        out, back = (rows[np.argsort(s.channel[rows], kind="stable")] for rows in (out, back))
        # the last copy out of the same slot that is issued before a copy back
        keys = (s.channel[rows].astype(np.int64) * len(s) + rows for rows in (out, back))
        at = np.searchsorted(*keys) - 1
        there = (at >= 0) & (s.channel[out[at]] == s.channel[back])
        first = there & (at != np.append(-1, at[:-1]))
        own, before = back[first], out[at[first]]
        takes = (s.device[before] == s.device[own]) & (self.end[before] > found[own])
        found[own[takes]] = self.end[before[takes]]
        return found

    def all(self, memory: Memory) -> list[Spans]:
        """Everything, with its bytes."""
        spans = [*self._messages(memory), self._workspace(memory)]
        if memory.weights:
            spans.append(self.weights(memory))
        spans += self._list_handed_over(memory)
        if memory.outputs:
            spans.append(self._outputs(memory))
        if self.schedule.training:
            spans += self.list_saved(memory)
            if memory.gradients or memory.optimizer:
                spans += self._gradients(memory)
        return spans

    def list_saved(self, memory: Memory) -> list[Spans]:
        """Saved values that stay on the device from F to the backward."""
        s = self.schedule
        stages = len(s.placement.forward)
        size = memory.of("saved", stages)
        for_w = size if memory.saved_for_w is None else memory.of("saved_for_w", stages)
        found = []
        for number, channel in enumerate(s.channels):
            if channel.kind is not _C.S:
                continue
            rows = self.at.forward[channel.src]
            message = np.flatnonzero(rows < len(s))
            turn = message % self._routes.period
            sender, receiver = self._routes.sender[number], self._routes.receiver[number]
            message = message[sender[turn] == receiver[turn]]
            rows = rows[message]
            first = self._until[self.at.backward[channel.dst, message]]
            last = self._until[self.at.final[channel.dst, message]]
            where, begin = s.device[rows], self.begin[rows]
            for end, share in ((first, size - for_w), (last, for_w)):
                bytes_ = np.full(len(rows), share[channel.src])
                found.append(Spans("activations", where, begin, end, bytes_))
        return found

    def in_flight(self) -> list[Spans]:
        """Microbatches whose saved values a device holds; with v stages each counts 1 / v.

        Where F and B run on one device, from F to the end of the backward; else until the
        saved values have left, and from when they begin to arrive.
        """
        s, found = self.schedule, []
        share = 1.0 / np.maximum([len(stages) for stages in s.list_stages()], 1)
        for number, c in enumerate(s.channels):
            if c.kind not in (_C.S, _C.H):
                continue
            message = np.flatnonzero(self.at.forward[c.src] < len(s))
            turn = message % self._routes.period
            src, dst = self._routes.sender[number][turn], self._routes.receiver[number][turn]
            forward = self.at.forward[c.src, message]
            final = self.at.final[c.dst, message]
            together = src == dst
            if c.kind is _C.S:
                pick = together
                ends_ = self.begin[forward[pick]], self._until[final[pick]]
                found.append(Spans("activations", src[pick], *ends_, share[src[pick]]))
            if together.all():
                continue
            left, came = self._ends_of_transfer(number, message, forward, final)
            alike = [o for o in s.channels if o.kind is c.kind]
            parts = sum(o.src == c.src for o in alike), sum(o.dst == c.dst for o in alike)
            apart = ~together
            spans = (
                (src, self.begin[forward], self._until[left], parts[0]),
                (dst, self._from[came], self._until[final], parts[1]),
            )
            for device, begin, end, links in spans:
                size = share[device[apart]] / links
                found.append(Spans("activations", device[apart], begin[apart], end[apart], size))
        return found

    def _ends_of_transfer(
        self, number: int, message: Positions, forward: Positions, final: Positions
    ) -> tuple[Positions, Positions]:
        """The actions with which saved values leave and arrive; F and B before these are in."""
        kind = self.schedule.channels[number].kind
        row = number - self.at.first[kind]
        left = self.at.messages(kind, kind.send)[row, message]
        came = self.at.messages(kind, kind.receive)[row, message]
        there = left < len(self.schedule)
        return np.where(there, left, forward), np.where(there, came, final)

    def _messages(self, memory: Memory) -> list[Spans]:
        """Values on their way: at the sender until sent, at the receiver until consumed.

        With a transport that posts receives ahead (`Memory.slots`), from the post; and until an
        reply proves that they came.
        """
        found = []
        posted = Posted(self.schedule, self.end, memory.slots) if memory.slots else None
        for kind in (_C.F, _C.B, _C.S, _C.H):
            sends = self.at.rows(kind.send)
            if not len(sends):
                continue
            s = self.schedule
            number, message = s.channel[sends], s.microbatch[sends]
            produced, consumed = self.at.ends(kind)
            source = produced[self.at.source[number], message]
            target = consumed[self.at.target[number], message]
            if kind in (_C.S, _C.H):
                target = self.at.final[self.at.target[number], message]
            received = self.at.messages(kind, kind.receive)
            arrival = received[number - self.at.first[kind], message]
            size = np.array([float(c.nbytes) for c in s.channels])[number]
            saved = kind in (_C.S, _C.H)
            name = "activations" if saved else "buffers"
            leaves = self._from[source] if saved else self._until[source]
            arrives = self._placed[arrival] if kind is _C.H else self.begin[sends]
            left, kept = self.end[sends], size
            if posted is not None and kind is not _C.H:
                arrives = np.append(posted.from_post, [0.0, 0.0])[arrival]
                left = posted.until_proven[sends]
                too = np.array([c.name in memory.saved_too for c in s.channels])
                kept = np.where(too[number], 0.0, size)
            there = np.append(s.device, [0, 0])[arrival]
            found.append(Spans(name, s.device[sends], leaves, left, kept))
            if kind is _C.H and memory.moved_for_w:
                for_w = [memory.moved_for_w.get(c.name, c.nbytes) for c in s.channels]
                first = self._until[self.at.backward[self.at.target[number], message]]
                let_go = size - np.array(for_w, dtype=np.float64)[number]
                found.append(Spans(name, there, arrives, first, let_go))
                size = size - let_go
            found.append(Spans(name, there, arrives, self._until[target], size))
        return found

    def _list_handed_over(self, memory: Memory) -> Iterator[Spans]:
        """Values whose two ends lie on one device, from one to the other."""
        for kind in (_C.F, _C.B):
            produced, consumed = self.at.ends(kind)
            for number, c in enumerate(self.schedule.channels):
                if c.kind is not kind or c.name in memory.saved_too:
                    continue
                source, target = produced[c.src], consumed[c.dst]
                message = np.flatnonzero((source < len(self.end)) & (target < len(self.end)))
                message = message[~self._routes.explicit[number, message % self._routes.period]]
                source, target = source[message], target[message]
                size = np.full(len(message), float(c.nbytes))
                where = self.schedule.device[source]
                yield Spans("buffers", where, self.end[source], self.end[target], size)

    def _workspace(self, memory: Memory) -> Spans:
        """What each action needs while it runs."""
        s = self.schedule
        rest, first = (memory.workspaces(s.stages, first=yes) for yes in (False, True))
        needed = np.asarray((rest + first).sum(axis=1) > 0)
        rows = np.flatnonzero(needed[s.kind])
        at = s.kind[rows], s.stage[rows]
        size = rest[at]
        if (first != rest).any():
            size = np.where(np.isin(rows, self._first_of_updates()), first[at], size)
        return Spans("activations", s.device[rows], self.begin[rows], self.end[rows], size)

    def _outputs(self, memory: Memory) -> Spans:
        """What a forward leaves with the caller."""
        size = memory.of("outputs", self.schedule.stages)[self.schedule.stage]
        rows = np.flatnonzero((self.schedule.kind == _K.F) & (size > 0))
        last = np.full(len(rows), self._until[-1])
        return Spans("activations", self.schedule.device[rows], self.end[rows], last, size[rows])

    def _first_of_updates(self) -> Positions:
        """The action of each (device, stage, update) that makes its gradients: its first B or W."""
        s = self.schedule
        rows = np.flatnonzero((s.kind == _K.B) | (s.kind == _K.W))
        rows = rows[np.argsort(self.begin[rows], kind="stable")]
        update = s.rule.update_of(s.microbatch[rows], self.at.replicas[s.stage[rows]])
        key = (update.astype(np.int64) * s.devices + s.device[rows]) * s.stages + s.stage[rows]
        return rows[np.unique(key, return_index=True)[1]]

    def _gradients(self, memory: Memory) -> list[Spans]:
        """Gradients from an update's first backward to its step; the optimizer's state always."""
        s = self.schedule
        rows = np.flatnonzero((s.kind == _K.B) | (s.kind == _K.I) | (s.kind == _K.W))
        steps = self.at.rows(_K.STEP)
        into = s.rule.update_of(s.microbatch[rows], self.at.replicas[s.stage[rows]])
        update = np.concatenate([into, s.version[steps]])
        found = _Groups.of(s, np.concatenate([rows, steps]), update)
        size = memory.of("gradients", s.stages)[found.stage]
        begin, end = found.first(self.begin), found.last(self.end)
        owner, stage = np.array(
            [(d, n) for n, devices in enumerate(s.placement.backward) for d in devices]
        ).T
        share = memory.shares([len(devices) for devices in s.placement.backward])
        optimizer = memory.of("optimizer", s.stages)[stage] * share
        always = np.zeros(len(owner)), np.full(len(owner), self._until[-1])
        if memory.state_waits:
            at = dict(zip(zip(owner.tolist(), stage.tolist(), strict=True), optimizer, strict=True))
            rows, always = self._state_there(steps)
            owner = s.device[rows]
            pairs = zip(owner.tolist(), s.stage[rows].tolist(), strict=True)
            optimizer = np.array([at[pair] for pair in pairs])
        return [
            Spans("gradients", found.device, begin, end, size),
            Spans("optimizer", owner, *always, optimizer),
        ]

    def _state_there(self, steps: Positions) -> tuple[Positions, tuple[Float, Float]]:
        """Actions of stages, and from when to when the state that else waits is there for them."""
        s = self.schedule
        if not s.state_beside:
            return steps, (self.begin[steps], self.end[steps])
        left, come = self.at.rows(_K.OFFLOAD_O), self.at.rows(_K.FETCH_O)
        left = left[s.version[left] == 1]  # there from the begin
        away = np.pad(self.at.updates(_K.OFFLOAD_O), ((0, 0), (0, 0), (0, 1)))
        away[..., -1] = self.at.missing
        until = away[s.stage[come], s.replica[come], s.version[come] + 1]
        begin = np.concatenate([self._issued[come], np.zeros(len(left))])
        return np.concatenate([come, left]), (begin, self._until[np.concatenate([until, left])])

    def weights(self, memory: Memory) -> Spans:
        """Versions alive: from when one is made until its last use and the next one is made."""
        s = self.schedule
        users = np.flatnonzero(s.kind <= _K.W)
        makers = np.flatnonzero((s.kind == _K.STEP) | (s.kind == _K.RECV_W))
        rows = np.concatenate([users, makers])
        found = _Groups.of(s, rows, s.version[rows])
        begin, end = found.first(self.begin), found.last(self.end)
        made = np.arange(len(users), len(rows))
        maker_end = found.last(self.end, made)
        begin = np.where(np.isfinite(maker_end), maker_end, begin)
        begin[found.index == 0] = 0.0
        newer = (np.diff(found.device, append=-1) == 0) & (np.diff(found.stage, append=-1) == 0)
        until = np.where(newer, np.append(begin[1:], 0.0), self._until[-1])
        size = memory.of("weights", s.stages)[found.stage]
        return Spans("weights", found.device, begin, np.maximum(end, until), size)


@dataclass(frozen=True, eq=False)
class _Groups:
    """Actions grouped by device, stage and an index such as the weight version, ascending."""

    rows: Positions
    device: Positions
    stage: Positions
    index: Positions
    member: Positions

    @classmethod
    def of(cls, schedule: Schedule, rows: Positions, index: Positions) -> "_Groups":
        """Group the actions at ``rows``."""
        width = int(index.max(initial=0)) + 1
        key = schedule.device[rows].astype(np.int64) * schedule.stages + schedule.stage[rows]
        found, member = np.unique(key * width + index, return_inverse=True)
        place, number = np.divmod(found, width)
        device, stage = np.divmod(place, schedule.stages)
        return cls(rows, device, stage, number, member)

    def first(self, time: Float) -> Float:
        """The earliest time of each group."""
        out = np.full(len(self.index), np.inf)
        np.minimum.at(out, self.member, time[self.rows])
        return out

    def last(self, time: Float, only: Positions | None = None) -> Float:
        """The latest time of each group, among some members; -inf without any."""
        out = np.full(len(self.index), -np.inf)
        pick = slice(None) if only is None else only
        np.maximum.at(out, self.member[pick], time[self.rows[pick]])
        return out


_BESIDE = (*(c.send for c in ChannelKind), *FROM_HOST, _K.OFFLOAD_O)
"""What a device's row does not wait for."""


@dataclass(frozen=True, eq=False)
class Posted:
    """Buffers of a transport that posts receives ahead and keeps what it sent until that is proven.

    ```text
    receiver   buffer       from its post, up to ``slots`` of a channel ahead of the row
    sender     kept value   until a message comes back that its receiver sent after taking the value
    ```

    Receives are posted in the order of the row. They wait for a channel without a free slot, and
    with them all that come later (`pipec.runtime.process_group` does the same).

    Attributes:
        schedule: What ran.
        end: When each action ended.
        slots: Receives of one channel that are posted ahead.
    """

    schedule: Schedule
    end: Float
    slots: int

    @cached_property
    def from_post(self) -> Float:
        """By position of a receive, when its buffer is posted."""
        s, found = self.schedule, np.zeros(len(self.schedule))
        receives = np.isin(s.kind, [c.receive for c in ChannelKind if c is not ChannelKind.H])
        for device in range(s.devices):
            begin, end = s.device_ptr[device : device + 2]
            rows = begin + np.flatnonzero(receives[begin:end])
            freed = np.zeros(len(rows), np.int64)  # behind so many receives a slot is free
            for channel in np.unique(s.channel[rows]):
                own = np.flatnonzero(s.channel[rows] == channel)
                freed[own[self.slots :]] = own[: -self.slots] + 1
            taken = np.append(0.0, self._reached[rows])
            found[rows] = taken[np.maximum.accumulate(freed)]
        return found

    @cached_property
    def until_proven(self) -> Float:
        """By position of a send, when its acknowledgement comes; else the end of all."""
        proof = acknowledgements(self.schedule)
        taken = np.maximum(self._reached, self.end)
        return np.where(proof == NONE, self.end.max(initial=0.0), taken[proof])

    @cached_property
    def _reached(self) -> Float:
        """When each device's row gets to an action: all before it but sends and copies are done."""
        s = self.schedule
        before = np.where(np.isin(s.kind, _BESIDE), 0.0, self.end)
        found = np.zeros(len(s))
        for begin, end in zip(s.device_ptr[:-1], s.device_ptr[1:], strict=True):
            found[begin + 1 : end] = np.maximum.accumulate(before[begin:end])[:-1]
        return found
