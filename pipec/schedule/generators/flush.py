"""Synchronous schedules of one stage per device: every weight update waits for a flush.

```text
gpipe    0: 0F0 0F1 0F2 0B0 0B1 0B2         all forwards, then all backwards
1f1b     0: 0F0 0F1 0B0 0F2 0B1 0B2         N - i forwards warm up stage i (1-based), then 1F1B
```

BaPipe's names (Zhao et al., arXiv 2012.12544) for the same orders: on accelerators that stream,
``1f1b-as`` hides every transfer; on those that do not, ``1f1b-sno`` warms up with N - i forwards
and shows each transfer's latency, and ``1f1b-so`` with 2(N - i), which hides it.
"""

from collections.abc import Callable

import numpy as np

from pipec.schedule.action import ActionKind
from pipec.schedule.build import FLUSH, Ops, build
from pipec.schedule.schedule import LanePolicy, Placement, Schedule
from pipec.schedule.versions import VersionRule

_FB = np.array([ActionKind.F, ActionKind.B])


def one_per_device(stages: int) -> Placement:
    """Stage i on device i, forward and backward together."""
    return Placement.together(tuple((d,) for d in range(stages)))


def make_1f1b(stage: int, microbatches: np.ndarray, warm_up: int) -> Ops:
    """Forwards of ``warm_up`` microbatches, then one forward and one backward, then the rest."""
    count = len(microbatches)
    ahead = min(warm_up, count)
    kind = np.concatenate(
        [np.full(ahead, ActionKind.F), np.tile(_FB, count - ahead), np.full(ahead, ActionKind.B)]
    )
    order = np.empty(2 * count, dtype=np.int64)
    order[kind == ActionKind.F] = microbatches
    order[kind == ActionKind.B] = microbatches
    return Ops(kind, np.full(2 * count, stage), order)


def alternating(
    name: str,
    stages: int,
    microbatches: int,
    warm_up: Callable[[int], int],
    *,
    rule: VersionRule = FLUSH,
    lanes: LanePolicy | None = None,
    **options: object,
) -> Schedule:
    """1F1B with ``warm_up(stage)`` forwards ahead, one stage per device."""
    every = np.arange(microbatches)
    rows = [make_1f1b(s, every, warm_up(s)) for s in range(stages)]
    place = one_per_device(stages)
    return build(name, rows, microbatches, placement=place, rule=rule, lanes=lanes, options=options)


def gpipe(stages: int, microbatches: int) -> Schedule:
    """All forwards, then all backwards (Huang et al., NeurIPS'19): every stage holds M.

    Example:
        >>> print(gpipe(2, 2))
        0: 0F0 0F1 0B0 0B1
        1: 1F0 1F1 1B0 1B1
    """
    return alternating("gpipe", stages, microbatches, lambda s: microbatches)


def one_f_one_b(stages: int, microbatches: int) -> Schedule:
    """One forward, one backward with a flush at the end: stage i (1-based) holds N - i + 1.

    Narayanan et al., ICML'21 (PipeDream-Flush); Fan et al., PPoPP'21 (DAPPLE).
    """
    return alternating("1f1b", stages, microbatches, lambda s: stages - 1 - s)


def one_f_one_b_as(stages: int, microbatches: int) -> Schedule:
    """BaPipe's 1F1B for asynchronous accelerators: transfers stream and cost no time of their own.

    The order of `one_f_one_b`; simulate it with transfers of 0 seconds.
    """
    return one_f_one_b(stages, microbatches).replace(name="1f1b-as")


def one_f_one_b_sno(stages: int, microbatches: int) -> Schedule:
    """BaPipe's synchronous 1F1B, no overlap: fewest in flight, each transfer's latency shows.

    The order of `one_f_one_b`; takes (M+N-1)(F+B) + 2S(M+N-2-ceil((M-1)/N)).
    """
    return one_f_one_b(stages, microbatches).replace(name="1f1b-sno")


def one_f_one_b_so(stages: int, microbatches: int) -> Schedule:
    """BaPipe's synchronous 1F1B with overlap: 2(N - i) warm-up forwards hide the transfers.

    Takes (M+N-1)(F+B) + 2S(N-1) while 2S <= F+B; stage i (1-based) holds 2(N-i)+1.
    """
    return alternating("1f1b-so", stages, microbatches, lambda s: 2 * (stages - 1 - s))


def fbp_as(stages: int, microbatches: int) -> Schedule:
    """BaPipe's FBP for asynchronous accelerators: forward and backward run at the same time.

    Each device is split F : B between the two directions, so that both take F + B. Slot by
    slot, stage i (1-based) runs the backward of the microbatch 2(N-i)+1 slots behind its
    forward; it takes (M+2N-1)(F+B) and holds 2(N-i+1).
    """
    split = LanePolicy(compute="split")
    return alternating(
        "fbp-as", stages, microbatches, lambda s: 2 * (stages - 1 - s) + 1, lanes=split
    )


def inference(stages: int, microbatches: int) -> Schedule:
    """Forward only: microbatches stream through the stages.

    Example:
        >>> print(inference(2, 3))
        0: 0F0 0F1 0F2
        1: 1F0 1F1 1F2
    """
    every = np.arange(microbatches)
    kind = np.full(microbatches, ActionKind.F)
    rows = [Ops(kind, np.full(microbatches, s), every) for s in range(stages)]
    place = Placement(tuple((d,) for d in range(stages)))
    return build("inference", rows, microbatches, placement=place)
