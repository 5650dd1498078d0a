"""Programs are solved without a word: a command's standard output may be JSON."""

import ctypes

import numpy as np
import pytest

from pipec.residency.choose import choose
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
