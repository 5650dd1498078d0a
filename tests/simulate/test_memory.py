"""Memory over time, by category, against counts made by hand."""

import dataclasses
import json

import numpy as np
import pytest

from pipec.errors import ScheduleError
from pipec.schedule.action import COMPUTE
from pipec.schedule.channels import Channel, ChannelKind, value
from pipec.schedule.comm import insert_comm
from pipec.schedule.lower import lower
from pipec.schedule.offload import insert_offload
from pipec.schedule.registry import generate
from pipec.simulate.memory import CATEGORIES, Curve, Memory, Spans, curves
from pipec.simulate.simulate import from_json, simulate
from pipec.simulate.times import Times

BYTES = Memory(weights=[100, 200], gradients=[100, 200], optimizer=[300, 600], saved=[7, 5])


def changes(curve: Curve, category: str) -> dict[float, float]:
    """Bytes of one category, where they change."""
    column = curve.held[:, CATEGORIES.index(category)].tolist()
    last = dict(zip(curve.time.tolist(), column, strict=True))
    found: dict[float, float] = {}
    for time, held in last.items():
        if not found or held != list(found.values())[-1]:
            found[time] = held
    return found


def test_1f1b_by_category() -> None:
    timeline = simulate(lower(generate("1f1b", 2, 8)), Times.uniform(2), BYTES)
    first, last = timeline.memory_curves
    assert first.at_peak == {
        "weights": 100, "gradients": 100, "optimizer": 300, "activations": 14, "buffers": 0
    }  # fmt: skip
    assert last.at_peak["activations"] == 5
    assert list(timeline.peak_bytes) == [514, 1005]


def test_gradients_are_there_from_the_first_backward_to_the_step() -> None:
    memory = Memory(weights=[1], gradients=[10], saved=[4])
    curve = simulate(lower(generate("gpipe", 1, 2)), Times.uniform(1), memory).memory_curves[0]
    assert changes(curve, "gradients") == {0: 0, 2: 10, 6: 0}


def test_stashed_versions_take_memory() -> None:
    """PipeDream keeps n - i + 1 versions on stage i."""
    timeline = simulate(lower(generate("pipedream", 4, 16)), Times.uniform(4), Memory([1] * 4))
    assert list(timeline.peak_bytes) == [4, 3, 2, 1]


def test_i_frees_what_w_does_not_need() -> None:
    schedule = lower(generate("zb-h1", 4, 8))
    whole = simulate(schedule, Times.uniform(4), Memory(saved=[8] * 4))
    half = simulate(schedule, Times.uniform(4), Memory(saved=[8] * 4, saved_for_w=[2] * 4))
    assert list(whole.peak_bytes) == [32, 32, 32, 32]
    assert list(half.peak_bytes) == [32, 26, 20, 14]


def test_buffers_of_both_ends() -> None:
    """A message is with the sender until it is sent, with the receiver until it is used."""
    schedule = insert_comm(generate("inference", 2, 1), value("h", 0, 1, 10, gradient=False))
    timeline = simulate(schedule, Times.uniform(2, F=1, comm=2))
    sender, receiver = (changes(c, "buffers") for c in timeline.memory_curves)
    assert sender == {0: 0, 1: 10, 3: 0}
    assert receiver == {0: 0, 1: 10, 4: 0}


def test_offload_trades_device_memory_for_copies() -> None:
    plain = generate("gpipe", 1, 8)
    slot = Channel(ChannelKind.H, 0, 0, "saved", 10, depth=2)
    schedule = lower(insert_offload(plain, [slot]))
    number = schedule.channels.index(slot)
    times = Times(Times.uniform(1).compute, host={number: 0.5})
    kept = simulate(lower(plain), times, Memory(saved=[10]))
    moved = simulate(schedule, times, Memory(saved=[0]))
    assert list(kept.peak_bytes) == [80]
    assert list(moved.peak_bytes) == [20]  # one computed and one leaving, or one used, one coming
    assert moved.seconds == kept.seconds + 1  # but for the last out, then the first in, they hide
    slow = simulate(schedule, Times(times.compute, host={number: 3.0}), Memory(saved=[0]))
    assert slow.seconds >= 8 * 3  # bound by the copies, out and in at the same time
    assert slow.peak_bytes <= (40,)


def test_separate_devices_hold_saved_values_only_while_they_use_them() -> None:
    schedule = generate("pipefb", 4, 24)
    bytes_ = [
        Channel(c.kind, c.src, c.dst, nbytes=6, depth=2)
        for c in schedule.channels
        if c.kind is ChannelKind.H
    ]
    timeline = simulate(lower(insert_offload(schedule, bytes_)), Times.uniform(4), Memory())
    assert max(timeline.peak_bytes) <= 12


