"""An order made from costs: list scheduling under many rules, judged against a lower bound.

A generator writes the same order whatever the stages cost. Here every device, as soon as it is
free, takes one of the actions whose inputs have arrived; a *rule* says which, and how many
microbatches a stage may have under way. Several hundred rules are played, the fastest stays.

Microbatches cost the same, so that an optimal order exists in which every stage takes them in
turn; only F, I and W are interleaved. Release times and tails of all actions follow, and for each
device Jackson's preemptive schedule gives a time below which no order ends (Carlier, EJOR 1982).
"""

import heapq
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, product
from math import inf

from pipec.errors import ScheduleError
from pipec.schedule.action import ActionKind

F, I, W = range(3)  # noqa: E741
KINDS = (ActionKind.F, ActionKind.I, ActionKind.W)
Rows = Sequence[Sequence[tuple[int, int]]]
"""(F, I or W, stage) in order, per device; the I of costs without W is the whole backward."""
_EPSILON = 1e-9
WORK = 1_500_000
"""Actions that are played in a search, of all rules together; two or three seconds."""
MOST = 600_000
"""Most actions of one order."""


@dataclass(frozen=True)
class StageCosts:
    """What an order has to know; any unit of time and of memory will do.

    Attributes:
        forward: Seconds of F, per stage.
        input_gradient: Seconds of I, per stage; of B where ``weight_gradient`` is empty.
        weight_gradient: Seconds of W, per stage; empty: the backward is one action.
        transfer: Seconds between stage s and s + 1, either way; 0 on one device.
        saved: Bytes that a microbatch keeps from F to the end of its backward, per stage.
        saved_for_w: The part that is still there between I and W, per stage.
        limits: Most of these bytes, per device.
    """

    forward: Sequence[float]
    input_gradient: Sequence[float]
    weight_gradient: Sequence[float]
    transfer: Sequence[float]
    saved: Sequence[float]
    saved_for_w: Sequence[float]
    limits: Sequence[float]

    @property
    def seconds(self) -> tuple[Sequence[float], ...]:
        """Of F, I and W, per stage; W may be missing."""
        split = (self.weight_gradient,) if self.weight_gradient else ()
        return (self.forward, self.input_gradient, *split)

    def round_trips(self) -> list[float]:
        """From the start of F to the end of I of one microbatch, per stage."""
        found: list[float] = []
        for s in reversed(range(len(self.forward))):
            behind = 2 * self.transfer[s] + found[-1] if found else 0.0
            found.append(self.forward[s] + behind + self.input_gradient[s])
        return found[::-1]


@dataclass(frozen=True)
class Rule:
    """What a free device takes.

    Attributes:
        ahead: Most microbatches between F and I, per stage.
        patience: A W is begun only where this share of it fits before the next arrival that is
            known, per stage; negative: right behind its I.
        forward_first: Whether F goes before I where both could run, per stage.
    """

    ahead: tuple[float, ...]
    patience: tuple[float, ...]
    forward_first: tuple[bool, ...]


@dataclass(frozen=True)
class Order:
    """An order as it was played.

    Attributes:
        rows: Rows of (stage, kind, microbatch), one per device.
        seconds: When the last of them ends.
        held: Most bytes saved at a time, of all devices together.
    """

    rows: tuple[tuple[tuple[int, ActionKind, int], ...], ...]
    seconds: float
    held: float


