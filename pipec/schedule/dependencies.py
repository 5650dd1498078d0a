"""Who waits for whom: the only place that knows; verifier, simulator and executor read it.

```text
F   (s, m, v)  the activations of m from every stage before   (F there, or RECV_F here)
               version v                                      (STEP@v here, or RECV_W@v)
               room for its saved values                      (OFFLOAD of an older microbatch)
B I (s, m, v)  the gradients of m from every stage behind     (B or I there, or RECV_B here)
               the saved values of m                          (F here, RECV_S or FETCH here)
               version v, where steps run here                (STEP@v)
W   (s, m)     I of m
SEND_x         what produces the value; with depth n, the consumer of the message n before
RECV_x         SEND_x; at depth 0 both start together
OFFLOAD        F of m
FETCH          OFFLOAD of m, and the compute action before it in its row, with whose end it is
               issued; with depth n, the consumer of the message n before; in place
               (`Channel.in_place`), the last OFFLOAD before it in its row
REDUCE_GRAD@v  the last backward of update v on every replica; all replicas start together.
               Overlapped, it starts with that backward and runs beside it, bucket by bucket
STEP@v         the last backward of update v here, and REDUCE_GRAD@v where there are replicas;
               joint: all else of every device of its set that steps wait for (`Dependencies`);
               FETCH_O@v where the optimizer's state waits in host memory
OFFLOAD_O@v    STEP of the version before; the compute action that is `Schedule.state_beside`
               behind it in its row waits for it
FETCH_O@v      OFFLOAD_O@v, and the compute action before it in its row
SEND_W@v       STEP@v
```

Besides, every action waits for the one before it on its lane (`pipec.schedule.lanes`).
"""

from dataclasses import dataclass

import numpy as np

from pipec.schedule.action import COMPUTE, Action, ActionKind
from pipec.schedule.channels import ChannelKind
from pipec.schedule.lanes import assign_lanes, previous_in_lane
from pipec.schedule.routes import routes_of
from pipec.schedule.schedule import Int32, Int64, Schedule
from pipec.schedule.tables import Tables

_K = ActionKind
_C = ChannelKind


@dataclass(frozen=True)
class Dependencies:
    """What every action waits for.

    Attributes:
        columns: Arrays of the schedule's length n; entry i of each is an action that action i
            waits for, or n (nothing to wait for), or n + 1 (an action that is missing).
        joint: Per set of devices that step together (`Schedule.joint`), the positions of their
            steps, and of what each of these waits for: the last backward, REDUCE_GRAD and FETCH_O
            of every device. Nothing waits for these steps but what stands behind them.
    """

    columns: tuple[Int32, ...]
    joint: tuple[tuple[Int64, Int64], ...] = ()

    def of(self, index: int) -> list[int]:
        """The positions that one action waits for; n + 1 among them if one is missing."""
        n = len(self.columns[0]) if self.columns else 0
        found = [int(c[index]) for c in self.columns if c[index] != n]
        more = [awaited.tolist() for steps, awaited in self.joint if index in steps]
        return [*found, *(k for positions in more for k in positions if k not in found)]


def dependencies(schedule: Schedule) -> Dependencies:
    """All the waiting of a schedule, except for the order of each lane.

    Example:
        >>> from pipec.schedule.registry import generate
        >>> s = generate("gpipe", stages=2, microbatches=1)
        >>> [(str(s[i]), [str(s[j]) for j in dependencies(s).of(i)]) for i in range(len(s))]
        [('0F0', []), ('0B0', ['1B0', '0F0']), ('1F0', ['0F0']), ('1B0', ['1F0'])]
    """
    rules = _Rules(schedule)
    for channel in (_C.F, _C.B, _C.S, _C.H):
        rules.values(channel)
    rules.weight_gradients()
    rules.versions()
    rules.steps()
    rules.state()
    return Dependencies(tuple(rules.columns), rules.joint())


def waits_for(schedule: Schedule, index: int) -> list[Action]:
    """The actions that the one at ``index`` waits for (see `dependencies`)."""
    n = len(schedule)
    return [schedule[i] for i in dependencies(schedule).of(index) if i < n]


