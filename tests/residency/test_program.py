"""Programs are solved without a word: a command's standard output may be JSON."""

import ctypes

import numpy as np
import pytest

from pipec.residency.bound import bound
from pipec.residency.choose import choose
from pipec.residency.play import play
from pipec.residency.problem import Problem


def drawn(rng: np.random.Generator) -> Problem:
    """A stage of a few values."""
    count = int(rng.integers(2, 9))
    nbytes, again = rng.uniform(1, 9, count), rng.uniform(0.1, 2, count)
    again[rng.random(count) < 0.2] = np.inf
    forward, backward = float(rng.uniform(1, 5)), float(rng.uniform(2, 9))
    cap, bandwidth = float(nbytes.sum() * rng.uniform(0.3, 2.5)), float(rng.uniform(0, 5))
    return Problem(nbytes, again, forward, backward, cap, bandwidth, int(rng.integers(1, 5)))


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    """The 240th of these problems makes HiGHS print a line, whatever its options say."""
    rng = np.random.default_rng(0)
    *_, problem = (drawn(rng) for _ in range(240))
    choose(problem)
    ctypes.CDLL(None).fflush(None)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("alternates", "apart", "whole"),
    [(True, False, False), (False, False, True), (True, True, True)],
)
def test_tightened_programs_of_many_values_have_parts_only_where_one_devices_microbatches_alternate(
    alternates: bool, apart: bool, whole: bool
) -> None:
    rng = np.random.default_rng(0)
    nbytes, again = rng.uniform(1, 9, 60), rng.uniform(0.1, 2, 60)
    cap = float(nbytes.sum()) * 2
    behind = cap if apart else None
    problem = Problem(nbytes, again, 9.0, 18.0, cap, 1.0, 4, alternates, behind=behind)
    for given, rounded in ((None, True), (0.9 * cap, whole)):
        parts = np.concatenate([(b := bound(problem, given)).offload, b.recompute])
        assert (np.abs(parts - parts.round()).max() < 1e-6) == rounded


def test_what_another_choice_beats_in_any_case_is_not_improved() -> None:
    rng = np.random.default_rng(0)
    *_, problem = (drawn(rng) for _ in range(10))
    best, first = choose(problem), choose(problem, 0.0)
    assert best.seconds < first.seconds
    assert first.peak_bytes <= problem.cap
    least = problem.step_seconds * (1 + best.bound)
    for enough, want in ((best.seconds, best), (1.001 * least, best), (0.999 * least, first)):
        assert choose(problem, enough).seconds == want.seconds


def test_what_does_not_fit_is_improved_whatever_else_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = Problem(np.full(4, 10.0), np.ones(4), 4.0, 8.0, 130.0, 0.01, 4)
    monkeypatch.setattr("pipec.residency.choose._starts", lambda p, _: [play(p, p.keep_all())])
    assert choose(problem, 0.0).peak_bytes <= problem.cap