class _Simulation:
    """One run of all devices under one rule."""

    def __init__(
        self, costs: StageCosts, device: Sequence[int], count: int, rule: Rule, most: float
    ) -> None:
        stages, self.most = len(device), most
        self.costs, self.device, self.count, self.rule = costs, device, count, rule
        self.limits = [limit * (1 + _EPSILON) for limit in costs.limits]  # sums are rounded
        self.seconds = costs.seconds
        self.held = [[s for s in range(stages) if device[s] == d] for d in range(max(device) + 1)]
        self.done = [[0] * stages for _ in self.seconds]
        self.arrived: list[list[list[float]]] = [[[] for _ in device] for _ in range(2)]
        self.arrived[F][0] = [0.0] * count
        self.used = [0.0] * len(self.held)
        self.peak = [0.0] * len(self.held)
        self.rows: list[list[tuple[int, ActionKind, int]]] = [[] for _ in self.held]
        self.free = [0.0] * len(self.held)
        self.left = [
            count * sum(row[s] for row in self.seconds for s in held) * (1 - _EPSILON)
            for held in self.held
        ]
        self.events = [(0.0, d) for d in range(len(self.held))]
        self.sent: dict[tuple[int, int], float] = {}  # when a link is free again

    def order(self) -> Order | None:
        """All devices to their ends; None if memory or the rule lets them wait for ever.

        Also None as soon as what a device has left must end later than what is asked for.
        """
        end = 0.0
        while self.events:
            now, d = heapq.heappop(self.events)
            if self.free[d] > now:
                continue
            kind, stage, later = self._choice(d, now)
            if kind >= 0:
                if now + self.left[d] > self.most:
                    return None
                self.left[d] -= self.seconds[kind][stage]
                later = self.free[d] = now + self.seconds[kind][stage]
                end = max(end, later)
                self._finish(kind, stage, later)
            if later < inf:
                heapq.heappush(self.events, (later, d))
        left = any(n < self.count for counts in self.done for n in counts)
        return None if left else Order(tuple(map(tuple, self.rows)), end, sum(self.peak))

    def _choice(self, d: int, now: float) -> tuple[int, int, float]:
        """What the device takes: kind and stage; or -1 and when it should look again."""
        due = self._find_due(d)
        if due >= 0 and self.rule.patience[due] < 0:
            return W, due, now
        best: tuple[float, float, int, int] | None = None
        later, full = inf, False
        for s in self.held[d]:
            for kind in (I, F):
                n, rule = self.done[kind][s], self.rule
                if n == len(self.arrived[kind][s]):
                    continue
                if kind == F and n - self.done[I][s] >= rule.ahead[s]:
                    continue
                if kind == F and self.used[d] + self.costs.saved[s] > self.limits[d]:
                    full = True
                    continue
                arrival = self.arrived[kind][s][n]
                if arrival > now:
                    later = min(later, arrival)
                    continue
                place = ((kind == F) != rule.forward_first[s], arrival, -s, kind)
                best = place if best is None or place < best else best
        if best is not None:
            return best[3], -best[2], now
        if due >= 0 and (full or later - now >= self.rule.patience[due] * self.seconds[W][due]):
            return W, due, now
        return -1, -1, later

    def _find_due(self, d: int) -> int:
        """The stage of the device with most to gain from a W; -1 if none is due."""
        if len(self.seconds) == 2:
            return -1
        due = [s for s in self.held[d] if self.done[W][s] < self.done[I][s]]
        return max(due, key=lambda s: self.done[I][s] - self.done[W][s], default=-1)

    def _finish(self, kind: int, s: int, end: float) -> None:
        """What the end of an action changes: memory, and what the neighbours may begin."""
        d, last = self.device[s], len(self.device) - 1
        name = ActionKind.B if kind == I and len(self.seconds) == 2 else KINDS[kind]
        self.rows[d].append((s, name, self.done[kind][s]))
        self.done[kind][s] += 1
        left = self.costs.saved_for_w[s] if len(self.seconds) == 3 else 0.0
        self.used[d] += (self.costs.saved[s], left - self.costs.saved[s], -left)[kind]
        self.peak[d] = max(self.peak[d], self.used[d])
        if kind == F and s < last:
            self._send(F, s, s + 1, end)
        elif kind == F:
            self.arrived[I][s].append(end)
        elif kind == I and s:
            self._send(I, s, s - 1, end)

    def _send(self, kind: int, src: int, s: int, when: float) -> None:
        """Hand a value on: each direction of a link carries one at a time."""
        way, seconds = (self.device[src], self.device[s]), self.costs.transfer[min(src, s)]
        if seconds:
            when = self.sent[way] = max(when, self.sent.get(way, 0.0)) + seconds
        self.arrived[kind][s].append(when)
        heapq.heappush(self.events, (max(when, self.free[self.device[s]]), self.device[s]))


