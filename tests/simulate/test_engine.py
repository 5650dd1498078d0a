"""Both engines and a third, naive one agree; unlike times, links, replicas, reductions."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipec.errors import ScheduleError
from pipec.schedule.action import ActionKind
from pipec.schedule.channels import Channel, ChannelKind
from pipec.schedule.comm import insert_comm
from pipec.schedule.csv_form import from_csv
from pipec.schedule.lower import lower
from pipec.schedule.registry import generate
from pipec.schedule.schedule import Schedule
from pipec.schedule.steps import insert_reduce
from pipec.simulate.deadlock import shortest_cycle
from pipec.simulate.engine import WAVEFRONT_FROM, Prepared, run, wavefront, worklist
from pipec.simulate.simulate import simulate
from pipec.simulate.times import Times
from tests.simulate.cases import VARIANTS, full


def naive(prepared: Prepared, seconds: np.ndarray) -> np.ndarray:
    """Relax until nothing changes: the longest path by definition."""
    count = len(seconds)
    before = [count] * count
    for a, b in zip(prepared.queue.start[:-1], prepared.queue.start[1:], strict=True):
        row = prepared.queue.order[a:b].tolist()
        for first, second in pairwise(row):
            before[second] = first
    end = np.append(seconds, [0.0, np.inf])
    changed = True
    while changed:
        changed = False
        for i in range(count):
            ready = max(end[j] for j in [before[i], *prepared.waits.of(i)])
            if ready + seconds[i] > end[i]:
                end[i], changed = ready + seconds[i], True
    return end[:count]


@settings(max_examples=40, deadline=None)
@given(case=st.sampled_from(VARIANTS), seed=st.integers(0, 2**32 - 1))
def test_three_engines_agree(case: tuple[str, dict[str, object]], seed: int) -> None:
    schedule = full(case[0], 4, 12, case[1])
    prepared = Prepared.of(schedule)
    seconds = np.random.default_rng(seed).integers(0, 9, len(schedule)) / 4
    want = naive(prepared, seconds)
    view = prepared.whole
    assert len(view.rows) == len(schedule)
    for engine in (wavefront, worklist):
        end, stuck = engine(view, np.stack([seconds[view.rows], 0 * seconds]))
        assert not stuck
        assert (end[: len(schedule)] == want[view.rows]).all()


@settings(max_examples=40, deadline=None)
@given(case=st.sampled_from(VARIANTS), seed=st.integers(0, 2**32 - 1))
def test_receives_may_be_left_out_and_sends_follow(
    case: tuple[str, dict[str, object]], seed: int
) -> None:
    prepared = Prepared.of(full(case[0], 4, 12, case[1]))
    seconds = np.random.default_rng(seed).integers(0, 9, len(prepared.schedule)) / 4
    seconds[prepared.short.dropped] = 0
    want = naive(prepared, seconds)
    assert (run(prepared, seconds.take).end[:-2] == want).all()
    view = prepared.short
    took = np.stack([seconds[view.rows], np.zeros(len(view.rows))])
    took[1, view.follows - len(view.rows)] = seconds[view.followers]
    for engine in (wavefront, worklist):
        end, _ = engine(view, took)
        assert (end[: len(view.rows)] == want[view.rows]).all()
        assert (end[view.follows] == want[view.followers]).all()


@settings(max_examples=40, deadline=None)
@given(
    case=st.sampled_from(VARIANTS),
    depth=st.sampled_from([None, 1, 2, 3]),
    F=st.lists(st.integers(1, 9), min_size=6, max_size=6),
    B=st.lists(st.integers(1, 9), min_size=6, max_size=6),
    comm=st.integers(0, 4),
)
def test_bounds(
    case: tuple[str, dict[str, object]], depth: int | None, F: list[int], B: list[int], comm: int
) -> None:
    """No less than the busiest lane and the longest chain; no lane runs two things at a time."""
    plain = generate(case[0], 4, 12, **case[1])
    schedule = lower(plain, depth=depth)
    n = schedule.stages
    times = Times.of_stages(F[:n], B[:n], comm=comm)
    timeline = simulate(schedule, times)
    assert timeline.seconds >= max(timeline.busy)
    assert timeline.seconds >= simulate(plain, times).seconds
    assert all(use <= 1 + 1e-12 for use in timeline.lane_use.values())
    order, start = timeline.lanes.order, timeline.lanes.start
    for a, b in pairwise(start):
        rows = order[a:b]
        assert (timeline.begin[rows][1:] >= timeline.end[rows][:-1]).all()
    path = timeline.critical_path
    took = (timeline.end - timeline.begin)[path]
    assert took.sum() == pytest.approx(timeline.seconds)


def test_unlike_stages_are_bound_by_the_slowest() -> None:
    times = Times.of_stages([1, 3, 1], [2, 6, 2])
    assert simulate(generate("1f1b", 3, 20), times).seconds == 1 + 20 * 9 + 2


def test_unlike_links() -> None:
    """One slow link: its channel's own time, in both directions."""
    schedule = insert_comm(generate("gpipe", 3, 4))
    slow = tuple((4.0 if {c.src, c.dst} == {1, 2} else 0.5,) for c in schedule.channels)
    even = Times.uniform(3, comm=0.5)
    timeline = simulate(schedule, Times(even.compute, transfer=slow))
    assert timeline.seconds == 1 + 0.5 + 1 + 4 * 4 + 1 + 2 + 4 * 4 + 2 + 0.5 + 2
    assert timeline.lane_use["1.out:2"] == 16 / timeline.seconds


