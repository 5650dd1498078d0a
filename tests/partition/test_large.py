"""Cuts of large graphs: orders by decomposition, families of prefixes, and mixtures of orders."""

import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipec.partition.costgraph import CostGraph, IntArray, Value, cost_graph
from pipec.partition.devices import Device
from pipec.partition.machine import make_machine
from pipec.partition.orders.branch_cuts import OFF, order_for_cuts
from pipec.partition.orders.branch_tree import BRANCH_RULES
from pipec.partition.orders.decompose import Decomposition
from pipec.partition.orders.linear import linear_orders
from pipec.partition.orders.mixture import MixedFamily, zoned
from pipec.partition.proof.bounds import make_bounds
from pipec.partition.proof.ideal_family import IdealFamily
from pipec.partition.proof.ideals import Window, enumerate_ideals
from pipec.partition.result import stage_loads
from pipec.partition.search.family import PrefixFamily
from pipec.partition.search.incumbent import Incumbent
from pipec.partition.search.large import cut_large
from pipec.partition.units import Units, make_units
from tests.partition.brute import best_cut, legal
from tests.partition.strategies import graphs


def _units(graph: CostGraph) -> Units:
    return make_units(graph, graph.seconds[None])


def _is_linear(units: Units, order: IntArray) -> bool:
    place = np.argsort(order)
    return bool((place[units.edges[:, 0]] < place[units.edges[:, 1]]).all())


@given(graphs(most=9))
def test_every_order_is_linear(graph: CostGraph) -> None:
    units = _units(graph)
    for order in linear_orders(units, units.work[0]):
        assert sorted(order.tolist()) == list(range(units.size))
        assert _is_linear(units, order)


@st.composite
def series_parallel(draw: st.DrawFn) -> CostGraph:
    """Grown edge by edge: u -> v becomes u -> w -> v, or gets u -> w -> v beside it."""
    edges = [(0, 1)]
    for w in range(2, draw(st.integers(2, 12))):
        at = draw(st.integers(0, len(edges) - 1))
        u, v = edges[at]
        if draw(st.booleans()):
            edges[at] = (u, w)
        else:
            edges.append((u, w))
        edges.append((w, v))
    n = 1 + max(v for edge in edges for v in edge)
    heads = [sorted({v for u, v in edges if u == tail}) for tail in range(n)]
    values = [Value(u, row, 1.0) for u, row in enumerate(heads) if row]
    return cost_graph([str(v) for v in range(n)], {"gpu": np.arange(1.0, n + 1)}, values)


@given(series_parallel())
def test_series_parallel_graphs_leave_one_edge(graph: CostGraph) -> None:
    units = _units(graph)
    first = next(linear_orders(units, units.work[0], 0))
    assert Decomposition(units, units.work[0], first).root is not None


def test_heavy_cheap_branch_comes_first() -> None:
    """Fork of a light branch 1-2 and a heavy one 3-4: the heavy one is cheap to leave half done."""
    values = [Value(0, [1, 3], 1.0), Value(1, [2], 1.0), Value(2, [5], 1.0)]
    values += [Value(3, [4], 1.0), Value(4, [5], 1.0)]
    units = _units(cost_graph("abcdef", {"gpu": [1, 1, 1, 9, 9, 1]}, values))
    tree = Decomposition(units, units.work[0], np.arange(6))
    assert [tree.order(rule).tolist() for rule in BRANCH_RULES] == [[0, 3, 4, 1, 2, 5]] * 3


@pytest.mark.parametrize("goal", [37.0, 151.0, 209.0])
def test_branches_are_left_where_few_values_are_open(goal: float) -> None:
    """Chains of 3 and of 10 seconds a unit, which only make the goal together: 37 = 9 x 3 + 10."""
    work = [0.0] + [3.0] * 20 + [10.0] * 20 + [0.0]
    chains = [[0, *range(1, 21), 41], [0, *range(21, 41), 41]]
    values = [Value(0, [1, 21], 1.0)]
    values += [Value(u, [v], 1.0) for row in chains for u, v in pairwise(row[1:])]
    units = _units(cost_graph([str(v) for v in range(42)], {"gpu": work}, values))
    found = Decomposition(units, units.work[0], np.arange(42))
    assert found.root is not None
    order = order_for_cuts(found.tree, found.root, [goal], BRANCH_RULES[0])
    family = PrefixFamily(units, units.work[0], order)
    at = family.ref.tolist().index(goal)
    assert family.cut[0, at] == 2.0


