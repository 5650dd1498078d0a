"""Insertion of sends, offload, reductions and steps; forms that read back."""

import pytest
from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

from pipec.errors import ScheduleError
from pipec.schedule.action import ActionKind
from pipec.schedule.channels import Channel, ChannelKind, value
from pipec.schedule.comm import insert_comm
from pipec.schedule.csv_form import from_csv, to_csv
from pipec.schedule.dependencies import dependencies, waits_for
from pipec.schedule.json_form import from_json, to_json
from pipec.schedule.lower import lower
from pipec.schedule.offload import insert_offload
from pipec.schedule.registry import generate
from pipec.schedule.schedule import Schedule
from pipec.schedule.steps import insert_reduce, insert_steps
from pipec.simulate.simulate import simulate
from pipec.simulate.times import Times
from pipec.simulate.verify import verify
from tests.simulate.cases import IDS, VARIANTS, full


def text(schedule: Schedule) -> list[str]:
    return [" ".join(map(str, row)) for row in schedule.rows()]


def test_sends_behind_producers_and_receives_before_consumers() -> None:
    assert text(insert_comm(generate("1f1b", 2, 2))) == [
        "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1",
        "1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1",
    ]


def test_values_that_skip_stages_and_several_per_hop() -> None:
    channels = [
        *value("h", 0, 1, 8),
        *value("k", 1, 2, 8),
        *value("skip", 0, 2, 4),
        *value("mask", 1, 2, 1, gradient=False),
    ]
    schedule = insert_comm(generate("1f1b", 3, 2), channels)
    verify(schedule)
    assert text(schedule)[0].startswith("0F0 0SEND_F0:h 0SEND_F0:skip 0F1")
    index = next(i for i in range(len(schedule)) if str(schedule[i]) == "2F1")
    awaited = {str(a) for a in waits_for(schedule, index)}
    assert awaited == {"2RECV_F1:k", "2RECV_F1:skip", "2RECV_F1:mask"}
    lanes = simulate(schedule, Times.uniform(3, comm=0.5)).lane_use
    assert "0.out:2" in lanes
    assert "2.out:0" in lanes


def test_neighbours_on_one_device_hand_values_over() -> None:
    """The tip of a V: stages 1 and 2 share device 1."""
    schedule = insert_comm(generate("zbv", 4, 3))
    assert not any("SEND_F" in str(a) and a.stage == 1 for a in schedule)
    assert any("SEND_F" in str(a) and a.stage == 0 for a in schedule)


@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=IDS)
def test_receives_stand_in_the_order_of_sends(name: str, options: dict[str, object]) -> None:
    """NCCL matches the n-th send to a rank with the n-th receive from it."""
    schedule = full(name, 4, 12, options)
    sent: dict[tuple[int, int], list[tuple[str, int]]] = {}
    received: dict[tuple[int, int], list[tuple[str, int]]] = {}
    place = schedule.placement
    for device in range(schedule.devices):
        for i in range(schedule.device_ptr[device], schedule.device_ptr[device + 1]):
            kind, m = schedule[i].kind, schedule[i].microbatch
            if kind.name not in ("SEND_F", "RECV_F", "SEND_B", "RECV_B"):
                continue
            channel = schedule.channels[schedule.channel[i]]
            phase = place.forward if channel.kind is ChannelKind.F else place.backward
            assert m is not None
            ends = [phase[s][m % len(phase[s])] for s in (channel.src, channel.dst)]
            book = sent if kind.name.startswith("SEND") else received
            book.setdefault((ends[0], ends[1]), []).append((f"{channel.kind}{channel.src}", m))
    assert sent == received


def test_reductions_and_steps() -> None:
    schedule = lower(generate("pipedream", 2, 4, replicas=[2, 1]))
    assert text(schedule)[0].split()[-2:] == ["0REDUCE_GRAD@2", "0STEP@2"]
    assert "1STEP@3" in text(schedule)[2]
    assert "REDUCE" not in text(schedule)[2]


def test_weights_are_published_where_passes_lie_apart() -> None:
    schedule = lower(generate("pipefb", 1, 5, publish=0))
    assert text(schedule) == [
        "0F0 0OFFLOAD0 0F1 0OFFLOAD1 0RECV_W@1 0F2@1 0OFFLOAD2 0RECV_W@2 0F3@2 0OFFLOAD3 "
        "0RECV_W@3 0F4@3 0OFFLOAD4",
        "0FETCH0 0FETCH1 0B0 0STEP@1 0SEND_W@1 0FETCH2 0B1 0STEP@2 0SEND_W@2 0FETCH3 0B2@1 "
        "0STEP@3 0SEND_W@3 0FETCH4 0B3@2 0STEP@4 0B4@3 0STEP@5",
    ]


