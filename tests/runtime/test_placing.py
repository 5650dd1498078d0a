"""What a message proves: that its sender's row has received others before it."""

import pytest

from pipec.runtime.placing import Messages
from pipec.runtime.program import Program
from pipec.runtime.rounds import Rounds
from pipec.runtime.transport import Incoming
from tests.autodiff.zoo import CASES, seeded
from tests.runtime.pipelines import scheduled, staged


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1", "pipedream"])
def test_an_answer_proves_what_its_sender_has_received_before(schedule: str) -> None:
    case = CASES["mlp"]
    plan = staged(case, seeded(case), 2)
    order = scheduled(plan, schedule, 6)
    rounds = Rounds(order, 0)
    rounds.begin(None)
    coming = list(Messages(Program.of(plan, order), rounds).list_expected(rounds.row()))
    microbatches = [c.message.number for c in coming]
    proved: list[int] = []
    for c in coming:
        assert all((m.src, m.dst) == (0, 1) for m in c.proves)
        proved += [m.number for m in c.proves]
        assert c.message.number in proved  # the gradient of a value proves the value
    assert sorted(proved) == sorted(microbatches) == list(range(6))
    if schedule == "1f1b":
        assert [len(c.proves) for c in coming] == [1] * 6


def test_nothing_is_proved_where_nothing_goes_back() -> None:
    case = CASES["mlp"]
    plan = staged(case, seeded(case), 2)
    order = scheduled(plan, "inference", 3)
    rounds = Rounds(order, 1)
    rounds.begin(None)
    found: list[Incoming] = list(
        Messages(Program.of(plan, order), rounds).list_expected(rounds.row())
    )
    assert len(found) == 3
    assert not any(c.proves for c in found)
