"""Benchmarks that need a machine of their own kind, and so seldom run, still load."""

import importlib

from benchmarks.__main__ import ON_REQUEST


def test_what_runs_on_request_loads() -> None:
    for name in ON_REQUEST:
        importlib.import_module(f"benchmarks.{name}")
