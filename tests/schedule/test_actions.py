"""Actions and their text form."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipec.errors import ScheduleError
from pipec.schedule.action import Action, ActionKind
from pipec.schedule.channels import ChannelKind, check_channels, value

actions = st.builds(
    Action,
    stage=st.integers(0, 999),
    kind=st.sampled_from(ActionKind),
    microbatch=st.none() | st.integers(0, 9999),
    replica=st.integers(0, 99),
    version=st.integers(0, 9999),
    channel=st.just("") | st.from_regex(r"[a-z0-9_.]+", fullmatch=True),
)


@given(actions)
def test_text_reads_back(action: Action) -> None:
    assert Action.parse(str(action)) == action


def test_text_forms() -> None:
    assert str(Action(2, ActionKind.F, 0)) == "2F0"
    assert str(Action(1, ActionKind.SEND_F, 3)) == "1SEND_F3"
    assert str(Action(0, ActionKind.STEP, version=5)) == "0STEP@5"
    assert str(Action(3, ActionKind.RECV_F, 1, channel="s0.s3.h")) == "3RECV_F1:s0.s3.h"


@pytest.mark.parametrize("text", ["", "F0", "2", "2f0", "2F-1", "2F0.", "2F0@", "F2 0", "2F0 1B0"])
def test_what_is_no_action(text: str) -> None:
    with pytest.raises(ScheduleError, match="not an action"):
        Action.parse(text)


def test_unknown_kind_names_the_known_ones() -> None:
    with pytest.raises(ScheduleError, match="unknown action kind 'X'") as caught:
        Action.parse("2X0")
    assert "SEND_F" in str(caught.value)


def test_a_value_and_its_gradient() -> None:
    there, back = value("h", 0, 3, 64, depth=1)
    assert (there.kind, there.src, there.dst) == (ChannelKind.F, 0, 3)
    assert (back.kind, back.src, back.dst, back.name) == (ChannelKind.B, 3, 0, "h.grad")
    assert len(value("mask", 0, 1, 8, gradient=False)) == 1


def test_channels_that_cannot_be() -> None:
    with pytest.raises(ScheduleError, match="from stage 0 to 4"):
        check_channels(value("h", 0, 4, 1), 4, 4)
    with pytest.raises(ScheduleError, match="two channels have one name"):
        check_channels([*value("h", 0, 1, 1), *value("h", 1, 2, 1)], 4, 4)
    with pytest.raises(ScheduleError, match="no commas or blanks"):
        value("a b", 0, 1, 1)
    with pytest.raises(ScheduleError, match="negative bytes"):
        value("h", 0, 1, -1)
