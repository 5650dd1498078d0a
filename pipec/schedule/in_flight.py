"""How many microbatches a device holds saved values of, as its row says: no times are needed."""

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from pipec.schedule.action import ActionKind
from pipec.schedule.schedule import Schedule

_ENDS = (ActionKind.B, ActionKind.W)
_READ = (ActionKind.B, ActionKind.I)


@dataclass(frozen=True)
class Turns:
    """How a stage's forwards and backwards take turns.

    Attributes:
        most: Microbatches between F and the end of the backward at the fullest.
        alternates: Whether it is that full more than once.
    """

    most: int
    alternates: bool


def in_flight(schedule: Schedule) -> list[Turns]:
    """How many microbatches of each stage are in flight on its fullest device; 0 in inference."""
    found = [Turns(0, alternates=False)] * schedule.stages
    if not schedule.training:
        return found
    forward = schedule.kind == ActionKind.F
    change = forward.astype(np.int64) - np.isin(schedule.kind, _ENDS)
    place = schedule.stage.astype(np.int64) * schedule.devices + schedule.device
    order = np.argsort(place, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(place[order])) + 1):
        held = np.cumsum(change[rows])[forward[rows]]
        most, stage = int(held.max(initial=0)), int(schedule.stage[rows[0]])
        if most > found[stage].most:
            found[stage] = Turns(most, bool((held == most).sum() > 1))
    return found


@lru_cache(maxsize=16)
def list_fullest(schedule: Schedule) -> list[npt.NDArray[np.int64]]:
    """What each device holds when it is full, as its row says, [moments, 2, stages] each.

    First the microbatches of which all that was saved is there, not once I has read it; then
    whether gradients are there, from the first backward of an update on.
    """
    found, kinds, stages = [], schedule.kind.tolist(), schedule.stage.tolist()
    alone = schedule.lanes.compute != "split"
    for begin, end in pairwise(schedule.device_ptr.tolist()):
        held, moments, more = np.zeros((2, schedule.stages), np.int64), set[bytes](), False
        for kind, stage in zip(kinds[begin:end], stages[begin:end], strict=True):
            if kind in _READ and (more or alone > held[1, stage]):
                held[1] *= schedule.rule.flush
                held[1, stage] = alone
                moments.add(held.tobytes())
            more = kind == ActionKind.F or (more and kind not in _READ)
            held[0, stage] += (kind == ActionKind.F) - (kind in _READ)
        each = [np.frombuffer(moment, np.int64) for moment in moments]
        found.append(np.array(each, np.int64).reshape(-1, *held.shape))
    return found
