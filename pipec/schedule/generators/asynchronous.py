"""Schedules without a flush: weights change while microbatches are under way.

```text
pipedream       every microbatch is a minibatch with its own update; F and B use one version
pipedream-2bw   an update per ``update_every`` microbatches; two versions, delay 1 everywhere
pipemare        the newest weights everywhere, no stash: F and B of a microbatch may differ
```

Narayanan et al., SOSP'19 and ICML'21; Yang et al., MLSys'21.
"""

import math
from collections.abc import Sequence

import numpy as np

from pipec.errors import ScheduleError
from pipec.schedule.build import build
from pipec.schedule.generators.flush import alternating, make_1f1b
from pipec.schedule.schedule import LanePolicy, Placement, Schedule
from pipec.schedule.versions import VersionRule


def place_replicas(replicas: Sequence[int]) -> Placement:
    """Stage after stage, each on the next ``replicas[s]`` devices."""
    firsts = np.cumsum([0, *replicas]).tolist()
    return Placement.together(
        tuple(tuple(range(first, first + r)) for first, r in zip(firsts, replicas, strict=False))
    )


def pipedream(
    stages: int,
    microbatches: int,
    replicas: Sequence[int] | None = None,
    update_every: int = 1,
    sync: str = "stash",
) -> Schedule:
    """PipeDream's 1F1B-RR: no flush, replica ``m mod replicas`` handles minibatch m both ways.

    Stage s warms up with ``(R - 1 - replicas of earlier stages) div replicas(s)`` forwards,
    where R is the number of workers: NOAM - 1 on the input stage.

    Args:
        stages: N.
        microbatches: Minibatches; a multiple of ``update_every`` and of every replica count.
        replicas: Replicas of every stage; 1 each if absent.
        update_every: Minibatches of a replica per update (1 in the paper).
        sync: "stash": B uses the version of F. "vertical": so do all stages.

    Raises:
        ScheduleError: Replicas or an option do not fit, or minibatches are not dealt out evenly.
    """
    counts = list(replicas or [1] * stages)
    _check_replicas(counts, stages, microbatches)
    if sync not in ("stash", "vertical") or update_every < 1:
        raise ScheduleError(
            "no such pipedream schedule",
            got=f"sync={sync}, update_every={update_every}",
            want="sync=stash or vertical, update_every of 1 or more",
        )
    workers = sum(counts)
    rows = []
    for stage, count in enumerate(counts):
        warm_up = (workers - 1 - sum(counts[:stage])) // count
        rows += [make_1f1b(stage, np.arange(r, microbatches, count), warm_up) for r in range(count)]
    return build(
        "pipedream",
        rows,
        microbatches,
        placement=place_replicas(counts),
        rule=VersionRule(sync, update_every),
        options={"replicas": counts, "update_every": update_every, "sync": sync},
    )


def _check_replicas(counts: list[int], stages: int, microbatches: int) -> None:
    if len(counts) != stages or min(counts) < 1:
        raise ScheduleError(
            "replicas do not fit the stages", got=counts, want=f"{stages} counts of 1 or more"
        )
    even = math.lcm(*counts)
    if microbatches % even:
        raise ScheduleError(
            "microbatches cannot be dealt out evenly to the replicas",
            want=f"a multiple of {even}",
            got=f"{microbatches} microbatches, replicas {counts}",
        )


def pipedream_2bw(stages: int, microbatches: int, update_every: int = 0) -> Schedule:
    """PipeDream-2BW: double-buffered weights, gradients of m microbatches per update.

    Args:
        stages: d.
        microbatches: Number of them, of several updates together.
        update_every: m, at least d; d if 0.

    Raises:
        ScheduleError: ``update_every`` is below the number of stages.
    """
    every = update_every or stages
    if every < stages:
        raise ScheduleError(
            "2BW needs as many microbatches per update as stages", got=every, want=f">= {stages}"
        )
    rule = VersionRule("2bw", every)
    return alternating(
        "pipedream-2bw",
        stages,
        microbatches,
        lambda s: stages - 1 - s,
        rule=rule,
        update_every=every,
    )


def pipemare(
    stages: int, microbatches: int, update_every: int = 1, slots: str = "alternating"
) -> Schedule:
    """PipeMare: no flush and no stash; delayed forwards are corrected by the optimizer (T1, T2).

    Args:
        stages: P.
        microbatches: Number of them, of several minibatches together.
        update_every: N, microbatches per minibatch.
        slots: "alternating": 1F1B; the forward of stage i (1-based) is P - i microbatches old.
            "concurrent": each device runs one F and one B at a time (dataflow hardware); it is
            2(P-i)+1 microbatches old, the paper's model.

    Raises:
        ScheduleError: ``slots`` has another value, or ``update_every`` is below 1.
    """
    if slots not in ("alternating", "concurrent") or update_every < 1:
        raise ScheduleError(
            "no such pipemare schedule",
            got=f"slots={slots}, update_every={update_every}",
            want="slots=alternating or concurrent, update_every of 1 or more",
        )
    both = slots == "concurrent"
    return alternating(
        "pipemare",
        stages,
        microbatches,
        lambda s: 2 * (stages - 1 - s) + 1 if both else stages - 1 - s,
        rule=VersionRule("newest", update_every),
        lanes=LanePolicy(compute="split" if both else "shared"),
        update_every=update_every,
        slots=slots,
    )
