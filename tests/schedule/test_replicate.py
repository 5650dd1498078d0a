"""Copies of a pipeline: each copy runs as it would alone, on its own devices and microbatches."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipec.errors import ScheduleError
from pipec.schedule.comm import insert_comm
from pipec.schedule.registry import STREAMING, SYNCHRONOUS, generate, stages_on
from pipec.schedule.replicate import ADJACENT, device_of, replicate
from pipec.schedule.schedule import Schedule
from pipec.schedule.steps import insert_reduce, insert_steps
from pipec.simulate.simulate import simulate
from pipec.simulate.times import Times
from pipec.simulate.verify import verify

CHUNKED = ("interleaved", "zbv", "dualpipev")


def complete(schedule: Schedule) -> Schedule:
    return insert_steps(insert_reduce(insert_comm(schedule)))


@given(
    st.sampled_from([*SYNCHRONOUS, *STREAMING]),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(2, 4),
    st.sampled_from(ADJACENT),
)
def test_copies_are_legal_and_as_fast_as_one(
    name: str, depth: int, rounds: int, replicas: int, adjacent: str
) -> None:
    chunks = 2 if name in CHUNKED else 1
    stages, microbatches = chunks * depth, 2 * depth * rounds
    one = complete(generate(name, stages, microbatches))
    text = f"{name}{{replicas={replicas} adjacent={adjacent}}}"
    many = complete(generate(text, stages, microbatches * replicas))
    verify(many)
    times = Times.uniform(stages, F=1, B=2, comm=0.25)
    assert simulate(many, times).seconds == pytest.approx(simulate(one, times).seconds)
    assert many.devices == one.devices * replicas
    for copy in range(replicas):
        for device in range(one.devices):
            at = device_of(device, copy, depth=one.devices, replicas=replicas, adjacent=adjacent)
            assert [(a.kind, a.stage) for a in many.row(at) if a.kind <= 3] == [
                (a.kind, a.stage) for a in one.row(device) if a.kind <= 3
            ]
            handled = {a.microbatch for a in many.row(at) if a.microbatch is not None}
            assert all(m % replicas == copy for m in handled)


def test_the_all_reduce_waits_for_the_last_copy() -> None:
    both = insert_comm(generate("1f1b{replicas=2}", 1, 4))
    times = Times.of_stages([1.0], [2.0])
    reduced = Times(times.compute, reduce=(5.0,))
    for overlap, begin in ((False, 6.0), (True, 4.0)):  # behind, or beside, the last backward
        plan = insert_steps(insert_reduce(both, overlap=overlap))
        assert simulate(plan, reduced).seconds == begin + 5


def test_stages_that_fill_a_cluster() -> None:
    assert [stages_on(f"1f1b{{replicas={r}}}", 8, 16) for r in (1, 2, 4, 8)] == [8, 4, 2, 1]
    assert stages_on("interleaved{replicas=2}", 4, 16) == 4


def test_what_cannot_be_copied_is_told() -> None:
    with pytest.raises(ScheduleError, match="dealt out evenly"):
        generate("1f1b{replicas=3}", 2, 4)
    with pytest.raises(ScheduleError, match="adjacent=stages or"):
        generate("1f1b{replicas=2 adjacent=devices}", 2, 4)
    with pytest.raises(ScheduleError, match="cannot be copied"):
        generate("pipemare{replicas=2}", 2, 4)
    with pytest.raises(ScheduleError, match="no option"):
        generate("pipedream{adjacent=stages}", 2, 4)
    with pytest.raises(ScheduleError, match="no such replicas"):
        replicate(generate("1f1b", 2, 2), 0)
