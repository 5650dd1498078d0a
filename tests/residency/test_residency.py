"""Residency against brute force: the bound holds, memory is kept, the choice is close."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipec.errors import PartitionError
from pipec.residency.choose import choose
from pipec.residency.linear import relax
from pipec.residency.play import keep_all, play
from pipec.residency.problem import KEEP, OFFLOAD, RECOMPUTE, Problem


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    slots = draw(st.integers(1, 4))
    values = draw(st.integers(1, 5))
    times = st.floats(0.1, 3)
    produced = sorted(draw(st.lists(st.integers(0, slots - 1), min_size=values, max_size=values)))
    nbytes = np.array(draw(st.lists(st.integers(1, 9), min_size=values, max_size=values)), float)
    again = st.one_of(st.just(np.inf), st.floats(0.05, 2))
    return Problem(
        nbytes,
        np.array(draw(st.lists(again, min_size=values, max_size=values)), float),
        np.array(produced),
        np.array(produced),
        np.array(draw(st.lists(times, min_size=slots, max_size=slots))),
        np.array(draw(st.lists(times, min_size=slots, max_size=slots))),
        cap=float(nbytes.sum()) * draw(st.floats(0.2, 1)),
        bandwidth=draw(st.sampled_from([0.0, 1.0, 4.0, 40.0])),
    )


def every_decision(problem: Problem) -> list[np.ndarray]:
    choices = [
        [KEEP]
        + [OFFLOAD] * (problem.bandwidth > 0)
        + [RECOMPUTE] * bool(np.isfinite(problem.recompute[v]))
        for v in range(problem.values)
    ]
    return [np.array(d) for d in product(*choices)]


@settings(max_examples=120, deadline=None)
@given(problems())
def test_bound_below_optimum_below_choice(problem: Problem) -> None:
    played = [play(problem, d) for d in every_decision(problem)]
    optimum = min(p.seconds for p in played)
    bound = problem.step_seconds + relax(problem).added_seconds
    assert bound <= optimum * (1 + 1e-7)
    if optimum == np.inf:
        with pytest.raises(PartitionError, match="do not fit"):
            choose(problem)
        return
    found = choose(problem)
    assert found.seconds >= optimum * (1 - 1e-9)
    assert found.peak_bytes <= problem.cap * (1 + 1e-9)
    assert play(problem, found.decision).seconds == found.seconds


def chain(cap: float, bandwidth: float) -> Problem:
    """Four equal slots, one value each: forward 1 s, backward 2 s, 10 bytes, 1 s to recompute."""
    slots = np.arange(4)
    return Problem(np.full(4, 10.0), np.ones(4), slots, slots, np.ones(4), np.full(4, 2.0),
                   cap, bandwidth)  # fmt: skip


def test_keeping_everything_adds_nothing() -> None:
    found = choose(chain(40, 10))
    assert (found.added, found.bound) == (0, 0)
    assert (found.decision == KEEP).all()


def test_a_fast_link_hides_the_copies() -> None:
    problem = chain(20, 10)
    decision = np.array([OFFLOAD, OFFLOAD, KEEP, KEEP])
    played = play(problem, decision)
    # value 0 leaves during slot 1, value 1 during slot 2; both come back beside backward slots
    assert played.seconds == problem.step_seconds
    assert choose(problem).added == pytest.approx(0)


def test_a_slow_link_recomputes_instead() -> None:
    found = choose(chain(30, 0.01))
    assert sorted(found.decision.tolist()) == [KEEP, KEEP, KEEP, RECOMPUTE]
    assert found.seconds == pytest.approx(13)


def test_stalls_are_counted_exactly() -> None:
    # one slot, one value: copied out 10 s and back 10 s at 1 byte/s around 1 s and 2 s of compute
    one = np.array([0])
    problem = Problem(np.array([10.0]), np.array([np.inf]), one, one, np.ones(1), np.full(1, 2.0),
                      10, 1.0)  # fmt: skip
    assert play(problem, np.array([OFFLOAD])).seconds == 1 + 10 + 10 + 2
    assert play(problem, keep_all(problem)).seconds == 3


def test_nothing_fits_says_how_much_would() -> None:
    with pytest.raises(PartitionError, match="10 bytes at least") as told:
        choose(chain(5, 10))
    assert "5 bytes" in str(told.value)


def test_malformed_problems_are_refused() -> None:
    slots = np.array([1, 0])
    with pytest.raises(PartitionError, match="order of production"):
        Problem(np.ones(2), np.ones(2), slots, slots, np.ones(2), np.ones(2), 1, 1)
