"""Selective offload by lifespan: what waits longest for its backward leaves first.

The rule of PipeOffload (Wan et al., ICML'25, arXiv 2503.01328): a byte that leaves lowers the
memory over the time that it would have waited, so that the stages of a device give up their values
in the order of that time, until the device keeps its limit. One of the choices that
`pipec.compiler.reside` has; it knows the whole schedule, not one stage alone.

```text
device of two stages    F0 F2 ... B2 B0 ...     stage 0 waits longer than stage 2: it leaves first
```
"""

import numpy as np

from pipec.compiler.fates import Fates
from pipec.compiler.fit import Fit
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


def choose_by_lifespan(fit: Fit) -> list[list[Fates]]:
    """What leaves by the rule, in slots of each depth with which all devices fit."""
    return [f for f in (move_until_it_fits(fit, depth) for depth in DEPTHS) if f is not None]


def move_until_it_fits(fit: Fit, depth: int) -> list[Fates] | None:
    """Values leave the devices that are too full, in slots of a depth, until none is."""
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
