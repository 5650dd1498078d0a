"""How many microbatches a device holds saved values of, as its row says: no times are needed."""

from collections import Counter, defaultdict
from dataclasses import dataclass

from pipec.schedule.action import ActionKind
from pipec.schedule.schedule import Schedule

_ENDS = (ActionKind.B, ActionKind.W)


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
    now, reached = Counter[tuple[int, int]](), defaultdict[tuple[int, int], list[int]](list)
    columns = (schedule.kind.tolist(), schedule.stage.tolist(), schedule.device.tolist())
    for kind, stage, device in zip(*columns, strict=True) if schedule.training else ():
        if kind == ActionKind.F:
            now[stage, device] += 1
            reached[stage, device].append(now[stage, device])
        elif kind in _ENDS:
            now[stage, device] -= 1
    for (stage, _), counts in sorted(reached.items()):
        if max(counts) > found[stage].most:
            found[stage] = Turns(max(counts), counts.count(max(counts)) > 1)
    return found
