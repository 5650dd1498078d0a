"""Better choices near good ones: what becomes of one value after the other, simulated in the plan.

What a stage's own problem does not know decides here: how stages wait for each other, buffers of
messages, the filling and the draining of the pipeline.

```text
too full      the change that takes the most byte-seconds above the limits per second that it costs
fits          changes that are faster: what then fits, and what is too full and may become less so
```
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from math import inf

import numpy as np

from pipec.compiler.fates import KEPT, Fates
from pipec.compiler.fit import Fit, PredictedChoice, ValueOptions
from pipec.compiler.residency import list_saved
from pipec.schedule.action import ActionKind
from pipec.simulate.timeline import Timeline
from pipec.simulate.times import Float

DEPTHS = (1, 2, 0)
"""Depths of the slots that are tried."""
STEPS = 64
"""Steps in which all values of a device leave: of more values, several at a time."""


def lifespans(timeline: Timeline) -> Float:
    """Seconds from the end of F to the begin of its B or I, summed over microbatches, by stage."""
    s = timeline.schedule
    forward = s.kind == ActionKind.F
    backward = (s.kind == ActionKind.B) | (s.kind == ActionKind.I)
    ends, begins = (
        np.bincount(s.stage[rows], time[rows], minlength=s.stages)
        for rows, time in ((forward, timeline.end), (backward, timeline.begin))
    )
    return np.asarray(begins - ends, np.float64)


def move_until_it_fits(fit: Fit, depth: int) -> list[Fates] | None:
    """Values leave the devices that are too full, in slots of a depth, until none is.

    Those that wait longest for their backward first. The rule of PipeOffload (Wan et al., ICML'25,
    arXiv 2503.01328): a byte that leaves lowers the memory over the time that it would have waited,
    so that the stages of a device give up their values in the order of that time, until the device
    keeps its limit. It knows the whole schedule, not one stage alone.
    """
    names = [list_saved(w.training) for w in fit.foresight.works]
    homes, gone = fit.schedule.placement.forward, [0] * len(names)
    order = np.argsort(-lifespans(fit.plain), kind="stable").tolist()
    left = {d: [s for s in order if d in homes[s] for _ in names[s]]
            for d in range(fit.schedule.devices)}  # fmt: skip
    size = {d: -(-len(queue) // STEPS) for d, queue in left.items()}
    while True:
        out = [tuple(n[:k]) for n, k in zip(names, gone, strict=True)]
        chosen = [Fates(frozenset(), ((depth, n),) if n else ()) for n in out]
        peaks = np.array(fit.foresight.timeline(chosen).peak_bytes)
        over = np.flatnonzero(peaks > fit.limits).tolist()
        if not over:
            return chosen
        if not all(left[d] for d in over):
            return None
        for d in over:
            for s in left[d][: size[d]]:
                gone[s] = min(gone[s] + 1, len(names[s]))
            del left[d][: size[d]]


WORK = 40_000
"""Most actions that are simulated for one plan."""
NODE = 8
"""As how many of them each node of a stage counts that is rewritten for it."""
SEGMENTS = (2, 3, 4, 5)
"""Of so many values one is kept, in checkpointing by segments (Chen et al., arXiv 1604.06174)."""

Choice = tuple[Fates, ...]
Slots = tuple[tuple[int, tuple[str, ...]], ...]


@dataclass(frozen=True, eq=False)
class Trial(PredictedChoice):
    """A choice and what it takes.

    Attributes:
        limits: Bytes of each device.
    """

    stages: Choice
    limits: Sequence[float]

    @cached_property
    def seconds(self) -> float:
        """Of the whole schedule."""
        return self.timeline.seconds

    @cached_property
    def over(self) -> float:
        """How far above the limits, at the peaks and over time; 0 if it fits."""
        pairs = list(zip(self.timeline.memory_curves, self.limits, strict=True))
        peaks = sum(max(c.peak / limit - 1, 0.0) for c, limit in pairs)
        return peaks and peaks + sum(c.above(x) / x for c, x in pairs) / self.seconds

    @property
    def order(self) -> tuple[float, float, int]:
        """The least above the limits first, then the fastest, then that of the fewest slots."""
        return self.over, self.seconds, sum(len(f.slots) for f in self.stages)


class Search:
    """The search in one plan."""

    def __init__(self, fit: Fit) -> None:
        self.fit = fit
        self.known: dict[Choice, Trial] = {}
        self.work, self.limits = WORK, np.maximum(fit.limits, 1.0).tolist()
        self.close = 1e-9 * fit.plain.seconds

    def best(self, starts: Sequence[Sequence[Fates]]) -> Trial | None:
        """From choices that fit and others; if none does, the nearest is one that `fit` tried."""
        nothing = self.simulate((KEPT,) * len(self.fit.plan.stages))
        every = [*self.fit.tried, *starts]
        if self.fit.host:
            for depth in [d for d in DEPTHS if d not in self.fit.leaving]:
                self.fit.leaving[depth] = move_until_it_fits(self.fit, depth)
            every += [chosen for chosen in self.fit.leaving.values() if chosen is not None]
        if not nothing.over:
            return nothing
        plain = (tuple(Fates(f.recompute, f.slots) for f in chosen) for chosen in every)
        first = [nothing, *map(self.simulate, plain)]
        if self.fit.recompute and all(t.over for t in first):
            first += map(self.simulate, self.try_segments())
        first = [*dict.fromkeys(first)]
        first.append(self.mix(first))
        nearest = sorted((t for t in first if t.over), key=lambda t: t.order)[:2]
        fits = [t for t in first if not t.over]
        fits += [t for at in (nothing, *nearest) if (t := self.make_room(at)) is not None]
        best = self.speed_up(min(fits, key=lambda t: t.order, default=None), nothing)
        if best is None:
            least = min(self.known.values(), key=lambda t: self.fit.excess(t.timeline).max())
            self.fit.tried.append(least.stages)
        return best

    def simulate(self, chosen: Choice) -> Trial:
        """A choice, simulated."""
        if chosen not in self.known:
            ahead, stages = self.fit.foresight, enumerate(chosen)
            new = [s for s, fates in stages if fates.recompute not in ahead.rewrites[s]]
            nodes = sum(len(ahead.works[s].training.F.nodes) for s in new)
            self.work -= len(self.fit.schedule) + NODE * nodes
            timeline = self.fit.foresight.timeline(chosen)
            self.known[chosen] = Trial(chosen, timeline, self.limits)
        return self.known[chosen]

    def mix(self, those: Sequence[Trial]) -> Trial:
        """The best, with what others make of one stage after the other while that is better."""
        best, before = min(those, key=lambda t: t.order), None
        while best is not before:
            before = best
            for s in range(len(best.stages)):
                every = dict.fromkeys(t.stages[s] for t in those)
                mixed = ((*best.stages[:s], fates, *best.stages[s + 1 :]) for fates in every)
                best = min(map(self.simulate, mixed), key=lambda t: t.order)
        return best

    def make_room(self, at: Trial) -> Trial | None:
        """A choice that fits, by the changes that gain the most for their time."""
        while at.over and self.work > WORK / 2:
            found = [t for t in self.list_near(at) if t.over < at.over]
            if not found:
                return None
            fits = min((t for t in found if not t.over), key=lambda t: t.order, default=None)
            at = fits or max(found, key=lambda t: self.rate(at, t))
        return None if at.over else at

    def rate(self, before: Trial, after: Trial) -> float:
        """What a change gains for its time."""
        return (before.over - after.over) / max(after.seconds - before.seconds, self.close)

    def speed_up(self, best: Trial | None, nothing: Trial) -> Trial | None:
        """One change behind the other, as long as that may give what is faster and fits.

        First from the best; then from what is faster but too full, by turns where the time that it
        takes is least together with that of the rest, at the price of the best, and where the
        least is above the limits. Nothing is faster than what keeps all.
        """
        most = best.seconds if best else 2 * nothing.seconds
        price = max(most - nothing.seconds, self.close) / nothing.over
        least: list[Callable[[Trial], float]]
        least = [lambda t: t.seconds + price * t.over, lambda t: t.over]
        full, seen, at = [nothing] if best else [], {self.kind(nothing)}, best or nothing
        most = best.seconds - self.close if best else inf
        for turn in count() if most > nothing.seconds else ():
            before = best
            for t in self.list_near(at):
                if t.seconds >= most or (at.over and t.over >= at.over):
                    continue
                if not t.over:
                    best, most = t, t.seconds - self.close
                elif (kind := self.kind(t)) not in seen:
                    seen.add(kind)
                    full.append(t)
            full = [t for t in full if t.seconds < most]
            if best is not before and best is not None:
                at = best
            elif full and self.work > 0:
                at = min(full, key=least[turn % 2])
                full.remove(at)
            else:
                break
        return best

    def kind(self, at: Trial) -> Hashable:
        """What choices have in common whose values differ in nothing but their names."""
        found = []
        for stage, fates in enumerate(at.stages):
            depth = {name: d for d, names in fates.slots for name in names}
            depth |= dict.fromkeys(fates.recompute, -1)
            of = [(depth.get(name, -2), *alike) for name, *alike in self.fit.list_able(stage)]
            found.append((self.fit.foresight.forecast(stage, fates).facts.cost.B, *sorted(of)))
        return tuple(found)

    def list_near(self, at: Trial) -> Iterator[Trial]:
        """Choices that differ in one value, what takes the most seconds first."""
        every = [(s, value) for s in range(len(at.stages)) for value in self.fit.list_able(s)]
        every.sort(key=lambda e: -e[1].seconds if e[1].name in at.stages[e[0]].recompute else 0)
        for stage, value in every:
            order = [v.name for v in self.fit.list_able(stage)]
            for other in _change(at.stages[stage], value, order):
                if self.work <= 0:
                    return
                yield self.simulate((*at.stages[:stage], other, *at.stages[stage + 1 :]))

    def try_segments(self) -> Iterator[Choice]:
        """Every so many values are kept, the others computed again, where devices are too full."""
        full = np.array(self.fit.plain.peak_bytes) > self.fit.limits
        homes = self.fit.schedule.placement.forward
        stages = [s for s, home in enumerate(homes) if full[list(home)].any()]
        for kept, first in ((k, r) for k in SEGMENTS for r in range(k)):
            chosen = [KEPT] * len(homes)
            for s in stages:
                values = [v.name for v in self.fit.list_able(s) if v.seconds < inf]
                chosen[s] = Fates(
                    frozenset(n for k, n in enumerate(values) if k % kept != first), ()
                )
            yield tuple(chosen)


def _change(fates: Fates, able: ValueOptions, order: Sequence[str]) -> Iterator[Fates]:
    """The same with another fate of one value."""
    name, again, leaves = able.name, able.seconds < inf, able.leaves
    depths = [depth for depth, names in fates.slots if name in names]
    without = Fates(fates.recompute - {name}, _move(fates.slots, name, None, order))
    if name in fates.recompute or depths:
        yield without
    if again and name not in fates.recompute:
        yield replace(without, recompute=without.recompute | {name})
    for depth in range(3) if leaves else ():
        if depth not in depths:
            yield replace(without, slots=_move(without.slots, name, depth, order))


def _move(slots: Slots, name: str, depth: int | None, order: Sequence[str]) -> Slots:
    """Slots after one value left all, or went to the first of a depth."""
    found = [(d, tuple(n for n in names if n != name)) for d, names in slots]
    if depth is not None:
        at = next((k for k, (d, _) in enumerate(found) if d == depth), len(found))
        there = found[at][1] if at < len(found) else ()
        found[at : at + 1] = [(depth, tuple(sorted((*there, name), key=order.index)))]
    return tuple(sorted((slot for slot in found if slot[1]), key=lambda slot: slot[0]))
