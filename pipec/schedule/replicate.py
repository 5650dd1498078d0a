"""Data-parallel copies of a pipeline as one schedule: copy k runs microbatches k, k + r, ...

```text
1f1b, 2 stages, 2 copies, 4 microbatches      adjacent=stages          adjacent=replicas
copy 0  0F0 0F2 0B0 0B2 | 1F0 1B0 1F2 1B2     devices 0, 1             devices 0, 2
copy 1  0F1 0F3 0B1 0B3 | 1F1 1B1 1F3 1B3     devices 2, 3             devices 1, 3
```

Gradients are summed over the copies by `pipec.schedule.steps.insert_reduce`.
"""

from pipec.errors import ScheduleError
from pipec.schedule.build import Ops, build
from pipec.schedule.schedule import Placement, Schedule

ADJACENT = ("stages", "replicas")
"""What may lie on neighbouring devices: stages of one copy, or copies of one stage."""


def device_of(position: int, copy: int, *, depth: int, replicas: int, adjacent: str) -> int:
    """Index of the device at a position of one copy of a pipeline.

    Example:
        >>> [device_of(1, 0, depth=2, replicas=3, adjacent=a) for a in ADJACENT]
        [1, 3]
    """
    return copy * depth + position if adjacent == "stages" else position * replicas + copy


def replicate(schedule: Schedule, replicas: int, adjacent: str = "stages") -> Schedule:
    """The schedule of ``replicas`` copies of a pipeline, each with an equal share of microbatches.

    Args:
        schedule: Of one copy: compute actions, one device per stage, an update after a flush.
        replicas: Copies r; the new schedule has r times as many microbatches and devices.
        adjacent: One of `ADJACENT`.

    Raises:
        ScheduleError: The schedule updates weights without a flush, or the options make no sense.
    """
    if adjacent not in ADJACENT or replicas < 1:
        raise ScheduleError(
            "no such replicas",
            got=f"replicas={replicas}, adjacent={adjacent}",
            want="replicas of 1 or more, adjacent=stages or adjacent=replicas",
        )
    if replicas == 1:
        return schedule
    place = schedule.placement
    if not schedule.rule.flush or schedule.inserted or place.separate:
        raise ScheduleError(
            f"schedule {schedule.name} cannot be copied", want="one whose update waits for a flush"
        )
    depth = schedule.devices
    at = {
        device_of(d, k, depth=depth, replicas=replicas, adjacent=adjacent): (d, k)
        for d in range(depth)
        for k in range(replicas)
    }
    home = {origin: device for device, origin in at.items()}
    stages = tuple(tuple(home[d, k] for k in range(replicas)) for (d,) in place.forward)
    return build(
        schedule.name,
        [_row(schedule, *at[device], replicas) for device in range(depth * replicas)],
        schedule.microbatches * replicas,
        placement=Placement.together(stages) if place.backward else Placement(stages),
        channels=schedule.channels,
        lanes=schedule.lanes,
        options={**schedule.options, "replicas": replicas, "adjacent": adjacent},
    )


def _row(schedule: Schedule, device: int, copy: int, replicas: int) -> Ops:
    """The actions of one device, with the microbatches of a copy."""
    own = slice(*schedule.device_ptr[device : device + 2].tolist())
    microbatch = schedule.microbatch[own].astype("int64") * replicas + copy
    return Ops(schedule.kind[own], schedule.stage[own], microbatch)
