"""Linear and integer programs, minimum cuts: against brute force, and against the ideals."""

from itertools import product
from math import inf

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipec.partition import prove
from pipec.partition.bounds import Reach, make_bounds
from pipec.partition.closure import cheapest_ideals, least_loads
from pipec.partition.costgraph import CostGraph
from pipec.partition.devices import Device
from pipec.partition.ideals import enumerate_ideals
from pipec.partition.linear import Program
from pipec.partition.machine import make_machine
from pipec.partition.solve import solve_contiguous
from pipec.partition.units import Units, make_units
from tests.partition.brute import best_cut, legal
from tests.partition.families import branches, priced, scattered, trained
from tests.partition.strategies import graphs


def _units(graph: CostGraph) -> Units:
    return make_units(graph, graph.seconds[None])


def _program(graph: CostGraph, devices: list[Device]) -> Program:
    units = _units(graph)
    bounds = make_bounds(units, make_machine(graph, devices))
    pays = np.array([d.pays for d in devices])
    kinds = list(dict.fromkeys(devices))
    held = np.cumsum([bounds.capacity[kinds.index(d)] for d in devices])
    work = units.work[[graph.classes.index(d.kind) for d in devices]]
    price = float(bounds.capacity.min()) if pays.all() else 0.0
    return Program(units, work, pays, bounds.ref, held, price)


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


@given(graphs(most=6), st.booleans())
def test_cheapest_ideals_and_devices_are_minimum_cuts(graph: CostGraph, right: bool) -> None:
    units = _units(graph)
    work = units.work[0]
    ideal, device = np.full(units.size, inf), np.full(units.size, inf)
    for inside in product((False, True), repeat=units.size):
        here = np.array(inside)
        paid = _paid(units, here)
        device[here] = np.minimum(device[here], work @ here + paid)
        if _closed(units, inside, right=right):
            ideal[here] = np.minimum(ideal[here], work @ here + 2 * paid)
    found = cheapest_ideals(units, work, 2.0, right=right)
    assert found == pytest.approx(ideal, abs=1e-6)
    found = least_loads(units, work, np.arange(units.size))
    assert found == pytest.approx(device, abs=1e-6)


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


@settings(max_examples=40, deadline=None)
@given(graphs(most=6, blocked=True), st.integers(1, 3), st.booleans())
def test_programs_bound_what_brute_force_finds(graph: CostGraph, count: int, hosted: bool) -> None:
    devices = [Device("fast")] * count + [Device("slow", pays=False)] * hosted
    rows = [graph.classes.index(d.kind) for d in devices]
    assume(np.isfinite(_units(graph).work[rows]).any(axis=0).all())
    optimum = best_cut(graph, devices, exactly=False)
    limit = 1000.0
    program = _program(graph, devices)
    relaxed, (exact, places) = program.relaxed(limit, 10.0), program.solved(limit, 10.0)
    assert relaxed <= optimum + 1e-6
    if optimum == inf:
        assert exact == inf
        return
    assert exact == pytest.approx(optimum, abs=1e-2)
    assert places is not None
    assert legal(graph, places[program.units.of_node].tolist())
    if optimum:
        # a limit that the optimum is above: nothing is found below it
        assert program.solved(0.9 * optimum, 10.0)[0] >= 0.9 * optimum - 1e-2


@settings(max_examples=25, deadline=None)
@given(graphs(most=6), st.integers(2, 3))
def test_bound_holds_without_ideals(graph: CostGraph, count: int) -> None:
    devices = [Device("fast")] * count
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prove, "IDEALS_LIMIT", 0)
        cut = solve_contiguous(graph, devices, exactly=False, time_limit=5.0)
    optimum = best_cut(graph, devices, exactly=False)
    assert cut.lower_bound <= optimum + 1e-6
    assert cut.max_load == pytest.approx(optimum, abs=1e-4)
    assert cut.gap < 1e-3


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize(
    "graph",
    [
        priced(branches(3, 3, 3, 0), 0.3, 1),
        priced(branches(2, 4, 4, 2), 1.0, 3),
        trained(branches(3, 3, 3, 4), 0.3, 5),
        trained(branches(4, 2, 4, 6), 1.0, 7),
        priced(scattered(24, 3, 8), 0.3, 9),
        trained(scattered(20, 3, 10), 0.3, 11),
    ],
)
def test_ideals_and_integer_program_agree(graph: CostGraph, count: int) -> None:
    """Two methods that share no more than the contraction of the graph."""
    devices = [Device("gpu")] * count
    cut = solve_contiguous(graph, devices, exactly=False, time_limit=20.0)
    assert cut.proven
    exact, _ = _program(graph, devices).solved(2 * cut.max_load, 20.0)
    assert exact == pytest.approx(cut.max_load, rel=1e-5)
