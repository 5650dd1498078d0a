"""Benchmarks that need a machine of their own kind, and so seldom run, still load."""

import importlib

import torch

from benchmarks.__main__ import ON_REQUEST, machine


def test_what_runs_on_request_loads() -> None:
    for name in ON_REQUEST:
        importlib.import_module(f"benchmarks.{name}")


def test_what_a_figure_says_of_its_machine() -> None:
    """With a GPU its name stands at the end; without one nothing asks for it."""
    words = machine().split(", ")
    assert words[1].endswith(" cores")
    assert len(words) == 2 + torch.cuda.is_available()
