"""Everything that a schedule of compute actions still lacks, added in the right order."""

import dataclasses

from pipec.schedule.channels import ChannelKind
from pipec.schedule.comm import VALUES, insert_comm
from pipec.schedule.offload import insert_offload
from pipec.schedule.schedule import Schedule
from pipec.schedule.steps import insert_reduce, insert_steps


def lower(schedule: Schedule, *, depth: int | None = None, comm: str = "links") -> Schedule:
    """Offload, reductions, steps and communication on the schedule's own channels.

    Args:
        schedule: Compute actions; passes that ran already are not repeated.
        depth: Slots of every channel between devices; None for no limit, 0 for rendezvous.
        comm: Lanes of sends and receives (`LanePolicy.comm`).

    Example:
        >>> from pipec.schedule.registry import generate
        >>> print(lower(generate("1f1b", stages=2, microbatches=1)))
        0: 0F0 0SEND_F0 0RECV_B0 0B0 0STEP@1
        1: 1RECV_F0 1F0 1B0 1SEND_B0 1STEP@1
    """
    done = schedule.inserted
    if "offload" not in done and any(c.kind is ChannelKind.H for c in schedule.channels):
        schedule = insert_offload(schedule)
    if schedule.training and "steps" not in done:
        if "reduce" not in done:
            schedule = insert_reduce(schedule)
        schedule = insert_steps(schedule)
    if "comm" in done:
        return schedule
    channels = [
        c if depth is None and c.kind is ChannelKind.S else dataclasses.replace(c, depth=depth)
        for c in schedule.channels
        if c.kind in VALUES
    ]
    return insert_comm(schedule, channels, comm=comm)
