"""Ideals and memory in the bound: against brute force."""

import tracemalloc
from itertools import product
from math import inf

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from benchmarks.synthetic import series_parallel
from pipec.cluster.cluster import Link
from pipec.partition.costgraph import CostGraph, Value, cost_graph
from pipec.partition.devices import Device
from pipec.partition.machine import make_machine
from pipec.partition.proof.bounds import Reach, bound_with_ends, make_bounds
from pipec.partition.proof.ideal_family import IdealFamily
from pipec.partition.proof.ideals import enumerate_ideals
from pipec.partition.solve import solve_contiguous
from pipec.partition.units import Units, make_units
from tests.partition.brute import best_cut
from tests.partition.strategies import graphs


def _units(graph: CostGraph) -> Units:
    return make_units(graph, graph.seconds[None])


def _closed(units: Units, inside: tuple[bool, ...], *, right: bool) -> bool:
    """Whether a set is what lies on one side of a cut."""
    return all(inside[v] <= inside[u] for u, v in (units.edges[:, ::-1] if right else units.edges))


def _paid(units: Units, here: np.ndarray) -> float:
    """Cost of the hyperedges that are partly in a set."""
    return sum(
        float(cost)
        for cost, a, b in zip(units.cost[0], units.pin_ptr[:-1], units.pin_ptr[1:], strict=True)
        if here[units.pin[a:b]].any() and not here[units.pin[a:b]].all()
    )


@given(graphs(most=7), st.integers(2, 4), st.booleans(), st.integers(0, 40))
def test_ideals_are_those_that_loads_below_a_limit_allow(
    graph: CostGraph, count: int, hosted: bool, limit: int
) -> None:
    devices = [Device("fast")] * count + [Device("slow", pays=False)] * hosted
    machine, units = make_machine(graph, devices, free_order=True), _units(graph)
    bounds = make_bounds(units, machine)
    reach = Reach(bounds, machine, limit / 2)
    states = np.arange(1, len(machine.used) - 1)
    want = {(False,) * units.size, (True,) * units.size}
    for inside in product((False, True), repeat=units.size):
        here = np.array(inside)
        work, cut = np.array([bounds.ref @ here]), np.array([[_paid(units, here)]])
        if _closed(units, inside, right=False) and reach.may_hold(states, work, work, cut)[0]:
            want.add(inside)
    found = enumerate_ideals(units, bounds.ref, reach.windows(), 1_000)
    assert found is not None
    assert sorted(map(tuple, found.tolist())) == sorted(want)


def test_what_waits_to_be_extended_is_little() -> None:
    """A block is parted at every unit, and its other half waits until the first is done."""
    graph = series_parallel(1_000)
    machine, units = make_machine(graph, [Device("gpu")] * 64), _units(graph)
    bounds = make_bounds(units, machine)
    windows = Reach(bounds, machine, bounds.lower * 1.1).windows()
    tracemalloc.start()
    assert enumerate_ideals(units, bounds.ref, windows, 20_000) is None
    assert tracemalloc.get_traced_memory()[1] < 400e6
    tracemalloc.stop()


@settings(max_examples=60, deadline=None)
@given(graphs(most=6, blocked=True), st.integers(1, 2), st.integers(1, 20))
def test_bytes_weigh_where_memory_is_short(graph: CostGraph, count: int, limit: int) -> None:
    devices = [Device("fast", float(limit))] * count + [Device("slow", pays=False)]
    optimum = best_cut(graph, devices, exactly=False)
    assume(optimum < inf)
    machine = make_machine(graph, devices, exactly=False)
    assert make_bounds(_units(graph), machine).lower <= optimum + 1e-6
    cut = solve_contiguous(graph, devices, exactly=False)
    assert cut.max_load == pytest.approx(optimum)
    assert cut.proven


@settings(max_examples=150)
@given(graphs(most=6), st.integers(1, 3), st.booleans(), st.booleans(), st.sampled_from("plo"))
def test_no_cut_beats_the_bound_with_ends(
    graph: CostGraph, count: int, hosted: bool, exactly: bool, ways: str
) -> None:
    """Values priced, over links, and over links that work beside compute."""
    devices = [Device("fast")] * count + [Device("slow", pays=False)] * hosted
    links = None if ways == "p" else Link(2.0, 0.25)
    overlap = ways == "o"
    many = None if links is None else [links] * (len(devices) - 1)
    optimum = best_cut(graph, devices, exactly=exactly, links=many, overlap=overlap)
    assume(optimum < inf)
    machine = make_machine(graph, devices, exactly=exactly, links=links, overlap=overlap)
    sized = np.stack([graph.bytes, graph.gradient_bytes])
    units = make_units(graph, sized if links else graph.seconds[None])
    assert bound_with_ends(units, machine) <= optimum + 1e-9


def test_ends_are_all_that_a_chain_of_single_units_moves() -> None:
    """The second and third unit pay for two values each, the others for one."""
    values = [Value(u, [u + 1], 0.25) for u in range(3)]
    graph = cost_graph("abcd", {"gpu": [1.0] * 4}, values)
    machine = make_machine(graph, [Device("gpu")] * 4)
    assert bound_with_ends(_units(graph), machine) == (4 + 6 * 0.25) / 4
    assert make_bounds(_units(graph), machine).lower == 1


@pytest.mark.parametrize(
    ("pays", "exactly", "want"), [(True, True, 11), (True, False, 1), (False, True, 1)]
)
def test_ends_count_where_every_device_takes_a_stage_and_pays(
    pays: bool, exactly: bool, want: float
) -> None:
    graph = cost_graph("ab", {"gpu": [1.0, 1.0]}, [Value(0, [1], 10.0)])
    machine = make_machine(graph, [Device("gpu", pays=pays)] * 2, exactly=exactly)
    assert bound_with_ends(_units(graph), machine) == want


@pytest.mark.parametrize("seed", range(200))
def test_the_last_cut_holds_all_units_however_sums_are_rounded(seed: int) -> None:
    draw = np.random.default_rng(seed)
    work = draw.random(int(draw.integers(20, 60)))
    idle = int(draw.integers(len(work)))
    work[idle] = 0.0
    rows = np.ones((int(draw.integers(2, 40)), len(work)), bool)
    rows[int(draw.integers(len(rows))), idle] = False
    units = make_units(
        cost_graph([str(n) for n in range(len(work))], {"gpu": work}, []), np.zeros((1, 0))
    )
    assert len(IdealFamily(units, work, rows).members(len(rows) - 1)) == len(work)
