"""Loads in whole grains: the least share against all subsets, and the bound of equal units."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipec.partition.costgraph import Value, cost_graph
from pipec.partition.devices import Device
from pipec.partition.proof.grain import common_grain, least_share
from pipec.partition.solve import solve_contiguous


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=9),
    st.integers(1, 5),
    st.sampled_from([1.0, 0.1, 1e-3 / 7, 3e5]),
)
def test_least_share_is_the_least_sum_of_units(whole: list[int], devices: int, unit: float) -> None:
    work = np.array(whole) * unit
    total = float(work.sum())
    sums = [np.dot(chosen, work) for chosen in product((0, 1), repeat=len(work))]
    best = min(s for s in sums if s >= total / devices * (1 - 1e-9))
    share = least_share(work, devices)
    assert share == pytest.approx(best, rel=1e-8)
    assert share <= best * (1 + 1e-12)


def test_work_of_any_size_has_no_grain() -> None:
    work = np.random.default_rng(0).uniform(0.5, 1.5, 40)
    assert common_grain(work) == 0
    assert least_share(work, 4) == pytest.approx(work.sum() / 4)


@pytest.mark.parametrize("chained", [True, False])
def test_fifty_equal_nodes_on_four_devices(chained: bool) -> None:
    """12.5 seconds each, but no device holds half a node."""
    values = [Value(v, [v + 1]) for v in range(49)] if chained else []
    graph = cost_graph([str(v) for v in range(50)], {"gpu": np.ones(50)}, values)
    cut = solve_contiguous(graph, [Device("gpu")] * 4)
    assert cut.max_load == 13
    assert cut.lower_bound == pytest.approx(13)
    assert cut.proven
