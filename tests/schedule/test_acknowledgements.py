"""What proves that a send has arrived, against the definition, over all schedules."""

from collections import defaultdict

import pytest

from pipec.schedule.acknowledgements import NONE, acknowledgements
from pipec.schedule.action import ActionKind
from pipec.schedule.channels import ChannelKind
from pipec.schedule.schedule import Schedule
from tests.simulate.cases import IDS, VARIANTS, full


def message(schedule: Schedule, i: int) -> tuple[int, ...]:
    """What an action moves, equal for both ends of a message; empty for compute."""
    a, channel = schedule[i], int(schedule.channel[i])
    kind = next((k for k in ChannelKind if a.kind in (k.send, k.receive)), None)
    if kind is None:
        return ()
    return (channel, *((a.replica, a.version) if kind is ChannelKind.W else (a.microbatch or 0,)))


def proofs(schedule: Schedule) -> list[int]:
    """Of every send the receive that proves it, by looking through its receiver's row."""
    here, ends = schedule.device, defaultdict[tuple[int, ...], list[int]](list)
    kinds = [k.send for k in ChannelKind]
    told = [message(schedule, i) for i in range(len(schedule))]
    for i, m in enumerate(told):
        ends[m].append(i)

    def other(i: int) -> int:
        """The other end of a message between two devices."""
        return next((e for e in ends[told[i]] if told[i] and here[e] != here[i]), NONE)

    def proof(i: int) -> int:
        """The first message back."""
        there = other(i)
        if schedule.kind[i] not in kinds or there == NONE:
            return NONE
        row = range(there, int(schedule.device_ptr[here[there] + 1]))
        back = [other(j) for j in row if schedule.kind[j] in kinds]
        return next((j for j in back if j != NONE and here[j] == here[i]), NONE)

    return [proof(i) for i in range(len(schedule))]


@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=IDS)
def test_the_first_message_back_proves_a_send(name: str, options: dict[str, object]) -> None:
    schedule = full(name, 4, 6, options)
    assert acknowledgements(schedule).tolist() == proofs(schedule)


@pytest.mark.parametrize("saved", ["host", "direct"])
def test_weights_that_come_back_prove_saved_values(saved: str) -> None:
    """Where forward and backward are apart, new weights are the only message from B to F."""
    schedule = full("pipefb", 1, 4, {"saved": saved})
    found = acknowledgements(schedule)
    left = ActionKind.OFFLOAD if saved == "host" else ActionKind.SEND_S
    sends = [i for i in range(len(schedule)) if schedule.kind[i] == left]
    proof = {ActionKind(int(schedule.kind[found[i]])) for i in sends if found[i] != NONE}
    assert proof == {ActionKind.RECV_W}
