"""Stages in parts: the same step, cut finer; saved values leave between the parts."""

from dataclasses import replace

import pytest

from pipec.errors import ScheduleError
from pipec.schedule.channels import Channel, ChannelKind
from pipec.schedule.lower import lower
from pipec.schedule.offload import insert_offload
from pipec.schedule.registry import generate, stages_on, without_parts
from pipec.simulate.memory import Memory
from pipec.simulate.simulate import simulate
from pipec.simulate.times import Times
from pipec.simulate.verify import check

NAMES = ("gpipe", "1f1b", "1f1b-so", "interleaved", "zb-h1", "zbv", "dualpipev", "fbp-as")


@pytest.mark.parametrize("parts", [2, 3])
@pytest.mark.parametrize("name", NAMES)
def test_parts_of_an_equal_share_take_the_time_of_the_whole(name: str, parts: int) -> None:
    whole = generate(name, 4, 8)
    fine = generate(f"{name}{{parts={parts}}}", 4 * parts, 8)
    check(lower(fine))
    assert [fine.placement.forward[s * parts + k] for s in range(4) for k in range(parts)] == [
        home for home in whole.placement.forward for _ in range(parts)
    ]
    took = simulate(lower(whole), Times.uniform(4, F=parts, I=parts, W=parts))
    same = simulate(lower(fine), Times.uniform(4 * parts, F=1, I=1, W=1))
    assert same.seconds == pytest.approx(took.seconds)
    assert str(without_parts(fine)) == str(whole)


def test_copies_of_the_pipeline_have_parts_too() -> None:
    both = generate("1f1b{parts=2 replicas=2}", 4, 8)
    assert both.devices == 4
    check(lower(both))
    assert [stages_on(f"1f1b{{parts={k}}}", 4, 8) for k in (1, 2, 4)] == [4, 8, 16]


@pytest.mark.parametrize(
    ("name", "stages", "told"),
    [
        ("1f1b{parts=3}", 4, "cannot be dealt out evenly to the parts"),
        ("1f1b{parts=0}", 4, "cannot be dealt out evenly to the parts"),
        ("pipedream{parts=2}", 4, "no option 'parts'"),
        ("pipemare{parts=2}", 4, "have no parts"),
    ],
)
def test_what_has_no_parts_is_refused(name: str, stages: int, told: str) -> None:
    with pytest.raises(ScheduleError, match=told):
        generate(name, stages, 4)


def test_with_one_microbatch_in_flight_values_leave_inside_a_forward() -> None:
    """One device, eight values of a byte, 1 s each way to compute and to copy."""
    parts = 8
    order = generate(f"1f1b{{parts={parts}}}", parts, 1)
    slots = [Channel(ChannelKind.H, s, s, f"s{s}", 1, 1) for s in range(parts - 2)]
    moved = insert_offload(order, slots)
    host = {k: 1.0 for k, c in enumerate(moved.channels) if c.kind is ChannelKind.H}
    times = Times.uniform(parts, F=1, B=1)
    kept = Memory(saved=[0.0] * (parts - 2) + [1.0, 1.0])
    timeline = simulate(moved, replace(times, host=host), kept)
    plain = simulate(order, times, Memory(saved=[1.0] * parts))
    assert plain.peak_bytes[0] == 8
    assert timeline.peak_bytes[0] == 2  # one that is computed, and one that leaves or comes
    assert timeline.seconds == plain.seconds  # every copy runs beside another part
