"""Folding and cutting as one search: against brute force, duality, links, unlike boards."""

import dataclasses

import numpy as np
import pytest

from pipec.backends.fpga.banks import blocks_of
from pipec.backends.fpga.cutting.chain import Chain, Cut, Order
from pipec.backends.fpga.cutting.joint import METHOD, interval_bound, joint_cut, live_values
from pipec.backends.fpga.demand import Demand, Demands, Group, Numbers
from pipec.backends.fpga.lowering.lower import lower
from pipec.backends.fpga.search import Board, Search
from pipec.cluster.cluster import Cluster, Link
from pipec.cluster.device import Device
from pipec.cluster.presets import PRESETS
from pipec.compiler.driver import make_plan
from pipec.compiler.pass_manager import parse_pipeline
from pipec.errors import BackendError
from pipec.graph.ir import Graph
from pipec.graph.written import extract
from pipec.partition.costgraph import Value, cost_graph
from pipec.partition.result import CutResult
from pipec.partition.units import make_units
from pipec.plan.model import Plan
from tests.fpga.design.models import graph_of, made

VCU118 = PRESETS["vcu118"]
COSTED = "simplify,annotate-cost"


@pytest.mark.parametrize("units", [2, 7, 30])
@pytest.mark.parametrize(("held", "late"), [(0, 40), (1, 40), (5, 40), (13, 40), (30, 40), (5, 3)])
def test_a_board_reaches_as_far_as_it_holds(
    units: int, held: int, late: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So many units fit a board, one is too slow; two boards hold all units or not."""
    network, board = lower(graph_of(*made("excite"))), Board(device("small", 500))
    demands = Demands(network, "float32", {}, units)
    groups = tuple(Group(k, "", ()) for k in range(units))
    demand = Demand(groups, np.arange(units) == late)
    monkeypatch.setattr(demands, "at", lambda _: demand)
    monkeypatch.setattr(Demand, "fits", lambda self, _: len(self.groups) <= held)
    order, crossing = np.arange(units)[::-1].copy(), np.zeros((1, units))
    cut = Chain([board] * 2, demands, 1.0).cut_at(0, order, crossing)
    assert (cut is not None) == (units <= 2 * held and units <= late)
    if cut is not None:
        assert cut.ends == (min(held, units - 1), units)


@pytest.mark.parametrize("least", [0, 1, 7, 8, 9, 100, 777])
def test_the_least_step_is_found(least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two orders that of the second, one step less than the first can do."""
    demands = Demands(lower(graph_of(*made("excite"))), "float32", {}, 2)
    orders = [(np.array(order), np.zeros((1, 2))) for order in ([0, 1], [1, 0])]

    def at(_: Chain, step: int, order: Order, crossing: Numbers) -> Cut | None:
        """From some step on."""
        return Cut((0,), (2,), order) if step > least or (step == least and order[0]) else None

    monkeypatch.setattr(Chain, "cut_at", at)
    found = Chain([Board(device("small", 500))], demands, 1.0).find_best(orders)
    assert found is not None
    assert (found[0], found[1].order.tolist()) == (least, [1, 0])


def device(kind: str, dsp: int, link: float = 11e9) -> Device:
    """A VCU118 with fewer DSPs."""
    assert VCU118.fpga is not None
    fabric = dataclasses.replace(VCU118.fpga, dsp=dsp)
    return dataclasses.replace(VCU118, kind=kind, fpga=fabric, link_bandwidth=link)


def costed(name: str, *devices: Device) -> Plan:
    model, x = made(name)
    return make_plan(graph_of(model, x), Cluster(devices), "fpga", passes=parse_pipeline(COSTED))


def cut_of(
    plan: Plan, links: float = 11e9, *, latency: float = 0.0, free: bool = False
) -> CutResult:
    boards = [Board(d) for d in plan.cluster.devices]
    joints = [Link(links, latency)] * (len(boards) - 1)
    found = joint_cut(plan, boards, joints, free_order=free)
    assert found is not None
    return found


def slowest(graph: Graph, stage: "np.ndarray[tuple[int], np.dtype[np.int64]]", plan: Plan) -> float:
    """Interval of the slowest stage when each is folded as far as its board allows."""
    names, orders, worst = [n.name for n in graph.calls], dict[str, tuple[int, ...]](), 0.0
    for k, board in enumerate(plan.cluster.devices):
        mine = {n for n, s in zip(names, stage.tolist(), strict=True) if s == k}
        network = lower(extract(graph, mine, f"S{k}"), orders=orders)
        orders |= {p.value: p.order for p in network.outputs}
        worst = max(worst, Search(network, Board(board)).best().interval)
    return worst


@pytest.mark.parametrize("name", ["inception"])
def test_no_cut_of_the_same_order_is_faster(name: str) -> None:
    """Brute force: every cut in two of the nodes' own order, really folded."""
    plan = costed(name, *[device("small", 500)] * 2)
    found = cut_of(plan)
    best = slowest(plan.graph, found.stage, plan)
    assert best <= found.max_load * 200e6 * 1.01
    count = len(plan.graph.calls)
    for end in range(1, count):
        stage = (np.arange(count) >= end).astype(np.int64)
        try:
            other = slowest(plan.graph, stage, plan)
        except BackendError:
            continue
        assert best <= other * 1.01, end


def test_a_stage_fits_at_the_interval_of_its_design_and_not_below_its_bound() -> None:
    model, x = made("resnet")
    network = lower(graph_of(model, x))
    board = Board(device("small", 500))
    design = Search(network, board).best()
    demands = Demands(network, "float32", {layer.node: 0 for layer in network.layers})
    demand = demands.at(design.interval)
    assert not demand.late.any()
    assert demand.fits(board.room(board.limits))
    faster = demands.at(int(interval_bound(network, [board]) * 200e6 * 0.95))
    assert not faster.fits(board.room(board.limits))


def test_streaming_is_an_option_of_layers_with_large_matrices() -> None:
    model, x = made("resnet")
    network = lower(graph_of(model, x))
    demands = Demands(network, "float32", {layer.node: 0 for layer in network.layers})
    groups = {g.layer: g for g in demands.at(100_000).groups if g.layer}
    assert set(groups) == set(blocks_of(network))
    for group in groups.values():
        chip, *streamed = group.options
        assert chip.block == 0
        assert not chip.rates
        assert all(o.block > 0 and o.rates for o in streamed)


def test_boards_in_the_best_order_are_no_slower() -> None:
    large, small = device("large", 900), device("small", 400)
    orders = ((large, small, small), (small, large, small), (small, small, large))
    fixed = [cut_of(costed("resnet", *order)).max_load for order in orders]
    free = cut_of(costed("resnet", small, large, small), free=True)
    assert free.max_load == pytest.approx(min(fixed))
    assert sorted(free.device_order) == [0, 1, 2]


def test_what_crosses_a_link_fits_its_payload() -> None:
    """A slow link is cut where little crosses, or the interval grows to what it carries."""
    plan = costed("resnet", *[device("small", 500)] * 2)
    fast, slow = cut_of(plan), cut_of(plan, links=2e6)
    assert slow.max_load >= fast.max_load
    calls = plan.graph.calls
    stage = dict(zip((n.name for n in calls), slow.stage.tolist(), strict=True))
    sent = sum(
        4 * n.meta["val"].numel()
        for n in calls
        if stage[n.name] == 0 and any(stage.get(u.name) == 1 for u in n.users)
    )
    assert sent > 0
    assert sent <= slow.max_load * 2e6


def test_a_cut_counts_the_flight_of_credits() -> None:
    """Where two values cross a link so far away that its window is short, one is cut instead."""
    plan = costed("resnet", *[device("small", 500)] * 2)
    near, far = (cut_of(plan, links=1e12, latency=s) for s in (0.0, 0.1))
    assert far.max_load >= near.max_load
    assert plan.costs is not None
    calls = plan.graph.calls
    stage = dict(zip((n.name for n in calls), far.stage.tolist(), strict=True))
    sent = [n for n in calls if {stage[n.name], *(stage.get(u.name) for u in n.users)} >= {0, 1}]
    packets = [-(-4 * n.meta["val"].numel() // (64 * 16)) for n in sent]
    if len(sent) > 1:
        assert far.max_load >= max(packets) * 0.2 / 32


def test_what_is_alive_crosses() -> None:
    """a -> b -> d, a -> c -> d: both branches cross behind b."""
    values = [Value(0, [1, 2], bytes=8), Value(1, [3], bytes=2), Value(2, [3], bytes=4)]
    graph = cost_graph("abcd", {"x": [1, 1, 1, 1]}, values)
    units = make_units(graph, graph.bytes[None])
    assert live_values(graph, units, np.arange(4)) == [[0], [0, 1], [1, 2], []]
    assert live_values(graph, units, np.array([0, 2, 1, 3])) == [[0], [0, 2], [1, 2], []]


def test_impossible_chain_has_no_cut() -> None:
    plan = costed("resnet", *[device("small", 500)] * 2)
    network = lower(plan.graph)
    demands = Demands(network, "float32", {layer.node: 0 for layer in network.layers}, 1)
    chain = Chain([Board(d) for d in plan.cluster.devices], demands, 1e-4)
    assert chain.find_best([(np.zeros(1, np.int64), np.zeros((1, 1)))]) is None


def test_compile_takes_this_road() -> None:
    model, x = made("resnet")
    devices = (device("large", 900), device("small", 500))
    plan = make_plan(graph_of(model, x), Cluster(devices), "fpga")
    assert plan.partition is not None
    assert plan.partition.method == METHOD
    assert plan.partition.lower_bound < plan.partition.max_load
    reached = max(t.interval_seconds for t in plan.timing)
    assert reached == pytest.approx(plan.partition.max_load, rel=0.02)
    assert plan.costs is not None
    measured = dataclasses.replace(
        plan.costs, method=dict.fromkeys(("large", "small"), "measured")
    )  # fmt: skip
    other = make_plan(graph_of(model, x), Cluster(devices), "fpga", costs=measured)
    assert other.partition is not None
    assert other.partition.method != METHOD
    assert max(t.interval_seconds for t in other.timing) >= reached * 0.99