class _Replay(_Simulation):
    """One run of rows that are given."""

    def __init__(
        self, costs: StageCosts, device: Sequence[int], count: int, rows: Rows, most: float
    ) -> None:
        super().__init__(costs, device, count, Rule((), (), ()), most)
        self.given = rows

    def _choice(self, d: int, now: float) -> tuple[int, int, float]:
        if len(self.rows[d]) == len(self.given[d]):
            return -1, -1, inf
        kind, s = self.given[d][len(self.rows[d])]
        n = self.done[kind][s]
        full = kind == F and self.used[d] + self.costs.saved[s] > self.limits[d]
        if full or (kind != W and n == len(self.arrived[kind][s])):
            return -1, -1, inf
        arrival = now if kind == W else self.arrived[kind][s][n]
        return (kind, s, now) if arrival <= now else (-1, -1, arrival)


def synthesize(
    costs: StageCosts, device: Sequence[int], microbatches: int, known: Iterable[Rows] = ()
) -> Order:
    """The fastest order that was found, and none of those that are known is faster.

    Raises:
        ScheduleError: None was found that keeps the limits.
    """
    actions = len(costs.seconds) * len(device) * microbatches
    if actions > MOST:
        raise ScheduleError("the order is too large to search", got=actions, want=f"{MOST} actions")
    enough = least_seconds(costs, device, microbatches) * (1 + _EPSILON)
    found: list[tuple[Order, Rule]] = []  # the best so far is the last
    rules = chain(_rules(costs, device, microbatches), _changes(found))
    for rule in islice(rules, min(max(8, WORK // actions), 450)):
        most = found[-1][0].seconds if found else inf
        order = _Simulation(costs, device, microbatches, rule, most).order()
        if order is not None and order.seconds <= most:
            found.append((order, rule))
            if order.seconds <= enough:
                break
    orders = [order for order, _ in found]
    for rows in known:
        most = orders[-1].seconds if orders else inf
        order = _Replay(costs, device, microbatches, rows, most).order()
        orders += [order] if order is not None and order.seconds <= most else []
    if not orders:
        raise ScheduleError(
            "no order keeps the limits of memory",
            got=f"{len(device)} stages, {microbatches} microbatches",
            hint="smaller microbatches, recomputation, or more devices",
        )
    fastest = orders[-1].seconds * (1 + _EPSILON)
    return min((o for o in orders if o.seconds <= fastest), key=lambda o: o.held)


def _changes(found: list[tuple[Order, Rule]]) -> Iterator[Rule]:
    """Changes of the best rule so far, for ever; none where there is no such rule."""
    draw = random.Random(0)  # noqa: S311 - the same order every time
    while found:
        yield _change(found[-1][1], draw)


def _rules(costs: StageCosts, device: Sequence[int], count: int) -> Iterator[Rule]:
    """Uniform rules: as many ahead as hide the way round at the slowest device's pace, and more."""
    stages = len(device)
    pace = max(
        sum(row[s] for row in costs.seconds for s in range(stages) if device[s] == d)
        for d in set(device)
    )
    hidden = [time / pace if pace else 1.0 for time in costs.round_trips()]
    for patience, first, more in product(
        (0.0, -1.0, 0.5, 1.0), (False, True), (None, 1, 2, 3, 4, 5, 7, count)
    ):
        ahead = tuple(1.0 if more is None else min(n + more, count) for n in hidden)
        yield Rule(ahead, (patience,) * stages, (first,) * stages)


def _change(rule: Rule, draw: random.Random) -> Rule:
    """The rule with another choice for one to four stages."""
    ahead, patience, first = list(rule.ahead), list(rule.patience), list(rule.forward_first)
    for _ in range(draw.choice((1, 1, 2, 4))):
        s, what = draw.randrange(len(ahead)), draw.random()
        if what < 0.5:
            ahead[s] = max(1.0, ahead[s] + draw.choice((-2, -1, 1, 2)))
        elif what < 0.8:
            patience[s] = draw.choice((-1.0, 0.0, 0.25, 0.5, 0.75, 1.0, 1.5))
        else:
            first[s] = not first[s]
    return replace(rule, ahead=tuple(ahead), patience=tuple(patience), forward_first=tuple(first))


def least_seconds(costs: StageCosts, device: Sequence[int], microbatches: int) -> float:
    """A time below which no order of these actions ends, whatever it interleaves."""
    waits = list(_waits(costs, device, microbatches))
    took = [seconds for row in costs.seconds for s in row for seconds in [s] * microbatches]
    release, tail = [0.0] * len(took), [0.0] * len(took)
    for action, before in waits:
        release[action] = max((release[b] + took[b] + lag for b, lag in before), default=0.0)
    for action, before in reversed(waits):
        for b, lag in before:
            tail[b] = max(tail[b], lag + took[action] + tail[action])
    found = 0.0
    for d in set(device):
        own = [k for k in range(len(took)) if device[k // microbatches % len(device)] == d]
        found = max(found, _preemptive([(release[k], took[k], tail[k]) for k in own]))
    return found


def _under_way(costs: StageCosts, device: Sequence[int], s: int, count: int) -> int:
    """Most microbatches between F and I that the memory of a stage's device holds."""
    room, size = costs.limits[device[s]], costs.saved[s]
    return count if size * count <= room else max(1, int(room / size + _EPSILON))


def _waits(
    costs: StageCosts, device: Sequence[int], count: int
) -> Iterator[tuple[int, list[tuple[int, float]]]]:
    """Every action, behind those that it waits for: these, and the seconds in between.

    Actions are numbered by kind, stage and microbatch.
    """
    stages, hop = len(device), costs.transfer
    room = [_under_way(costs, device, s, count) for s in range(stages)]

    def number(kind: int, s: int, m: int) -> int:
        return (kind * stages + s) * count + m

    for m in range(count):
        for s in range(stages):
            before = [(number(F, s - 1, m), hop[s - 1])] if s else []
            before += [(number(I, s, m - room[s]), 0.0)] * (m >= room[s])
            yield number(F, s, m), before + [(number(F, s, m - 1), 0.0)] * (m > 0)
        for s in reversed(range(stages)):
            before = [(number(I, s + 1, m), hop[s])] if s < stages - 1 else []
            before += [(number(F, s, m), 0.0), *[(number(I, s, m - 1), 0.0)] * (m > 0)]
            yield number(I, s, m), before
            for kind in range(W, len(costs.seconds)):
                before = [(number(I, s, m), 0.0)] + [(number(kind, s, m - 1), 0.0)] * (m > 0)
                yield number(kind, s, m), before


def _preemptive(jobs: list[tuple[float, float, float]]) -> float:
    """Jackson's preemptive schedule of one device: (release, seconds, tail); longest tail first."""
    jobs, found, now, at = sorted(jobs), 0.0, 0.0, 0
    waiting: list[list[float]] = []
    while at < len(jobs) or waiting:
        if not waiting:
            now = max(now, jobs[at][0])
        while at < len(jobs) and jobs[at][0] <= now:
            heapq.heappush(waiting, [-jobs[at][2], jobs[at][1]])
            at += 1
        following = jobs[at][0] if at < len(jobs) else inf
        tail, left = waiting[0]
        if now + left <= following:
            heapq.heappop(waiting)
            now += left
            found = max(found, now - tail)
        else:
            waiting[0][1] = left - (following - now)
            now = following
    return found
