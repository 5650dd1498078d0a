"""Benchmarks that need a machine of their own kind, and so seldom run, still load."""

import importlib

import numpy as np
import torch

from benchmarks.__main__ import ON_REQUEST, machine
from benchmarks._ranks import quartiles


def test_what_runs_on_request_loads() -> None:
    for name in ON_REQUEST:
        importlib.import_module(f"benchmarks.{name}")


def test_what_a_figure_says_of_its_machine() -> None:
    """With a GPU its name stands at the end; without one nothing asks for it."""
    words = machine().split(", ")
    assert words[1].endswith(" cores")
    assert len(words) == 2 + torch.cuda.is_available()


def test_one_window_has_a_spread_of_nothing_and_more_have_quartiles() -> None:
    assert quartiles([3.5]) == [3.5, 3.5, 3.5]
    values = [1.0, 7.0, 2.5, 4.0, 3.0]
    want = np.quantile(values, [0.25, 0.5, 0.75], method="weibull")
    np.testing.assert_allclose(quartiles(values), want)