class _Rules:
    """Fills the columns, one rule of the table above at a time."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.routes = routes_of(schedule)
        self.at = Tables(schedule)
        self.columns: list[Int32] = []
        self._used: dict[ActionKind, int] = {}

    def add(self, kind: ActionKind, rows: np.ndarray, awaited: np.ndarray) -> None:
        """Let the actions at ``rows``, all of one kind, wait for ``awaited`` too."""
        if not len(rows) or (awaited == self.at.nothing).all():
            return
        column = self._used.setdefault(kind, 0)
        self._used[kind] += 1
        if column == len(self.columns):
            empty = np.full(len(self.schedule), self.at.nothing, dtype=np.int32)
            self.columns.append(empty)
        self.columns[column][rows] = awaited

    def values(self, channel: ChannelKind) -> None:
        """Consumers of a kind of channel wait for what is sent, and its messages for them."""
        produced, consumed = self.at.ends(channel)
        received = self.at.messages(channel, channel.receive)
        incoming = self.routes.incoming(channel)
        for kind in (_K.F,) if channel is _C.F else (_K.B, _K.I):
            rows = self.at.rows(kind)
            cells = self.at.cells(rows)
            for column in incoming.T if len(rows) else ():
                self.add(kind, rows, self._brought(channel, column, produced, received).take(cells))
        self._transfers(channel, produced, consumed, received)

    def _brought(
        self, channel: ChannelKind, numbers: Int32, produced: Int32, received: Int32
    ) -> Int32:
        """What brings each stage's value of one channel, or -1; by (stage, microbatch)."""
        number = np.where(numbers < 0, self.at.first[channel], numbers)
        explicit = self.routes.explicit[number]
        if self.routes.period > 1:
            explicit = explicit[:, np.arange(self.schedule.microbatches) % self.routes.period]
        local = produced[self.at.source[number]]
        brought = np.where(explicit, received[number - self.at.first[channel]], local)
        brought[numbers < 0] = self.at.nothing
        return brought

    def _transfers(
        self, channel: ChannelKind, produced: Int32, consumed: Int32, received: Int32
    ) -> None:
        sends, receives = self.at.rows(channel.send), self.at.rows(channel.receive)
        if not len(sends) and not len(receives):
            return
        numbers = self.at.numbers(channel)
        sent = self.at.messages(channel, channel.send)
        made = produced[self.at.source[numbers]]
        self.add(channel.send, sends, made.take(self.at.letters(channel, sends)))
        sender = sent.take(self.at.letters(channel, receives))
        meets = self.at.depth[numbers] == 0
        if meets.any():
            meets = meets[self.schedule.channel[receives] - numbers.start]
            self.add(channel.receive, receives, np.where(meets, self.at.nothing, sender))
            self._rendezvous(channel, produced, sent, received)
        else:
            self.add(channel.receive, receives, sender)
        if channel is _C.H:
            self._host_slots(sends, receives)
        elif (self.at.depth[numbers] < self.schedule.microbatches).any():
            self.add(channel.send, sends, self._consumer(consumed, self._find_earlier(sends)))

    def _rendezvous(
        self, channel: ChannelKind, produced: Int32, sent: Int32, received: Int32
    ) -> None:
        """Both ends wait for the producer and for what stands before the other end."""
        s, first, before = self.schedule, self.at.first[channel], self._before()
        for kind, other in ((channel.send, received), (channel.receive, sent)):
            rows = self.at.rows(kind)
            rows = rows[self.at.depth[s.channel[rows]] == 0]
            message = s.channel[rows] - first, s.microbatch[rows]
            self.add(kind, rows, before[other[message]])
            if kind is channel.receive:
                source = self.at.source[s.channel[rows]]
                self.add(kind, rows, produced[source, s.microbatch[rows]])

    def _before(self) -> np.ndarray:
        """What stands before an action on its lane; nothing and missing stay what they are."""
        ends = np.array([self.at.nothing, self.at.missing], dtype=np.int32)
        return np.append(previous_in_lane(assign_lanes(self.schedule)), ends)

    def _consumer(self, consumed: Int32, messages: np.ndarray) -> np.ndarray:
        """What uses the value of each message; nothing for the message -1."""
        s, found = self.schedule, np.full(len(messages), self.at.nothing)
        there = messages[messages >= 0]
        found[messages >= 0] = consumed[self.at.target[s.channel[there]], s.microbatch[there]]
        return found

    def _host_slots(self, copies_out: np.ndarray, copies_in: np.ndarray) -> None:
        """F waits for an old copy out, FETCH for the backward that used an old copy in."""
        s = self.schedule
        used = self._consumer(self.at.backward, self._find_earlier(copies_in))
        self.add(_K.FETCH, copies_in, used)
        self.add(_K.FETCH, copies_in, self._find_issuer(copies_in))
        if self.at.swaps.any():
            self.add(_K.FETCH, copies_in, self._find_swapped(copies_out, copies_in))
        earlier = self._find_earlier(copies_out)
        waiting = copies_out[earlier >= 0]
        forward = self.at.forward[self.at.source[s.channel[waiting]], s.microbatch[waiting]]
        for slot in self.routes.outgoing(_C.H).T:  # the first slot of every stage, the second ...
            in_slot = slot[self.at.source[s.channel[waiting]]] == s.channel[waiting]
            in_slot &= forward < len(s)
            self.add(_K.F, forward[in_slot], earlier[earlier >= 0][in_slot])

    def _find_swapped(self, copies_out: np.ndarray, copies_in: np.ndarray) -> np.ndarray:
        """Of each fetch in place the last copy out of its slot before it in its row."""
        s, found = self.schedule, np.full(len(copies_in), self.at.nothing)
        for number in np.flatnonzero(self.at.swaps).tolist():
            rows = np.flatnonzero(s.channel[copies_in] == number)
            out = copies_out[s.channel[copies_out] == number]
            at = np.searchsorted(out, copies_in[rows]) - 1
            before = out[np.maximum(at, 0)]
            same_row = s.device[before] == s.device[copies_in[rows]]
            found[rows] = np.where((at >= 0) & same_row, before, self.at.nothing)
        return found

    def _find_issuer(self, rows: np.ndarray) -> np.ndarray:
        """The compute action that stands before each of ``rows`` on its device."""
        s = self.schedule
        compute = np.where(s.kind <= _K.W, np.arange(len(s)), -1)
        before = np.maximum.accumulate(compute)[rows]
        return np.where(before < s.device_ptr[s.device[rows]], self.at.nothing, before)

    def _find_earlier(self, rows: np.ndarray) -> np.ndarray:
        """Of each message at ``rows`` the one that its slot held before, or -1."""
        s = self.schedule
        depth = self.at.depth[s.channel[rows]]
        if not ((depth > 0) & (depth < s.microbatches)).any():
            return np.full(len(rows), -1)
        period = self.routes.period
        pair = s.channel[rows].astype(np.int64) * period + s.microbatch[rows] % period
        order = np.argsort(pair, kind="stable")
        begins = np.flatnonzero(np.diff(pair[order], prepend=-1))
        begin = np.repeat(begins, np.diff(np.append(begins, len(order))))
        back = np.arange(len(order)) - depth[order]
        fits = (depth[order] > 0) & (back >= begin)
        earlier = np.full(len(rows), -1)
        earlier[order] = np.where(fits, rows[order[np.where(fits, back, 0)]], -1)
        return earlier

    def weight_gradients(self) -> None:
        """W waits for I."""
        rows = self.at.rows(_K.W)
        if len(rows):
            self.add(_K.W, rows, self.at.input_gradient.take(self.at.cells(rows)))

    def versions(self) -> None:
        """F, B and I wait for the weights that they use, once steps are in the schedule."""
        if "steps" not in self.schedule.inserted:
            return
        s, stepped = self.schedule, self.at.updates(_K.STEP)
        for kind in (_K.B, _K.I):
            rows = self.at.rows(kind)
            rows = rows[s.version[rows] > 0]
            self.add(kind, rows, stepped[s.stage[rows], s.replica[rows], s.version[rows]])
        received = self.at.weights(_K.RECV_W)
        rows = self.at.rows(_K.F)
        rows = rows[s.version[rows] > 0]
        for column in self.routes.incoming(_C.W).T:
            absent = column[s.stage[rows]] < 0
            number = np.where(absent, self.at.first[_C.W], column[s.stage[rows]])
            replica, version = s.replica[rows], s.version[rows]
            awaited = np.where(
                self.routes.explicit[number, replica % self.routes.period],
                received[number - self.at.first[_C.W], replica, version],
                stepped[self.at.source[number], replica, version],
            )
            self.add(_K.F, rows, np.where(absent, self.at.nothing, awaited))
        self._publish(stepped)

    def _publish(self, stepped: Int32) -> None:
        s, first = self.schedule, self.at.first[_C.W]
        rows = self.at.rows(_K.SEND_W)
        if len(rows):
            stage = self.at.source[s.channel[rows]]
            replica = s.replica[rows] % self.at.replicas[stage]
            self.add(_K.SEND_W, rows, stepped[stage, replica, s.version[rows]])
        sent, rows = self.at.weights(_K.SEND_W), self.at.rows(_K.RECV_W)
        if len(rows):
            message = s.channel[rows] - first, s.replica[rows], s.version[rows]
            self.add(_K.RECV_W, rows, sent[message])

    def steps(self) -> None:
        """STEP waits for the gradients of its update, summed over the replicas if reduced."""
        s, rows = self.schedule, self.at.rows(_K.STEP)
        reductions = self.at.rows(_K.REDUCE_GRAD)
        if not len(rows) and not len(reductions):
            return
        last = self.at.last_backward
        reduced = self.at.updates(_K.REDUCE_GRAD)
        where = s.stage[rows], s.replica[rows], s.version[rows]
        shared = (self.at.replicas[s.stage[rows]] > 1) & ("reduce" in s.inserted)
        self.add(_K.STEP, rows, last[where])
        self.add(_K.STEP, rows, np.where(shared, reduced[where], self.at.nothing))
        self._together(reductions, reduced, last)

    def state(self) -> None:
        """The optimizer's state leaves behind a step, and is there again for the next."""
        s = self.schedule
        left, come, steps = map(self.at.rows, (_K.OFFLOAD_O, _K.FETCH_O, _K.STEP))
        if not s.state_beside:
            return
        stepped, away, back = map(self.at.updates, (_K.STEP, _K.OFFLOAD_O, _K.FETCH_O))
        before = stepped[s.stage[left], s.replica[left], s.version[left] - 1]
        self.add(_K.OFFLOAD_O, left, np.where(s.version[left] > 1, before, self.at.nothing))
        self.add(_K.FETCH_O, come, away[s.stage[come], s.replica[come], s.version[come]])
        self.add(_K.FETCH_O, come, self._find_issuer(come))
        self.add(_K.STEP, steps, back[s.stage[steps], s.replica[steps], s.version[steps]])
        compute = np.append(np.flatnonzero(s.kind <= _K.W), len(s))
        turn = np.searchsorted(compute, left) + s.state_beside
        waits = compute[np.minimum(turn, len(compute) - 1)]
        here = np.append(s.device, -1)[waits] == s.device[left]
        for kind in COMPUTE:  # of several that stand at one place the last one counts
            own = here & (np.append(s.kind, -1)[waits] == kind)
            self.add(kind, waits[own], left[own])

    def joint(self) -> tuple[tuple[Int64, Int64], ...]:
        """Steps of devices that step together, and the last of what each device does before."""
        s, found = self.schedule, list[tuple[Int64, Int64]]()
        for group in s.joint:
            there, awaited = np.isin(s.device, group), list[Int64]()
            for kinds in ((_K.B, _K.W), (_K.REDUCE_GRAD,), (_K.FETCH_O,)):
                rows = np.flatnonzero(np.isin(s.kind, kinds) & there)
                ends = np.flatnonzero(np.diff(s.device[rows], append=-1))
                awaited.append(rows[ends])
            found.append((np.flatnonzero((s.kind == _K.STEP) & there), np.concatenate(awaited)))
        return tuple((steps, awaited) for steps, awaited in found if len(steps) and len(awaited))

    def _together(self, rows: np.ndarray, reduced: Int32, last: Int32) -> None:
        if not len(rows):
            return
        s = self.schedule
        before, beside = self._before(), s.lanes.reduce == "overlap"
        ends = np.array([self.at.nothing, self.at.missing], dtype=np.int32)
        starts = [*(np.append(c, ends) for c in self.columns), before] if beside else []
        for replica in range(int(self.at.replicas.max())):
            other = s.stage[rows], np.full(len(rows), replica), s.version[rows]
            absent = replica >= self.at.replicas[s.stage[rows]]
            gradients = [c[last[other]] for c in starts] if beside else [last[other]]
            for awaited in (*gradients, before[reduced[other]]):
                self.add(_K.REDUCE_GRAD, rows, np.where(absent, self.at.nothing, awaited))
