"""The contiguous cut whose step is fastest and fits, judged by the one predictor.

1. Where the contiguous cuts can be counted (a chain of units, or few ideals) all are bounded at
   once (`pipec.compiler.cut_bounds`) and predicted in the order of their bounds, until no bound is
   below the best prediction: this one is optimal, and that is a proof. If none of many fits, those
   with the most room are predicted too.
2. Else the cut with the least largest load is improved: boundaries move along its order while the
   bound falls, and the best of the cuts found is predicted.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import chain, combinations, pairwise
from math import comb, inf

import numpy as np

from pipec.cluster.device import Device
from pipec.compiler.complete import assemble, set_bytes
from pipec.compiler.cut_bounds import Bound, Crossing, Work, stage_sums
from pipec.compiler.endless import fill
from pipec.compiler.outline import Edges, Outline
from pipec.compiler.timeline import timeline_of
from pipec.cost.stage import OPTIMIZER_COPIES, update_cost
from pipec.errors import PartitionError, ScheduleError
from pipec.partition.costgraph import CostGraph, FloatArray, IntArray, topological_order
from pipec.partition.solve import too_many_stages
from pipec.partition.units import Units, make_units
from pipec.schedule.action import ActionKind
from pipec.schedule.channels import ChannelKind
from pipec.schedule.in_flight import list_fullest
from pipec.schedule.registry import generate
from pipec.schedule.schedule import Placement, Schedule
from pipec.schedule.steps import insert_steps
from pipec.simulate.engine import Prepared
from pipec.simulate.timeline import Timeline

COUNTED = 30_000_000
"""Cuts times what each costs to bound (actions, and units ten times), up to which all are."""
IDEALS = 400
"""Most ideals of a graph whose chains are counted."""
PREDICTED, NEAR, KEPT = 300, 12, 16
"""Most cuts that are predicted, of all and of those that come of moving boundaries; and most
orders that are kept, each for all cuts whose channels have the same ends."""
LONG = 6_000
"""Compute actions of a schedule beyond which cuts are compared on fewer microbatches."""
STEPS = (1, 2, 4, 8, 16)
"""How far a boundary is moved at a time, in units."""
_BELOW = 1 - 1e-12
_OVER = 1e30
"""Above any bound: a cut that does not fit is better the less is missing."""


@dataclass(frozen=True)
class Cut:
    """A cut and what is known of it.

    Attributes:
        stage: Stage of every call, [calls].
        timeline: As predicted.
        bound: No contiguous cut that fits has a faster step, in seconds.
        method: The search that found it.
        loose: No cut that was refused for its memory has a faster step; infinite if none was.
    """

    stage: IntArray
    timeline: Timeline
    bound: float
    method: str
    loose: float = inf


class NotFasterError(Exception):
    """Signals that no cut has a step faster than asked for.

    Attributes:
        bound: No cut that fits has a faster step, in seconds.
        loose: Nor has one that does not fit.
    """

    def __init__(self, bound: float, loose: float) -> None:
        super().__init__(f"no cut takes less than {bound:.4g} s")
        self.bound, self.loose = bound, min(loose, bound)


@dataclass(frozen=True, eq=False)
class CutSearch:
    """What is to be cut, for which order.

    Attributes:
        outline: The model on its cluster.
        problem: The same as arrays.
        compute: The schedule's compute actions; its placement says where stages run.
        limits: Bytes of each device.
        parts: Units that each stage has at least.
    """

    outline: Outline
    problem: CostGraph
    compute: Schedule
    limits: Sequence[float]
    parts: int = 1
    _prepared: dict[tuple[object, ...], Prepared] = field(default_factory=dict, init=False)

    def find_best(self, seeds: Callable[[], Sequence[IntArray]], below: float = inf) -> Cut:
        """The fastest cut that fits.

        Args:
            seeds: Cuts to improve where there are too many to look at all, [calls] each.
            below: Seconds of a step; cuts whose bound is no less are not predicted.

        Raises:
            PartitionError: None fits, or none of those that were looked at.
            NotFasterError: Those that may be faster than ``below`` are not.
        """
        if self._stages * self.parts > self.units.size:
            raise too_many_stages(self._stages, self.units, self.problem, self.parts)
        every = None if self._shortened else self._every()
        cuts = self._search_near(seeds()) if every is None else every
        bounds, full = self._bounds(cuts), self._fullness(cuts)
        fits = full <= 1
        order = np.flatnonzero(fits)[np.argsort(bounds[fits], kind="stable")]
        best: tuple[IntArray, Timeline] | None = None
        most, closest, done = (PREDICTED if every is not None else NEAR), inf, False
        loose, seconds, stuck = float(bounds[~fits].min(initial=inf)), inf, list[ScheduleError]()
        if len(order) and bounds[order[0]] >= below:
            raise NotFasterError(float(bounds[order[0]]), loose)
        roomy = order[most:][np.argsort(full[order[most:]], kind="stable")][:most].tolist()
        for number, k in enumerate(chain(self._rank(cuts, order[:most].tolist()), roomy)):
            if best is not None and number >= most:
                break
            if done := best is not None and (self._shortened or bounds[k] >= seconds * _BELOW):
                break
            if below <= bounds[k] < seconds and number < most and not self._shortened:
                raise NotFasterError(float(bounds[k]), loose)
            stage = cuts[k][self.units.of_node]
            try:
                timeline = self.predict(stage)
            except ScheduleError as error:  # the channels of this cut let the order deadlock
                stuck.append(error)
                continue
            # whether it fits or not, another one is best
            slower = best is not None and timeline.seconds >= seconds
            over = 0.0 if slower else self._overfill(stage, timeline)
            closest = min(closest, over)
            least = timeline.seconds if slower else float(bounds[k])
            loose = min(loose, least) if slower or over > 1 else loose
            if over <= 1 and not slower:
                best, seconds = (stage, timeline), timeline.seconds
        done = every is not None and (done or len(order) <= most)
        if best is None:
            raise self._make_error(len(cuts), closest, stuck, proven=done)
        method = "all contiguous cuts, by their bounds" if done else "boundaries moved"
        return Cut(*best, seconds if done else min(self._least(), seconds), method, loose)

    def _rank(self, cuts: IntArray, order: list[int]) -> list[int]:
        """As they are; of a long schedule by what fewer microbatches, and twice as many, tell.

        Past the warm-up each microbatch adds the same to a step.
        """
        if not self._shortened:
            return order
        short = self._short
        twice = generate(short.name, short.stages, 2 * short.microbatches, **short.options)
        more = self.compute.microbatches / short.microbatches - 1
        searches = [replace(self, compute=compute) for compute in (short, twice)]
        seconds = dict[int, float]()
        for k in order:
            stage, took = cuts[k][self.units.of_node], list[float]()
            for search in searches:
                try:
                    took.append(search.predict(stage).seconds)
                except ScheduleError:  # found again where the whole schedule is predicted
                    took.append(inf)
            seconds[k] = took[0] + more * (took[1] - took[0]) if took[1] < inf else inf
        return sorted(order, key=seconds.__getitem__)

    def split_in_parts(self, whole: Cut, compute: Schedule) -> Cut:
        """A cut for the schedule in parts, each stage in parts that save about as much."""
        rank = topological_order(self.units.size, self.units.succ)
        stage, fine = self.units.stages(whole.stage), np.zeros(self.units.size, np.int64)
        for k in range(self._stages):
            own = np.array([u for u in rank if stage[u] == k])
            sums = (self._bytes[1][own] + 1e-9).cumsum()
            ends = np.searchsorted(sums, sums[-1] * np.arange(1, self.parts) / self.parts) + 1
            ends = _make_room(ends, len(own))
            fine[own] = k * self.parts + np.searchsorted(ends, np.arange(len(own)), side="right")
        timeline = replace(self, compute=compute).predict(fine[self.units.of_node])
        bound = min(self._least(), timeline.seconds)
        return Cut(fine[self.units.of_node], timeline, bound, f"{whole.method}, each in parts")

    def predict(self, stage: IntArray) -> Timeline:
        """The timeline of one cut, given the stage of every call."""
        # whether gradients of weights are computed by actions of their own
        split, trains = bool((self.compute.kind == ActionKind.W).any()), self.compute.training
        facts = self.outline.facts(stage, self._place, split=split)
        channels = [c for c in self.outline.channels(stage) if trains or c.kind is ChannelKind.F]
        of_values = ChannelKind.F, ChannelKind.B  # which a cut decides
        own = tuple(c for c in self.compute.channels if c.kind not in of_values)
        if self._place.separate:
            sizes = ((int(s.saved), int(s.gradients)) for s in facts.stages)
            saved, trained = zip(*sizes, strict=True)
            own = tuple(set_bytes(c, saved, trained) for c in own)
        slots = [c for c in own if c.kind is ChannelKind.H and c.nbytes]  # none for nothing
        kept = [c for c in own if c.kind is not ChannelKind.H or c in slots or not slots]
        every = sorted([*kept, *channels], key=lambda c: c.kind)
        ends = (*facts.shared, *((c.kind, c.src, c.dst) for c in every))
        if like := self._prepared.get(ends):
            return timeline_of(facts, like.resize(every))
        like = Prepared(assemble(self.compute.replace(channels=own), channels, slots, facts.shared))
        self._prepared.update({ends: like} if len(self._prepared) < KEPT else {})
        return timeline_of(facts, like)

    def _overfill(self, stage: IntArray, timeline: Timeline) -> float:
        """The most that a device holds of one cut over what it has, once the pipeline is full."""
        drains = self._full.compute is self.compute
        held = (timeline if drains else self._full.predict(stage)).peak_bytes
        pairs = zip(held, self.limits, strict=False)
        return max((p / limit if limit else inf for p, limit in pairs), default=0.0)

    @cached_property
    def _full(self) -> "CutSearch":
        """For as long a schedule as a run without a flush takes to fill its pipeline."""
        return replace(self, compute=fill(self.compute))

    @cached_property
    def units(self) -> Units:
        """What no cut may separate."""
        problem = self.problem
        return make_units(problem, np.stack([problem.bytes, problem.gradient_bytes]))

    @property
    def _place(self) -> Placement:
        return self.compute.placement

    @property
    def _stages(self) -> int:
        return len(self._place.forward)

    def _every(self) -> IntArray | None:
        """All contiguous cuts, [cuts, units]; None if they are too many."""
        most = COUNTED // (len(self.compute) + 10 * self.units.size)
        order = np.array(topological_order(self.units.size, self.units.succ))
        links = {(int(a), int(b)) for a, b in self.units.edges}
        cuts = None
        if not all(pair in links for pair in pairwise(order.tolist())):
            cuts = _chains(self.units, self._stages, most)
        elif comb(len(order) - 1, self._stages - 1) <= most:
            cuts = _place_cuts(order, combinations(range(1, len(order)), self._stages - 1))
        if cuts is None or self.parts == 1:
            return cuts
        held = stage_sums(cuts, np.ones((self._stages, self.units.size)))
        return cuts[(held >= self.parts).all(axis=1)]

    def _search_near(self, seeds: Sequence[IntArray]) -> IntArray:
        """Cuts that come of moving boundaries while the bound falls."""
        seen: list[IntArray] = []
        for seed in seeds:
            stage = self.units.stages(seed)
            rank = np.empty(self.units.size, np.int64)
            rank[topological_order(self.units.size, self.units.succ)] = np.arange(len(rank))
            order = np.lexsort((rank, stage))
            ends = np.searchsorted(stage[order], np.arange(1, self._stages))
            here, value = tuple(_make_room(ends, len(order), self.parts).tolist()), inf
            while True:
                cuts = _place_cuts(order, [here, *_moves(here, len(order), self.parts)])
                full = self._fullness(cuts)
                bounds = np.where(full <= 1, self._bounds(cuts), _OVER * full)
                seen.append(cuts[np.argsort(bounds, kind="stable")[:16]])
                k = int(np.argmin(bounds))
                if not bounds[k] < value * _BELOW:
                    break
                value = float(bounds[k])
                here = tuple(np.searchsorted(cuts[k][order], range(1, self._stages)).tolist())
        return np.unique(np.concatenate(seen), axis=0)

    def _bounds(self, cuts: IntArray) -> FloatArray:
        saved = stage_sums(cuts, np.ones((self._stages, 1)) * self._bytes[1])
        saves = (saved > 0) | (not self._place.separate)
        ways = {(s, s): Crossing(np.zeros(len(cuts)), saves[:, s]) for s in range(self._stages)}
        ways |= self._crossings(cuts, 0) | self._crossings(cuts, 1)
        return self._bound.seconds(self._seconds(cuts), ways)

    @cached_property
    def _bound(self) -> Bound:
        """Of the schedule, or to look at more cuts of the same with fewer microbatches."""
        inside = not (self._short.rule.flush or self._place.separate)
        return Bound(insert_steps(self._short) if inside else self._short)

    @cached_property
    def _short(self) -> Schedule:
        """The schedule, or one of fewer microbatches on which cuts are compared."""
        s, replicas = self.compute, max(len(stage) for stage in self._place.forward)
        fewer = max(LONG // (2 * s.stages), 2 * s.stages) // replicas * replicas
        if len(s) <= LONG or not 0 < fewer < s.microbatches:
            return s
        return generate(s.name, s.stages, fewer, **s.options)

    @property
    def _shortened(self) -> bool:
        """Whether cuts are compared on fewer microbatches than there are."""
        return self._short is not self.compute

    @cached_property
    def _work(self) -> FloatArray:
        """Seconds of every unit, [`Work`, kinds of devices, units]; no more than they take.

        A weight that several units read counts once, at the first of them.
        """
        costs, calls = self.outline.costs, self.outline.graph.calls
        devices = self._kinds
        found = np.zeros((len(fields(Work)), len(devices), self.units.size))
        for k, (kind, device) in enumerate(devices.items()):
            rows = [costs.of(kind)] + [costs.backward_of(kind)] * self.compute.training
            for row, seconds in zip(found[:, k], rows, strict=False):
                np.add.at(row, self.units.of_node, [seconds.get(n.name, 0.0) for n in calls])
            update = update_cost(device, 1.0)
            found[2:, k] = np.outer([update.accumulate, update.step], self._bytes[2])
        return found

    @property
    def _kinds(self) -> dict[str, Device]:
        """The devices that stages run on, by kind."""
        used = {d for side in self._place.sides for at in side for d in at}
        return {(device := self.outline.cluster.devices[d]).kind: device for d in sorted(used)}

    def _seconds(self, cuts: IntArray) -> Work:
        """Of every stage on its slowest kind of device."""
        kinds, devices = list(self._kinds), self.outline.cluster.devices
        places = [
            [sorted({kinds.index(devices[d].kind) for d in at}) for at in side]
            for side in self._place.sides
        ]
        found = np.zeros((len(self._work), len(cuts), self._stages))
        for turn in range(max(len(at) for side in places for at in side)):
            ahead, behind = ([at[min(turn, len(at) - 1)] for at in side] for side in places)
            each = zip(self._work, [ahead, behind, behind, behind], strict=True)
            took = np.stack([stage_sums(cuts, work.take(row, axis=0)) for work, row in each])
            found = np.where(took[:2].sum(axis=0) > found[:2].sum(axis=0), took, found)
        s, copies = self._short, list(map(len, self._place.backward)) or [1]
        forward, backward, added, step = found
        adding = [s.rule.adding(s.microbatches, count) for count in copies]
        step = step / copies
        if s.rule.flush:
            step = self.outline.join_steps(step, self._place)
        return Work(forward, backward, added * adding, step)

    @cached_property
    def _edges(self) -> tuple[Edges, ...]:
        """Of activations and of gradients."""
        back = self.outline.edges(gradients=True) if self.compute.training else Edges.none()
        return self.outline.edges(gradients=False), back

    def _crossings(self, cuts: IntArray, back: int) -> dict[tuple[int, int], Crossing]:
        """Between stages; a value that several units of a stage read goes there once."""
        edges, side, found = self._edges[back], self._place.sides[back], {}
        if not len(edges.producer):
            return {}
        src, dst = (cuts[:, self.units.of_node[e]] for e in (edges.producer, edges.reader))
        start = np.flatnonzero(np.diff(edges.producer, prepend=-1))
        counts = np.bincount((src * self._stages + dst).ravel(), minlength=self._stages**2)
        for a, b in combinations(range(self._stages), 2):
            if counts[a * self._stages + b]:
                sent = np.logical_or.reduceat((src == a) & (dst == b), start, axis=1)
                took = sent @ self._message_seconds(edges.nbytes[start], (side[a], side[b]))
                found[(b, a) if back else (a, b)] = Crossing(took, np.asarray(sent.any(axis=1)))
        return found

    def _message_seconds(self, sizes: FloatArray, ends: Sequence[tuple[int, ...]]) -> FloatArray:
        """At least what messages between two stages take; measured ones count nothing."""
        if self.outline.costs.messages or set(ends[0]) & set(ends[1]):
            return np.zeros(len(sizes))
        links = [self.outline.cluster.link(a, b) for a in ends[0] for b in ends[1]]
        ways = [[link.seconds(size) for size in sizes.tolist()] for link in links]
        return np.asarray(np.array(ways).min(axis=0), np.float64)

    def _fullness(self, cuts: IntArray) -> FloatArray:
        """A cut's least bytes over what its fullest device has, [cuts]; above 1 it cannot fit.

        Nothing is known of it where the backward has devices of its own. The optimizer's state is
        shared by replicas: of those that are alike, one has an equal part or more.
        """
        if self._place.separate:
            return np.zeros(len(cuts))
        held = np.zeros((len(cuts), len(self.limits)))
        each, homes = np.ones((self._stages, 1)), self._place.forward
        weights, saved, trained = (stage_sums(cuts, each * row) for row in self._bytes)
        alike = [(limit, *(d in at for at in homes)) for d, limit in enumerate(self.limits)]
        copies = OPTIMIZER_COPIES * self.outline.state
        for s, devices in enumerate(homes):
            part = copies * (len({alike[d] for d in devices}) == 1) / len(devices)
            for d in devices:
                held[:, d] += weights[:, s] + part * trained[:, s]
        for d, most in enumerate(list_fullest(self.compute)):
            held[:, d] += (saved @ most[:, 0].T + trained @ most[:, 1].T).max(axis=1, initial=0)
        limits = np.maximum(np.array(self.limits) * (1 + 1e-9), 1e-9)
        return np.asarray((held / limits).max(axis=1), np.float64)

    @cached_property
    def _bytes(self) -> FloatArray:
        """At least the bytes of weights, saved values and trained weights of units, [3, units]."""
        static, saved, trained = found = np.zeros((3, self.units.size))
        calls = self.outline.graph.calls
        of = dict(zip((n.name for n in calls), self.units.of_node.tolist(), strict=True))
        for size, learns, readers in self.outline.weights:
            static[min(of[r] for r in readers)] += size
            trained[min(of[r] for r in readers)] += size * learns
        if self.compute.training:
            for size, name in self.outline.least_saved(self._place):
                saved[of[name]] += size
        return found

    def _least(self) -> float:
        """A time that no cut is faster than: the work dealt out evenly, or the heaviest unit."""
        whole, sides = [self._work[0] + self._work[1]], list(self._work[:2])
        found, m = 0.0, self.compute.microbatches
        for work, side in zip(
            sides if self._place.separate else whole, self._place.sides, strict=False
        ):
            least, devices = work.min(axis=0), len({d for at in side for d in at})
            found = max(found, m * least.sum() / devices, m * least.max() / max(map(len, side)))
        return float(found)

    def _make_error(
        self, cuts: int, closest: float, stuck: Sequence[ScheduleError], *, proven: bool
    ) -> PartitionError:
        what = f"no cut into {self._stages} stages"
        if stuck and closest == inf:
            return PartitionError(f"{what} runs without a deadlock", where=stuck[0].where,
                                  got=stuck[0].got, hint="another schedule")  # fmt: skip
        need = f"{closest:.0%} of its memory" if closest < inf else "more than a device has"
        return PartitionError(
            f"{what} fits the memory of the devices",
            where=f"schedule {self.compute.name}, {self.compute.microbatches} microbatches",
            got=f"the fullest device of the nearest of {cuts} cuts needs {need}",
            want="at most 100%" + (", which no contiguous cut meets" if proven else ""),
            hint="--schedule auto (recomputes, offloads), smaller microbatches, or more devices",
        )


def _place_cuts(order: IntArray, cuts: Iterable[tuple[int, ...]]) -> IntArray:
    """Cuts by their boundaries in an order of the units, [cuts, units]."""
    bounds = np.array(list(cuts), np.int64)
    stage = np.zeros((len(bounds), len(order)), np.int64)
    for boundary in bounds.T:
        stage[:, order] += np.arange(len(order)) >= boundary[:, None]
    return stage


def _make_room(ends: IntArray, size: int, least: int = 1) -> IntArray:
    """Boundaries moved as little as leaves so many units between them."""
    turn = least * np.arange(len(ends))
    ends = np.maximum.accumulate(np.maximum(ends, least) - turn) + turn
    return np.asarray(np.minimum(ends, size - least * len(ends) + turn))


def _moves(here: tuple[int, ...], size: int, least: int) -> list[tuple[int, ...]]:
    """Boundaries with one, or two neighbouring ones, moved, so many units between them."""
    found = set()
    for k in range(len(here)):
        for width in (1, 2, len(here)):
            for step in chain(STEPS, (-s for s in STEPS)):
                new = [b + step * (k <= i < k + width) for i, b in enumerate(here)]
                if all(b - a >= least for a, b in pairwise([0, *new, size])):
                    found.add(tuple(new))
    return sorted(found)


def _chains(units: Units, stages: int, most: int) -> IntArray | None:
    """All chains of ideals that cut a small graph, [cuts, units]; None if there are too many."""
    inside = np.zeros((1, units.size), bool)
    for u in topological_order(units.size, units.succ):
        grown = inside[inside[:, units.pred[u]].all(axis=1)]
        grown[:, u] = True
        inside = np.concatenate([inside, grown])
        if len(inside) > IDEALS + 2:  # none and all units are no cuts
            return None
    inside = inside[np.lexsort((*inside.T, inside.sum(axis=1)))]  # smallest first: none is first
    within = inside @ ~inside.T == 0
    np.fill_diagonal(within, val=False)
    within[:, -1] = False
    ways = [np.ones(len(inside))]  # of going on from an ideal, by how many ideals follow
    for _ in range(stages - 1):
        ways.append(within @ ways[-1])
    if ways[-1][0] > most:
        return None
    chains = np.zeros((1, 1), np.int64)
    for left in reversed(ways[:-1]):
        before, ideal = np.nonzero(within[chains[:, -1]] & (left > 0))
        chains = np.column_stack([chains[before], ideal])
    return (stages - 1) - inside[chains[:, 1:]].sum(axis=1)  # type: ignore[no-any-return]
