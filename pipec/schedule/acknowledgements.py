"""Which message proves that another has arrived: whoever keeps what it sent can then let it go.

```text
device 0   SEND_F m0   SEND_F m1                 RECV_B m0    proves m0 and m1: device 1 had
device 1            RECV_F m0   RECV_F m1   SEND_B m0         received both when it sent this
```

The simulator's memory and the transport that sends read this one table.
"""

from itertools import pairwise

import numpy as np

from pipec.schedule.channels import ChannelKind
from pipec.schedule.schedule import Int64, Schedule
from pipec.schedule.tables import Tables

NONE = -1
_SENDS = [c.send for c in ChannelKind]


def other_ends(schedule: Schedule) -> Int64:
    """By position of a send, receive or copy that of its other end; `NONE` of all else."""
    found, at = np.full(len(schedule), NONE, dtype=np.int64), Tables(schedule)
    for kind in ChannelKind:
        sends = at.rows(kind.send)
        number, replica = schedule.channel[sends] - at.first[kind], schedule.replica[sends]
        if kind is ChannelKind.W:
            arrival = at.weights(kind.receive)[number, replica, schedule.version[sends]]
        else:
            arrival = at.messages(kind, kind.receive)[number, schedule.microbatch[sends]]
        there = arrival < len(schedule)
        found[sends[there]], found[arrival[there]] = arrival[there], sends[there]
    return found


def acknowledgements(schedule: Schedule) -> Int64:
    """By position of a send that of the receive, on the same device, that proves its arrival.

    It is the first message that the receiver sends back after it has received. `NONE` where none
    comes, of copies that stay on their device, and of all that does not send.
    """
    if "acknowledgements" not in schedule.memo:
        schedule.memo["acknowledgements"] = _acknowledgements(schedule)
    found = schedule.memo["acknowledgements"]
    assert isinstance(found, np.ndarray)
    return found


def _acknowledgements(schedule: Schedule) -> Int64:
    other, found = other_ends(schedule), np.full(len(schedule), NONE, dtype=np.int64)
    there = schedule.device[other] != schedule.device
    sends = np.isin(schedule.kind, _SENDS)
    for begin, end in pairwise(schedule.device_ptr.tolist()):
        rows = begin + np.flatnonzero((other[begin:end] != NONE) & there[begin:end])
        where = schedule.device[other[rows]]
        for device in np.unique(where):
            between = rows[where == device]
            back, came = between[sends[between]], between[~sends[between]]
            proof = np.searchsorted(back, came)
            came, proof = came[proof < len(back)], proof[proof < len(back)]
            found[other[came]] = other[back[proof]]
    return found
