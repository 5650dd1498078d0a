"""Cuts into chunks: equal to brute force on small graphs, with either solver and without."""

from itertools import product
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipec.errors import PartitionError
from pipec.partition.chunks import model as chunk_model
from pipec.partition.chunks.lattice import Lattice
from pipec.partition.chunks.solve import solve_chunks
from pipec.partition.costgraph import CostGraph, Value, cost_graph
from pipec.partition.devices import Device
from pipec.partition.units import make_units
from tests.partition.brute import legal, loads
from tests.partition.families import branches, priced
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


def test_as_many_looks_find_the_same_chunks() -> None:
    graph = priced(branches(6, 3, 4, 0), 0.5, 1)
    units = make_units(graph, graph.seconds[None])
    lattice = Lattice(units, units.work[0], 3, 2, inf)
    found = [lattice.search(1_000_000, inf, 1) for _ in range(2)]
    assert found[0] is not None
    assert found[1] is not None
    assert found[0].tolist() == found[1].tolist()


def test_a_value_between_chunks_of_one_device_is_free() -> None:
    """a -> b -> c with a dear value from a to c: both ends on one device, b on the other."""
    graph = cost_graph("abc", {"gpu": [1, 2, 1]}, [Value(0, [2], 9.0), Value(0, [1], 0.1)])
    cut = solve_chunks(graph, [Device("gpu")] * 2, 2, time_limit=1.0)
    assert cut.assignment.tolist() in ([0, 1, 0], [1, 0, 1])
    assert cut.max_load == pytest.approx(2.1)


@settings(max_examples=25)
@given(graphs(most=6), st.integers(2, 3), st.integers(0, 9))
def test_no_unit_of_a_settled_chain_belongs_next_door(
    graph: CostGraph, count: int, seed: int
) -> None:
    """The energy is a sum of at least eighth powers, which settles this near the largest load."""
    units = make_units(graph, graph.seconds[None])
    lattice = Lattice(units, units.work[0], count, 2, inf)
    chunk = lattice.search(0, inf, seed)
    assert chunk is not None
    devices = [Device("fast")] * count
    value = max(loads(graph, (chunk[units.of_node] % count).tolist(), devices))
    for v, p in product(range(units.size), range(2 * count)):
        moved = chunk.copy()
        moved[v] = p
        if abs(p - chunk[v]) == 1 and legal(graph, moved[units.of_node].tolist()):
            reached = max(loads(graph, (moved[units.of_node] % count).tolist(), devices))
            assert value <= reached * count ** (1 / 8) + 1e-9


def test_unlike_devices_are_refused() -> None:
    graph = cost_graph("ab", {"gpu": [1, 2], "cpu": [3, 4]}, [Value(0, [1])])
    with pytest.raises(PartitionError, match="equal devices"):
        solve_chunks(graph, [Device("gpu"), Device("cpu")], 2)
