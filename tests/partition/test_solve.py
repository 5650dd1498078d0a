"""The contiguous cut equals brute force on random small DAGs, for every option."""

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipec.cluster.cluster import Link
from pipec.errors import PartitionError
from pipec.partition.costgraph import CostGraph, Value, cost_graph
from pipec.partition.devices import Device
from pipec.partition.solve import solve_contiguous
from tests.partition.brute import best_cut
from tests.partition.strategies import graphs

EXAMPLES = settings(max_examples=100, deadline=None)


def agree(graph: CostGraph, devices: list[Device], **options: object) -> None:
    want = best_cut(graph, devices, **_brute(options, len(devices)))  # type: ignore[arg-type]
    if want == inf:
        with pytest.raises(PartitionError):
            solve_contiguous(graph, devices, **options)  # type: ignore[arg-type]
        return
    got = solve_contiguous(graph, devices, **options)  # type: ignore[arg-type]
    assert got.max_load == pytest.approx(want, abs=1e-9)
    assert got.proven
    if options.get("exactly", True):
        assert got.stages == len(devices)


def _brute(options: dict[str, object], count: int) -> dict[str, object]:
    links = options.get("links")
    return {**options, "links": [links] * (count - 1)} if isinstance(links, Link) else options


@EXAMPLES
@given(graphs(), st.integers(1, 3), st.booleans())
def test_equal_devices(graph: CostGraph, count: int, exactly: bool) -> None:
    agree(graph, [Device("fast")] * count, exactly=exactly)


@EXAMPLES
@given(graphs(blocked=True), st.integers(1, 2), st.integers(0, 2), st.booleans())
def test_accelerators_and_cpus_that_do_not_pay(
    graph: CostGraph, fast: int, slow: int, exactly: bool
) -> None:
    devices = [Device("fast", 20)] * fast + [Device("slow", pays=False)] * slow
    agree(graph, devices, exactly=exactly, free_order=True)


@EXAMPLES
@given(graphs(most=5, blocked=True), st.permutations([0, 0, 1]), st.booleans(), st.booleans())
def test_unlike_devices(
    graph: CostGraph, kinds: list[int], free_order: bool, exactly: bool
) -> None:
    devices = [Device(("fast", "slow")[k]) for k in kinds]
    agree(graph, devices, free_order=free_order, exactly=exactly)


@EXAMPLES
@given(graphs(training=False), st.integers(1, 3), st.booleans(), st.booleans())
def test_links(graph: CostGraph, count: int, overlap: bool, exactly: bool) -> None:
    link = Link(4.0, 0.25)
    agree(graph, [Device("fast")] * count, links=link, overlap=overlap, exactly=exactly)


@EXAMPLES
@given(graphs(training=False), st.booleans(), st.booleans())
def test_unlike_links(graph: CostGraph, overlap: bool, exactly: bool) -> None:
    """A device between two stages may stay empty; it then relays what passes."""
    links = [Link(4.0, 0.25), Link(1.0)]
    agree(graph, [Device("fast")] * 3, links=links, overlap=overlap, exactly=exactly)


@EXAMPLES
@given(graphs(), st.integers(1, 3), st.integers(5, 40), st.booleans())
def test_memory_limits(graph: CostGraph, count: int, limit: int, exactly: bool) -> None:
    agree(graph, [Device("fast", limit)] * count, exactly=exactly)


def test_more_stages_than_units() -> None:
    graph = cost_graph("abc", {"gpu": [1, 2, 3]}, [Value(0, [1, 2])], group=[0, 0, -1])
    with pytest.raises(PartitionError, match="at most 2"):
        solve_contiguous(graph, [Device("gpu")] * 3)


def test_cycle_is_spelled_out() -> None:
    graph = cost_graph("abc", {"gpu": [1, 1, 1]}, [Value(0, [1]), Value(1, [2]), Value(2, [1])])
    with pytest.raises(PartitionError, match=r"b -> c -> b"):
        solve_contiguous(graph, [Device("gpu")])
