"""Buffers of a transport that posts receives ahead and keeps what it sent until that is proven.

```text
receiver   buffer       from its post, up to ``slots`` of a channel ahead of the row
sender     kept value   until a message comes back that its receiver sent after taking the value
```

Receives are posted in the order of the row. They wait for a channel without a free slot, and with
them all that come later (`pipec.runtime.process_group` does the same).
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pipec.schedule.acknowledgements import NONE, acknowledgements
from pipec.schedule.action import FROM_HOST, ActionKind
from pipec.schedule.channels import ChannelKind
from pipec.schedule.schedule import Schedule
from pipec.simulate.times import Float

_K = ActionKind
_BESIDE = (*(c.send for c in ChannelKind), *FROM_HOST, _K.OFFLOAD_O)
"""What a device's row does not wait for."""


@dataclass(frozen=True, eq=False)
class Posted:
    """When buffers of messages are there.

    Attributes:
        schedule: What ran.
        end: When each action ended.
        slots: Receives of one channel that are posted ahead.
    """

    schedule: Schedule
    end: Float
    slots: int

    @cached_property
    def from_post(self) -> Float:
        """By position of a receive, when its buffer is posted."""
        s, found = self.schedule, np.zeros(len(self.schedule))
        receives = np.isin(s.kind, [c.receive for c in ChannelKind if c is not ChannelKind.H])
        for device in range(s.devices):
            begin, end = s.device_ptr[device : device + 2]
            rows = begin + np.flatnonzero(receives[begin:end])
            freed = np.zeros(len(rows), np.int64)  # behind so many receives a slot is free
            for channel in np.unique(s.channel[rows]):
                own = np.flatnonzero(s.channel[rows] == channel)
                freed[own[self.slots :]] = own[: -self.slots] + 1
            taken = np.append(0.0, self._reached[rows])
            found[rows] = taken[np.maximum.accumulate(freed)]
        return found

    @cached_property
    def until_proven(self) -> Float:
        """By position of a send, when its acknowledgement comes; else the end of all."""
        proof = acknowledgements(self.schedule)
        taken = np.maximum(self._reached, self.end)
        return np.where(proof == NONE, self.end.max(initial=0.0), taken[proof])

    @cached_property
    def _reached(self) -> Float:
        """When each device's row gets to an action: all before it but sends and copies are done."""
        s = self.schedule
        before = np.where(np.isin(s.kind, _BESIDE), 0.0, self.end)
        found = np.zeros(len(s))
        for begin, end in zip(s.device_ptr[:-1], s.device_ptr[1:], strict=True):
            found[begin + 1 : end] = np.maximum.accumulate(before[begin:end])[:-1]
        return found
