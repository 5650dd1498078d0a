"""How many microbatches a device holds saved values of, as its row says: no times are needed."""

from dataclasses import dataclass

import numpy as np

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


def in_flight(schedule: Schedule, *, whole: bool = False) -> list[Turns]:
    """How many microbatches of each stage are in flight on its fullest device; 0 in inference.

    Args:
        schedule: The rows.
        whole: Only those of which all that was saved is there: not once I has read it.
    """
    found = [Turns(0, alternates=False)] * schedule.stages
    if not schedule.training:
        return found
    forward = schedule.kind == ActionKind.F
    change = forward.astype(np.int64) - np.isin(schedule.kind, _READ if whole else _ENDS)
    place = schedule.stage.astype(np.int64) * schedule.devices + schedule.device
    order = np.argsort(place, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(place[order])) + 1):
        held = np.cumsum(change[rows])[forward[rows]]
        most, stage = int(held.max(initial=0)), int(schedule.stage[rows[0]])
        if most > found[stage].most:
            found[stage] = Turns(most, bool((held == most).sum() > 1))
    return found
