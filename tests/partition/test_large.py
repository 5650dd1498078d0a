"""Cuts of large graphs: orders and families of prefixes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipec.partition.costgraph import CostGraph, IntArray
from pipec.partition.devices import Device
from pipec.partition.machine import make_machine
from pipec.partition.orders.linear import generate_orders
from pipec.partition.proof.bounds import make_bounds
from pipec.partition.proof.ideal_family import IdealFamily
from pipec.partition.result import stage_loads
from pipec.partition.search.cutting import cut_orders
from pipec.partition.search.family import PrefixFamily
from pipec.partition.search.incumbent import Incumbent
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
    for order in generate_orders(units, units.work[0]):
        assert sorted(order.tolist()) == list(range(units.size))
        assert _is_linear(units, order)


@given(graphs(most=7, grouped=False))
def test_families_agree_on_loads(graph: CostGraph) -> None:
    """Prefixes as spans and as bit sets: the same cuts, the same corrections."""
    units = _units(graph)
    orders = list(generate_orders(units, units.work[0], 2))
    ref, parts = units.work[0], [PrefixFamily(units, units.work[0], o) for o in orders]
    rows, bits = np.arange(units.size + 1), []
    for family in parts:
        got = family.cut[0][:, None] + family.cut[0] - family.passing(rows, rows)
        mine = np.zeros((len(rows), units.size), bool)
        for row in rows.tolist():
            mine[row, family.members(row)] = True
        bits.append(mine)
        for j, i in [(j, i) for j in rows.tolist() for i in rows.tolist() if j <= i]:
            assert got[j, i] == pytest.approx(_paid(units, mine[i] & ~mine[j])), (j, i)
    distinct = np.unique(np.concatenate(bits), axis=0)
    ideals = IdealFamily(units, ref, distinct)
    assert set(ideals.cut[0].round(9)) >= set(parts[0].cut[0].round(9))
    places = np.arange(len(distinct))
    again = ideals.cut[0][:, None] + ideals.cut[0] - ideals.passing(places, places)
    for j, i in [(j, i) for j in places.tolist() for i in places.tolist()]:
        if not (ideals.bits[j] & ~ideals.bits[i]).any():
            here = ideals.bits[i] & ~ideals.bits[j]
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
    cut_orders(units, machine, best, 5.0)
    assert best.stage is not None
    assert legal(graph, best.stage.tolist())
    loads = stage_loads(graph, best.stage, devices)
    assert loads.max() <= best.value * (1 + 1e-9) + 1e-9
    optimum = best_cut(graph, devices, exactly=exactly)
    assert make_bounds(units, machine).lower <= optimum + 1e-9
    assert loads.max() >= optimum - 1e-9