def test_replicas_share_the_work() -> None:
    """A stage twice as slow on two replicas keeps up with one that is not."""
    one = simulate(generate("pipedream", 2, 40), Times.of_stages([2, 1], [4, 2]))
    two = simulate(generate("pipedream", 2, 40, replicas=[2, 1]), Times.of_stages([2, 1], [4, 2]))
    assert one.seconds / two.seconds == pytest.approx(2, rel=0.06)


def test_reductions_beside_the_backward_or_behind_it() -> None:
    """DDP: overlapped, an update takes F + max(B, R); else F + B + R."""
    for reduce, beside, behind in ((1.0, 3.0, 4.0), (2.0, 3.0, 5.0), (5.0, 6.0, 8.0)):
        for overlap, each in ((True, beside), (False, behind)):
            schedule = insert_reduce(generate("pipedream", 1, 12, replicas=[2]), overlap=overlap)
            schedule, even = lower(schedule), Times.uniform(1)
            times = Times(even.compute, reduce=(reduce,))
            assert simulate(schedule, times).seconds == 6 * each


def test_replicas_reduce_together() -> None:
    """A late replica holds the others up: both reductions of an update start at one time."""
    schedule = lower(generate("pipedream", 2, 8, replicas=[2, 1]))
    timeline = simulate(schedule, Times(Times.uniform(2).compute, reduce=(1.5, 0)))
    starts: dict[int, set[float]] = {}
    for index in np.flatnonzero(schedule.kind == ActionKind.REDUCE_GRAD).tolist():
        starts.setdefault(int(schedule.version[index]), set()).add(timeline.begin[index])
    assert len(starts) == 4
    assert all(len(times) == 1 for times in starts.values())


def test_host_copies_have_their_own_lanes() -> None:
    """PipeFB: copies hide behind compute until they outgrow it."""
    schedule = lower(generate("pipefb", 2, 40, publish=3))
    hosts = [n for n, c in enumerate(schedule.channels) if c.kind is ChannelKind.H]
    found = []
    for copy in (0.0, 1.0, 2.0, 4.0):
        even = Times.uniform(2, 2, 2)
        times = Times(even.compute, host=dict.fromkeys(hosts, copy))
        found.append(simulate(schedule, times).seconds / 40)
    assert found[0] == pytest.approx(2, rel=0.1)
    assert found[2] == pytest.approx(2, rel=0.2)
    assert found[3] == pytest.approx(4, rel=0.2)


