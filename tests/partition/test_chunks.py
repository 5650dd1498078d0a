"""Cuts into chunks: equal to brute force on small graphs."""

from itertools import product
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipec.errors import PartitionError
from pipec.partition.chunks import solve
from pipec.partition.chunks.solve import solve_chunks
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
@given(graphs(most=5))
def test_equals_brute_force(graph: CostGraph) -> None:
    devices = [Device("fast")] * 2
    cut = solve_chunks(graph, devices, 2, time_limit=0.5)
    assert cut.max_load == pytest.approx(best_chunks(graph, devices, 2), abs=1e-6)
    assert cut.lower_bound <= cut.max_load
    assert legal(graph, cut.stage.tolist())
    assert cut.contiguous == (cut.stage.max() < len(devices))


def _held(graph: CostGraph, device: tuple[int, ...], count: int) -> float:
    held = graph.weight_bytes + graph.activation_bytes
    return max(float(held[np.array(device) == d].sum()) for d in range(count))


@settings(max_examples=20, deadline=None)
@given(graphs(most=5), st.integers(4, 30))
def test_chunks_of_one_device_add_up_in_memory(graph: CostGraph, limit: int) -> None:
    devices, count = [Device("fast", float(limit))] * 2, 2
    best = inf
    for chunk in product(range(4), repeat=graph.size):
        device = tuple(c % count for c in chunk)
        if _held(graph, device, count) <= limit and legal(graph, list(chunk)):
            best = min(best, max(loads(graph, list(device), devices)))
    if best == inf:
        with pytest.raises(PartitionError, match="with less than"):
            solve_chunks(graph, devices, 2, time_limit=0.5)
        return
    try:
        cut = solve_chunks(graph, devices, 2, time_limit=0.5)
    except PartitionError:
        return  # a search may miss what fits; what it finds must fit
    assert max(cut.memory_bytes) <= limit + 1e-6
    assert _held(graph, tuple(cut.assignment.tolist()), count) <= limit + 1e-6
    assert cut.lower_bound <= best + 1e-6 <= cut.max_load + 2e-6


def test_a_value_between_chunks_of_one_device_is_free() -> None:
    """a -> b -> c with a dear value from a to c: both ends on one device, b on the other."""
    graph = cost_graph("abc", {"gpu": [1, 2, 1]}, [Value(0, [2], 9.0), Value(0, [1], 0.1)])
    cut = solve_chunks(graph, [Device("gpu")] * 2, 2, time_limit=1.0)
    assert cut.assignment.tolist() in ([0, 1, 0], [1, 0, 1])
    assert cut.max_load == pytest.approx(2.1)


def test_the_solver_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solve, "find_spec", lambda name: None)
    graph = cost_graph("ab", {"gpu": [1, 2]}, [Value(0, [1])])
    with pytest.raises(PartitionError, match="OR-tools"):
        solve_chunks(graph, [Device("gpu")] * 2, 2)


def test_no_answer_is_called_optimal_that_is_not() -> None:
    """Ends of a chain share a device; with finer numbers the solver stops at a load of 6."""
    graph = cost_graph("abc", {"gpu": [1, 5, 1]}, [Value(0, [1]), Value(1, [2], 0.25)])
    cut = solve_chunks(graph, [Device("gpu")] * 2, 2, time_limit=5.0)
    assert cut.max_load == pytest.approx(5.25)


def test_unlike_devices_are_refused() -> None:
    graph = cost_graph("ab", {"gpu": [1, 2], "cpu": [3, 4]}, [Value(0, [1])])
    with pytest.raises(PartitionError, match="equal devices"):
        solve_chunks(graph, [Device("gpu"), Device("cpu")], 2)