def test_offload_copies_beside_compute() -> None:
    slot = Channel(ChannelKind.H, 0, 0, "x", 4, depth=2)
    schedule = insert_offload(generate("gpipe", 1, 2), [slot])
    assert text(schedule) == ["0F0 0OFFLOAD0:x 0F1 0OFFLOAD1:x 0FETCH0:x 0FETCH1:x 0B0 0B1"]
    verify(lower(schedule))


def test_slots_of_many_stages_take_few_columns() -> None:
    """Waiting is a rectangle; it is as wide as one action's waits, not as there are channels."""
    plain = generate("1f1b", 12, 24)
    slots = [Channel(ChannelKind.H, s, s, f"{x}{s}", 1, 2) for s in range(12) for x in "ab"]
    schedule = lower(insert_offload(plain, slots))
    verify(schedule)
    assert len(dependencies(schedule).columns) <= 5


def test_passes_refuse_to_run_twice_and_what_does_not_train() -> None:
    once = insert_comm(insert_steps(insert_reduce(generate("1f1b", 2, 2))))
    for again in (insert_comm, insert_steps, insert_reduce):
        with pytest.raises(ScheduleError, match="already"):
            again(once)
    with pytest.raises(ScheduleError, match="without backward"):
        insert_steps(generate("inference", 2, 2))
    with pytest.raises(ScheduleError, match="not a host slot"):
        insert_offload(generate("gpipe", 1, 1), [Channel(ChannelKind.S, 0, 0)])


@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=IDS)
def test_json_reads_back(name: str, options: dict[str, object]) -> None:
    schedule = full(name, 4, 12, options)
    again = from_json(to_json(schedule))
    assert to_json(again) == to_json(schedule)
    for column, values in schedule.columns().items():
        assert (again.columns()[column] == values).all()
    verify(again)


@pytest.mark.parametrize(
    ("name", "options"), [c for c in VARIANTS if c[0] not in ("pipefb", "inference")]
)
def test_csv_reads_back(name: str, options: dict[str, object]) -> None:
    """What torch's format has room for: all but the versions."""
    plain = generate(name, 4, 12, **options)
    for schedule in (plain, insert_comm(plain), lower(plain)):
        again = from_csv(to_csv(schedule))
        verify(again)
        again = insert_steps(again) if "steps" in schedule.inserted else again
        assert to_csv(again) == to_csv(schedule)
        assert again.placement == schedule.placement


def test_saved_values_that_move_have_no_csv() -> None:
    plain = generate("pipefb", 2, 3)
    verify(from_csv(to_csv(plain)))
    with pytest.raises(ScheduleError, match="no word for saved values") as caught:
        to_csv(lower(plain))
    assert caught.value.got == "FETCH, OFFLOAD"


@pytest.mark.parametrize("name", ["GPipe", "LoopedBFS", "Interleaved1F1B", "ZBVZeroBubble"])
def test_csv_that_torch_lowered(name: str) -> None:
    """With its sends, receives, gathering of shards and reductions of gradients."""
    chunks = 1 if name == "GPipe" else 2
    plain, full = (
        get_schedule_ops(name, 4, 8, num_stages_per_rank=chunks, with_comms=comms)
        for comms in (False, chunks > 1)
    )
    found = []
    for rows in (plain, full):
        schedule = from_csv(
            "\n".join(",".join("" if a is None else str(a) for a in r) for r in rows)
        )
        verify(schedule)
        found.append(simulate(lower(schedule), Times.uniform(4 * chunks)).seconds)
    assert any("REDUCE_GRAD" in str(a) for a in full[0])
    assert found[0] == found[1]


def test_csv_of_torch_with_overlap_shards_and_bubbles() -> None:
    schedule = from_csv("0UNSHARD,0F0,,(1F0;1B0)OVERLAP_F_B,0B0,0RESHARD\n")
    assert text(schedule) == ["0F0 1F0 1B0 0B0"]


@pytest.mark.parametrize(
    ("csv", "message"),
    [
        ("0F0,0X0\n", "unknown action kind 'X'"),
        ("0F0\n1F0,what\n", "line 2, cell 2"),
        ("", "needs actions"),
        ("2F0,2B0\n", "stage 0 has no F"),
    ],
)
def test_bad_csv(csv: str, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        from_csv(csv)


def test_bad_json() -> None:
    data = to_json(generate("1f1b", 2, 2))
    with pytest.raises(ScheduleError, match="another version"):
        from_json({**data, "version": 99})
    with pytest.raises(ScheduleError, match="not the JSON form"):
        from_json({k: v for k, v in data.items() if k != "rows"})
    with pytest.raises(ScheduleError, match="fits 0 channels"):
        from_json({**data, "rows": ["0F0 0SEND_F0:nothing 0B0", "1F0 1B0"]})


def test_kinds_of_the_table_are_the_kinds_of_the_text() -> None:
    assert {k.name for k in ActionKind} >= {"F", "B", "I", "W", "SEND_F", "RECV_B", "STEP"}
