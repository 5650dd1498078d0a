"""When a device gives memory to copies: in the order of its row, beside no computation.

```text
row     F4  OFFLOAD4  FETCH1  B0  F5  B1
held    what OFFLOAD4 reads: until behind the last computation that begins before the copy ends
        what FETCH1 writes: from the begin of B0 at the latest, though the copy may begin later;
        in place, if OFFLOAD4 has not ended by then, from its end, where that read
```

A GPU is handed actions long before it is done with them, and its allocator takes memory back in the
order in which they are handed over.
"""

import numpy as np

from pipec.schedule.action import ActionKind
from pipec.schedule.schedule import Schedule
from pipec.simulate.times import Float


def find_issue(schedule: Schedule, begin: Float) -> Float:
    """When what each action writes has memory: when it or the computation behind it begins.

    Args:
        schedule: What runs.
        begin: When each action begins.
    """
    compute = np.flatnonzero(schedule.kind <= ActionKind.W)
    behind = np.append(compute, len(schedule))[np.searchsorted(compute, np.arange(len(schedule)))]
    own = np.append(schedule.device, -1)[behind] == schedule.device
    return np.where(own, np.minimum(begin, np.append(begin, 0.0)[behind]), begin)


def find_given_up(schedule: Schedule, device: int, times: tuple[Float, Float] | None) -> list[int]:
    """Where in a device's row the tensors are given up that a copy to host memory reads.

    Args:
        schedule: What runs.
        device: The device whose row it is.
        times: When each action begins and ends; without them a copy ends before the next
            computation begins.

    Returns:
        For a copy at each place: behind the last computation that begins before the copy ends.
    """
    row = slice(*schedule.device_ptr[device : device + 2].tolist())
    compute = np.flatnonzero(schedule.kind[row] <= ActionKind.W)
    place = np.arange(row.stop - row.start)
    behind = np.searchsorted(compute, place)
    if times is not None:
        begin, end = np.maximum.accumulate(times[0][row][compute]), times[1][row]
        behind = np.maximum(behind, np.searchsorted(begin, end))
    last = np.append(-1, compute)[behind]
    found: list[int] = (np.maximum(last, place) + 1).tolist()
    return found