def test_times_survive_json() -> None:
    """Every field, the times of F and B side by side too."""
    compute = {k: (1.0 + k, 2.0 + k) for k in COMPUTE}
    times = Times(
        compute, ((0.5,), (0.25,)), {3: 0.125}, (4.0, 5.0), (6.0, 7.0), (2.5, 2.75), (1.5,)
    )
    assert Times.from_json(json.loads(json.dumps(times.to_json()))) == times
    assert all(getattr(times, f.name) for f in dataclasses.fields(times))


def test_a_timeline_survives_json() -> None:
    schedule = lower(generate("1f1b", 2, 4))
    timeline = simulate(schedule, Times.uniform(2, comm=0.5), BYTES)
    data = timeline.to_json()
    assert from_json(schedule, data).to_json() == data
    assert data["peak_bytes"] == [514, 1005]
    assert data["critical_path"][0] == "0F0"
    assert sum(data["busy_seconds"]) == pytest.approx(24)


def test_receives_posted_ahead_and_values_kept_until_an_answer() -> None:
    """F and B take a second, messages none; each has 10 bytes, two receives are posted ahead."""
    schedule = insert_comm(generate("gpipe", 2, 3), value("h", 0, 1, 10, depth=None))
    memory = Memory(slots=2)
    first, last = simulate(schedule, Times.uniform(2, B=1), memory).memory_curves
    # device 1 runs F from 1 to 4, B from 4 to 7. Its row begins with a receive, which frees a slot
    # for the third post; gradients that it sent stay until the end of all
    assert changes(last, "buffers") == {
        0: 30, 2: 20, 3: 10, 4: 0, 5: 10, 6: 20, 7: 30, 8: 0
    }  # fmt: skip
    # device 0 runs F from 0 to 3, B from 5 to 8. It posts two receives at once and the third when
    # its row gets to the first; that comes at 5 and proves that all three values came
    assert changes(first, "buffers") == {
        0: 20, 1: 30, 2: 40, 3: 60, 5: 30, 6: 20, 7: 10, 8: 0
    }  # fmt: skip
    saved = simulate(schedule, Times.uniform(2, B=1), Memory(slots=2, saved_too=["h"]))
    assert changes(saved.memory_curves[0], "buffers") == {0: 20, 3: 30, 6: 20, 7: 10, 8: 0}
    again = from_json(schedule, json.loads(json.dumps(saved.to_json())))
    assert again.peak_bytes == saved.peak_bytes


@pytest.mark.parametrize("memory", [Memory(), Memory(slots=2)])
def test_what_two_stages_of_one_device_hand_over_is_there_in_between(memory: Memory) -> None:
    """With any transport. Stages 1 and 2 lie on device 1."""
    order = insert_comm(generate("zbv", 4, 2), value("h", 1, 2, 10))
    timeline = simulate(order, Times.uniform(4, F=2, I=3, W=1), memory)
    end = {str(a): float(t) for a, t in zip(order, timeline.end, strict=True)}
    held = {0.0: 0.0}
    for m in range(2):
        held |= {end[f"1F{m}"]: 10, end[f"2F{m}"]: 0, end[f"2I{m}"]: 10, end[f"1I{m}"]: 0}
    assert changes(timeline.memory_curves[1], "buffers") == held


def test_replicas_share_the_optimizers_state_by_whole_parameters() -> None:
    """Large ones first, where least is: 6 and 3 + 2 of 11; one replica has all."""
    memory = Memory(optimizer=[22, 11], parameters=[[2, 6, 3], [11]])
    assert list(memory.shares([2, 1])) == [6 / 11, 5 / 11, 1]
    assert Memory.from_json(memory.to_json()).parameters == memory.parameters
    with pytest.raises(ScheduleError, match=r"memory\.parameters does not fit"):
        memory.shares([2, 1, 1])


def test_what_shrinks_at_a_moment_goes_before_what_grows() -> None:
    """Whichever end of a span it is: saved values may grow once part of them is let go."""
    begin, size = np.array([0.0, 1.0, 1.0]), np.array([20.0, 10.0, -10.0])
    spans = Spans("activations", np.zeros(3, np.int64), begin, np.array([2.0, 3.0, 3.0]), size)
    (curve,) = curves([spans], 1)
    assert changes(curve, "activations") == {0: 20, 2: 0}
    assert curve.peak == 20
    assert curve.at_peak["activations"] == 20


def test_times_that_differ_by_a_rounding_are_one_moment() -> None:
    """0.1 + 0.2 is above 0.3: what ends then makes room for what begins then."""
    begin, end = np.array([0.0, 0.3, 0.5]), np.array([0.1 + 0.2, 0.4, 1.0])
    (curve,) = curves([Spans("buffers", np.zeros(3, np.int64), begin, end, np.full(3, 8.0))], 1)
    assert curve.peak == 8
    assert (np.diff(curve.time) >= 0).all()
