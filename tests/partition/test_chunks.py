"""Cuts into chunks: equal to brute force on small graphs, with either solver and without."""

from itertools import product
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipec.errors import PartitionError
from pipec.partition import chunk_model
from pipec.partition.chunks import solve_chunks
from pipec.partition.costgraph import CostGraph, Value, cost_graph
from pipec.partition.devices import Device
from tests.partition.brute import legal, loads
from tests.partition.strategies import graphs


def best_chunks(graph: CostGraph, devices: list[Device], chunks: int) -> float:
    count, best = len(devices), inf
    for chunk in product(range(count * chunks), repeat=graph.size):
        if legal(graph, list(chunk)):
            best = min(best, max(loads(graph, [c % count for c in chunk], devices)))
    return best


@settings(max_examples=25, deadline=None)
@given(graphs(most=5), st.booleans())
def test_equals_brute_force(graph: CostGraph, installed: bool) -> None:
    devices = [Device("fast")] * 2
    with pytest.MonkeyPatch.context() as patch:
        if not installed:
            patch.setattr(chunk_model, "find_spec", lambda name: None)
        cut = solve_chunks(graph, devices, 2, time_limit=0.5)
    assert cut.max_load == pytest.approx(best_chunks(graph, devices, 2), abs=1e-6)
    assert cut.lower_bound <= cut.max_load
    assert legal(graph, cut.stage.tolist())
    assert not cut.contiguous


def test_a_value_between_chunks_of_one_device_is_free() -> None:
    """a -> b -> c with a dear value from a to c: both ends on one device, b on the other."""
    graph = cost_graph("abc", {"gpu": [1, 2, 1]}, [Value(0, [2], 9.0), Value(0, [1], 0.1)])
    cut = solve_chunks(graph, [Device("gpu")] * 2, 2, time_limit=1.0)
    assert cut.assignment.tolist() in ([0, 1, 0], [1, 0, 1])
    assert cut.max_load == pytest.approx(2.1)


def test_unlike_devices_are_refused() -> None:
    graph = cost_graph("ab", {"gpu": [1, 2], "cpu": [3, 4]}, [Value(0, [1])])
    with pytest.raises(PartitionError, match="equal devices"):
        solve_chunks(graph, [Device("gpu"), Device("cpu")], 2)
