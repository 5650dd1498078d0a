"""Stages in parts: what a device computes in one piece becomes several stages, one behind another.

```text
1f1b, 2 devices              0: 0F0     0F1     0B0     ...     1: 1F0     1B0     ...
1f1b{parts=2}, 4 stages      0: 0F0 1F0 0F1 1F1 1B0 0B0 ...     1: 2F0 3F0 3B0 2B0 ...
```

Saved values leave a device behind a whole action and come back before one. In parts they leave as
soon as their part of the forward is over, beside the next part, and come back just before their
part of the backward: with as many parts as layers, layer by layer.
"""

import numpy as np

from pipec.errors import ScheduleError
from pipec.schedule.action import ActionKind
from pipec.schedule.build import Ops, build
from pipec.schedule.schedule import Placement, Schedule


def split_stages(schedule: Schedule, parts: int) -> Schedule:
    """The schedule with every stage in ``parts`` consecutive stages on the same device.

    Args:
        schedule: Schedule of compute actions, an update after a flush.
        parts: How many; forwards run through them in order, backwards in reverse.

    Raises:
        ScheduleError: The schedule updates weights without a flush, or runs backwards elsewhere.

    Example:
        >>> from pipec.schedule.registry import generate
        >>> print(generate("1f1b{parts=2}", stages=4, microbatches=2))
        0: 0F0 1F0 0F1 1F1 1B0 0B0 1B1 0B1
        1: 2F0 3F0 3B0 2B0 2F1 3F1 3B1 2B1
    """
    place = schedule.placement
    if not schedule.rule.flush or schedule.inserted or place.separate:
        raise ScheduleError(
            f"stages of schedule {schedule.name} have no parts",
            want="a schedule whose update waits for a flush",
        )
    homes = tuple(home for home in place.forward for _ in range(parts))
    return build(
        schedule.name,
        [_row(schedule, device, parts) for device in range(schedule.devices)],
        schedule.microbatches,
        placement=Placement.together(homes) if place.backward else Placement(homes),
        lanes=schedule.lanes,
        options={**schedule.options, "parts": parts},
    )


def _row(schedule: Schedule, device: int, parts: int) -> Ops:
    own = slice(*schedule.device_ptr[device : device + 2].tolist())
    kind = np.repeat(schedule.kind[own], parts)
    turn = np.tile(np.arange(parts), len(kind) // parts)
    part = np.where(kind == ActionKind.F, turn, parts - 1 - turn)
    stage = np.repeat(schedule.stage[own].astype("int64"), parts) * parts + part
    return Ops(kind, stage, np.repeat(schedule.microbatch[own], parts))