def test_naive_1f1b_over_rendezvous_deadlocks_with_the_shortest_cycle() -> None:
    for stages, microbatches in ((2, 4), (3, 4), (4, 8)):
        plain = generate("1f1b", stages, microbatches)
        with pytest.raises(ScheduleError, match="deadlocks") as caught:
            simulate(lower(plain, depth=0, comm="one"), Times.uniform(stages))
        last, other = stages - 1, stages - 2
        assert f"{last}SEND_B0 (device {last}) meets {other}RECV_B0" in str(caught.value)
        assert f"{other}SEND_F1 (device {other}) meets {last}RECV_F1" in str(caught.value)
        assert "2 actions that wait for each other" in str(caught.value)
        for depth in (1, 2):
            simulate(lower(plain, depth=depth, comm="one"), Times.uniform(stages))
        simulate(lower(plain, depth=0, comm="links"), Times.uniform(stages))


def test_a_deadlock_of_many_actions_is_explained() -> None:
    """100,000 stuck actions; the circle is of three."""
    with pytest.raises(ScheduleError, match="3 actions that wait for each other"):
        simulate(lower(generate("1f1b-so", 32, 512), depth=0, comm="one"), Times.uniform(32))


def test_a_full_channel_is_told_from_a_rendezvous() -> None:
    """Device 1 wants microbatch 1 first; the only slot holds microbatch 0."""
    plain = from_csv("0F0,0F1,0B1,0B0\n1F1,1F0,1B0,1B1")
    simulate(lower(plain, depth=2), Times.uniform(2))
    with pytest.raises(ScheduleError, match=r"0SEND_F1 .* has no slot until 1F0") as caught:
        simulate(lower(plain, depth=1), Times.uniform(2))
    assert caught.value.hint == "give the channels more slots"


@given(st.dictionaries(st.integers(0, 7), st.lists(st.integers(0, 7), max_size=3)))
def test_shortest_cycle_is_the_shortest(waits: dict[int, list[int]]) -> None:
    """Against powers of the matrix of waits: its trace counts the closed walks of a length."""
    matrix = np.zeros((8, 8), dtype=bool)
    for a, others in waits.items():
        matrix[a, others] = True
    power, want = np.eye(8, dtype=bool), 0
    for length in range(1, 9):
        power = power @ matrix
        if power.trace():
            want = length
            break
    found = shortest_cycle(waits)
    assert len(found) == want
    assert all(b in waits[a] for a, b in zip(found, [*found[1:], *found[:1]], strict=True))


def test_a_rendezvous_holds_both_ends() -> None:
    schedule = lower(generate("inference", 2, 3), depth=0)
    timeline = simulate(schedule, Times.uniform(2, F=1, comm=2))
    at = {str(a): [b, e] for a, b, e in map(timeline.action, range(len(schedule)))}
    assert at["0SEND_F0"] == at["1RECV_F0"] == [1, 3]
    assert at["0SEND_F2"] == at["1RECV_F2"] == [5, 7]


def test_slots_bound_how_far_a_sender_runs_ahead() -> None:
    """A fast sender with n slots is at most n messages ahead of the slow consumer."""
    for depth in (1, 2, 4):
        schedule = lower(generate("inference", 2, 20), depth=depth)
        timeline = simulate(schedule, Times.of_stages([1, 10], [0, 0]))
        at = {str(a): (b, e) for a, b, e in map(timeline.action, range(len(schedule)))}
        for m in range(depth, 20):
            assert at[f"0SEND_F{m}"][0] >= at[f"1F{m - depth}"][1]


def test_times_are_checked() -> None:
    schedule = generate("gpipe", 2, 2)
    for times in (Times.uniform(1), Times.uniform(2, F=-1), Times.uniform(2, F=float("nan"))):
        with pytest.raises(ScheduleError, match="time"):
            simulate(schedule, times)


def test_depth_is_checked() -> None:
    with pytest.raises(ScheduleError, match="depth out of range"):
        Channel(ChannelKind.F, 0, 1, depth=-1)


def test_large_schedules_take_the_wavefront() -> None:
    schedule: Schedule = lower(generate("1f1b", 20, 40))
    assert np.count_nonzero(np.diff(Prepared.of(schedule).short.start)) >= WAVEFRONT_FROM
    assert simulate(schedule, Times.uniform(20)).seconds == (40 + 19) * 3
