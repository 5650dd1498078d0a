"""Forward and backward on two devices: the choice against the simulator and all decisions."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipec.residency.bound import bound
from pipec.residency.choose import DoesNotFitError, choose
from pipec.residency.play import Slot
from pipec.residency.problem import OFFLOAD, RECOMPUTE, IntArray, Problem
from pipec.schedule.channels import Channel, ChannelKind
from pipec.schedule.offload import insert_offload
from pipec.schedule.registry import generate
from pipec.simulate.memory import Memory
from pipec.simulate.simulate import simulate
from pipec.simulate.times import Times

COUNT, STEADY = 30, 14


def simulated(p: Problem, decision: IntArray, slots: tuple[Slot, ...]) -> tuple[float, list[float]]:
    """(seconds between two microbatches, peak of either device) of one stage of pipefb."""
    sizes = [int(p.nbytes[list(s.values)].sum()) for s in slots]
    channels = [
        Channel(ChannelKind.H, 0, 0, f"x{k}", size, s.depth)
        for k, (s, size) in enumerate(zip(slots, sizes, strict=True))
    ]
    schedule = generate("pipefb", 1, COUNT, publish=COUNT)
    host = {}
    if channels:
        schedule = insert_offload(schedule, channels)
        host = {
            n: c.nbytes / p.bandwidth
            for n, c in enumerate(schedule.channels)
            if c.kind is ChannelKind.H
        }
    else:
        schedule = insert_offload(schedule)
    backward = p.backward + p.again_seconds(decision)
    times = Times(Times.of_stages([p.forward], [backward]).compute, host=host)
    working = Memory(workspace={"B": [p.working_bytes(decision)]})
    timeline = simulate(schedule, times, working)
    ends = {a.microbatch: end for a, _, end in map(timeline.action, range(len(schedule)))
            if a.kind.name == "B"}  # fmt: skip
    return (ends[COUNT - 1] - ends[STEADY]) / (COUNT - 1 - STEADY), list(timeline.peak_bytes)


@st.composite
def stages(draw: st.DrawFn, values: int = 3) -> Problem:
    nbytes = np.array([draw(st.integers(1, 9)) for _ in range(values)], float)
    again = st.one_of(st.just(np.inf), st.floats(0.05, 2))
    recompute = np.array([draw(again) for _ in range(values)])
    times, cap = st.floats(0.1, 4), st.floats(0.3, 2.2)
    whole = float(nbytes.sum())
    return Problem(
        nbytes,
        recompute,
        draw(times),
        draw(times),
        whole * draw(cap),
        draw(st.sampled_from([1.0, 4.0, 40.0])),
        behind=whole * draw(cap),
        parts=draw(st.booleans()),
    )


def every(p: Problem) -> list[tuple[IntArray, tuple[Slot, ...]]]:
    """All decisions, and all ways to deal what leaves into slots of depth 1 and 2."""
    able = np.isfinite(p.recompute)
    depths = (1, 2) if p.parts else (2,)
    fates = [[*depths, *([0] if able[v] else [])] for v in range(p.values)]
    found = []
    for each in product(*fates):
        decision = np.where(np.array(each) == 0, RECOMPUTE, OFFLOAD)
        slots = [Slot(d, tuple(v for v, e in enumerate(each) if e == d)) for d in (1, 2)]
        found.append((decision, tuple(s for s in slots if s.values)))
    return found


@settings(max_examples=25, deadline=None)
@given(stages())
def test_bound_below_all_that_fits_and_the_choice_is_what_the_simulator_says(p: Problem) -> None:
    fitting = []
    assert p.behind is not None
    for decision, slots in every(p):
        seconds, (ahead, behind) = simulated(p, decision, slots)
        if ahead <= p.cap and behind <= p.behind:
            fitting.append(seconds)
    least = p.step_seconds + bound(p).added_seconds
    assert least <= min(fitting, default=np.inf) * (1 + 1e-6)
    try:
        found = choose(p)
    except DoesNotFitError:  # without parts, two sets need not meet where one side is slow
        assert not (fitting and p.parts)
        return
    seconds, (ahead, behind) = simulated(p, found.decision, found.slots)
    assert seconds == pytest.approx(found.seconds)
    assert ahead <= p.cap * (1 + 1e-9)
    assert behind <= p.behind * (1 + 1e-9)
    assert not p.parts or found.seconds <= min(fitting) * 1.1


def stage(cap: float, behind: float, bandwidth: float) -> Problem:
    """Ten values of 10 bytes, 0.1 s to recompute each; forward 4 s, backward 8 s."""
    return Problem(np.full(10, 10.0), np.full(10, 0.1), 4, 8, cap, bandwidth, behind=behind)


def test_with_room_for_two_sets_nothing_is_added() -> None:
    found = choose(stage(200, 200, 20))
    assert (found.added, found.bound, len(found.slots)) == (0, 0, 1)
    assert (found.decision == OFFLOAD).all()


def test_a_slow_link_recomputes_to_be_faster_though_everything_fits() -> None:
    """100 bytes at 10 bytes per second take 10 s; each value that stays away saves 1 s."""
    found = choose(stage(200, 210, 10))
    assert int((found.decision == RECOMPUTE).sum()) == 2  # 8 s of copies beside 8.2 s
    assert found.seconds == pytest.approx(8.2)
    assert found.bound <= found.added <= found.bound + 2e-3


def test_little_room_is_bought_with_time_or_recomputation() -> None:
    p = stage(150, 150, 100)
    found = choose(p)
    assert found.seconds == pytest.approx(min(8 + 0.5, 8 + 0.3))  # 50 bytes, or 3 values less
    fixed = replace(p, recompute=np.full(10, np.inf))
    assert choose(fixed).seconds == pytest.approx(8.5)
    assert [s.depth for s in choose(fixed).slots] == [1, 2]
    with pytest.raises(DoesNotFitError, match="100 bytes at least"):
        choose(replace(fixed, cap=90.0))
