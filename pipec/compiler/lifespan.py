"""Selective offload by lifespan: what waits longest for its backward leaves first.

The rule of PipeOffload (Wan et al., ICML'25, arXiv 2503.01328): a byte that leaves lowers the
memory over the time that it would have waited, so that the stages of a device give up their values
in the order of that time, until the device keeps its limit. One of the choices that
`pipec.compiler.reside.best` has; it knows the whole schedule, not one stage alone.

```text
device of two stages    F0 F2 ... B2 B0 ...     stage 0 waits longer than stage 2: it leaves first
```
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from pipec.compiler.facts import plan_facts, read_by_w
from pipec.compiler.fit import Fates, Fit, Fitted
from pipec.compiler.residency import saved_in_order
from pipec.compiler.timeline import plan_timeline, timeline_of
from pipec.plan.facts import Facts
from pipec.schedule.action import ActionKind
from pipec.schedule.channels import Channel, ChannelKind
from pipec.schedule.offload import insert_offload
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


def by_lifespan(fit: Fit) -> list[Fitted]:
    """The plans of the fastest depth whose devices all fit, by the rule; none if none does."""
    rule = Rule(fit)
    found = [f for f in map(rule.until_it_fits, DEPTHS) if f is not None]
    if not found:
        return []
    chosen, _ = min(found, key=lambda f: f[1].seconds)
    plan, order = fit.apply(chosen)
    return [Fitted(chosen, plan, order, plan_timeline(plan, order))]


@dataclass(frozen=True, eq=False)
class Rule:
    """The rule for one plan.

    Attributes:
        fit: The plan and its limits.
    """

    fit: Fit

    @cached_property
    def facts(self) -> Facts:
        """Of the plan as it is."""
        return plan_facts(self.fit.plan)

    @cached_property
    def names(self) -> list[list[str]]:
        """Saved values of every stage, in order."""
        trainings = [s.training for s in self.fit.plan.stages]
        return [saved_in_order(t) for t in trainings if t is not None]

    def until_it_fits(self, depth: int) -> tuple[list[Fates], Timeline] | None:
        """Values leave the devices that are too full, in slots of a depth, until none is."""
        homes, gone = self.fit.schedule.placement.forward, [0] * len(self.names)
        order = np.argsort(-lifespans(self.fit.plain), kind="stable").tolist()
        left = {d: [s for s in order if d in homes[s] for _ in self.names[s]]
                for d in range(self.fit.schedule.devices)}  # fmt: skip
        size = {d: -(-len(queue) // STEPS) for d, queue in left.items()}
        while True:
            names = [tuple(n[:k]) for n, k in zip(self.names, gone, strict=True)]
            timeline = self.predicted(names, depth)
            over = np.flatnonzero(np.array(timeline.peak_bytes) > self.fit.limits).tolist()
            if not over:
                return [Fates(frozenset(), ((depth, n),) if n else ()) for n in names], timeline
            if not all(left[d] for d in over):
                return None
            for d in over:
                for s in left[d][: size[d]]:
                    gone[s] = min(gone[s] + 1, len(self.names[s]))
                del left[d][: size[d]]

    def predicted(self, leaving: Sequence[tuple[str, ...]], depth: int) -> Timeline:
        """As `plan_timeline` of the plan where some values leave, from its facts alone."""
        stages, slots, for_w = list(self.facts.stages), list[Channel](), dict[str, float]()
        for s, names in enumerate(leaving):
            if not names:
                continue
            whole, read = (sum(sizes[n] for n in names) for sizes in self._sizes[s])
            slots.append(Channel(ChannelKind.H, s, s, f"s{s}.host0", whole, depth))
            for_w[slots[-1].name] = float(read)
            before = stages[s]
            assert before.saved_for_w is not None
            kept = before.saved - whole
            stages[s] = replace(before, saved=kept, saved_for_w=before.saved_for_w - read)
        facts = replace(self.facts, stages=tuple(stages), moved_for_w=for_w)
        order = self.fit.schedule
        return timeline_of(facts, insert_offload(order, slots) if slots else order)

    @cached_property
    def _sizes(self) -> list[tuple[dict[str, int], dict[str, int]]]:
        """Bytes of every value that a stage saves, and of what W reads of it."""
        found = []
        for stage in self.fit.plan.stages:
            assert stage.training is not None
            sizes = {v.name: v.nbytes for v in stage.training.saved}
            read = read_by_w(stage.training)
            found.append((sizes, {n: read.get(n, 0) for n in sizes}))
        return found