@given(series_parallel(), st.lists(st.integers(0, 80), max_size=4).map(sorted))
def test_orders_for_cuts_are_linear(graph: CostGraph, goals: list[int]) -> None:
    units = _units(graph)
    first = next(linear_orders(units, units.work[0], 0))
    found = Decomposition(units, units.work[0], first)
    assert found.root is not None
    total = float(units.work[0].sum())
    wanted = [goal / 80 * total for goal in goals]
    order = order_for_cuts(found.tree, found.root, wanted, BRANCH_RULES[0])
    assert sorted(order.tolist()) == list(range(units.size))
    assert _is_linear(units, order)


@given(series_parallel(), st.floats(0.0, 1.0))
def test_a_single_cut_is_nearly_the_best_of_all_ideals(graph: CostGraph, share: float) -> None:
    """All values cost one second: at most one more is open, at most one unit is too much."""
    units = _units(graph)
    first = next(linear_orders(units, units.work[0], 0))
    found = Decomposition(units, units.work[0], first)
    assert found.root is not None
    ref = units.work[0]
    goal = share * float(ref.sum())
    order = order_for_cuts(found.tree, found.root, [goal], BRANCH_RULES[0])
    every = enumerate_ideals(units, ref, [Window(-1.0, 2 * float(ref.sum()))], 1 << 12)
    assert every is not None
    ideals = IdealFamily(units, ref, every)
    best = float((ideals.cut[0] + OFF * np.abs(ideals.ref - goal)).min())
    prefix = PrefixFamily(units, ref, order)
    got = float((prefix.cut[0] + OFF * np.abs(prefix.ref - goal)).min())
    assert got <= best + 1.0 + OFF * float(ref.max())


@given(graphs(most=7, grouped=False), st.data())
def test_families_agree_on_loads(graph: CostGraph, data: st.DataObject) -> None:
    """Prefixes as spans, as bit sets, and mixed: the same cuts, the same corrections."""
    units = _units(graph)
    orders = list(linear_orders(units, units.work[0], 2))
    borders = np.unique(data.draw(st.lists(st.integers(0, units.size), max_size=3)))
    borders = borders[(borders > 0) & (borders < units.size)].astype(np.int64)
    parts = zoned(orders, borders)
    assert all(_is_linear(units, order) for order in parts)
    ref = units.work[0]
    mixed = MixedFamily(units, ref, parts, borders, [(-1.0, float(ref.sum()) + 1)])
    rows = np.arange(len(mixed.ref))
    bits = np.zeros((len(rows), units.size), bool)
    for row in rows.tolist():
        bits[row, mixed.members(row)] = True
    inside = mixed.inside(np.repeat(rows, len(rows)), np.tile(rows, len(rows)))
    inside = inside.reshape(len(rows), len(rows))
    truth = ~(bits[:, None] & ~bits[None]).any(axis=2)
    assert (truth | ~inside).all()
    got = mixed.cut[0][:, None] + mixed.cut[0] - mixed.passing(rows, rows)
    for j, i in np.argwhere(inside).tolist():
        here = bits[i] & ~bits[j]
        assert got[j, i] == pytest.approx(_paid(units, here)), (j, i)
    distinct = np.unique(bits, axis=0)
    family = IdealFamily(units, ref, distinct)
    prefix = PrefixFamily(units, ref, parts[0])
    assert set(family.cut[0].round(9)) >= set(prefix.cut[0].round(9))
    places = np.arange(len(distinct))
    again = family.cut[0][:, None] + family.cut[0] - family.passing(places, places)
    for j, i in [(j, i) for j in places.tolist() for i in places.tolist()]:
        if not (family.bits[j] & ~family.bits[i]).any():
            here = family.bits[i] & ~family.bits[j]
            assert again[j, i] == pytest.approx(_paid(units, here))


def _paid(units: Units, here: np.ndarray) -> float:
    """What a stage pays, from the definition."""
    paid = 0.0
    for h, (a, b) in enumerate(zip(units.pin_ptr[:-1], units.pin_ptr[1:], strict=True)):
        count = int(here[units.pin[a:b]].sum())
        paid += float(units.cost[0, h]) if 0 < count < b - a else 0.0
    return paid


@given(graphs(most=6), st.integers(1, 3), st.booleans())
def test_large_cut_is_what_it_says(graph: CostGraph, k: int, exactly: bool) -> None:
    devices = [Device("fast")] * k
    machine = make_machine(graph, devices, exactly=exactly)
    units = _units(graph)
    best = Incumbent()
    if exactly and units.size < k:
        return
    cut_large(units, machine, best, time.perf_counter() + 5)
    assert best.stage is not None
    assert legal(graph, best.stage.tolist())
    loads = stage_loads(graph, best.stage, devices)
    assert loads.max() <= best.value * (1 + 1e-9) + 1e-9
    optimum = best_cut(graph, devices, exactly=exactly)
    assert make_bounds(units, machine).lower <= optimum + 1e-9
    assert loads.max() >= optimum - 1e-9
