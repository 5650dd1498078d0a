"""The joint fold and cut of a plan: a client of `pipec.partition`, which knows no boards."""

import dataclasses
import itertools
import time
from collections.abc import Iterator, Sequence

import numpy as np
from networkx.utils import UnionFind
from torch import fx

from pipec.backends.fpga.banks import memory_ports
from pipec.backends.fpga.cutting.chain import Chain, Cut, Order
from pipec.backends.fpga.demand import Demands, Numbers
from pipec.backends.fpga.lowering.lower import lower
from pipec.backends.fpga.lowering.network import MemoryPorts, Network
from pipec.backends.fpga.numbers import bits_of
from pipec.backends.fpga.search import Board
from pipec.compiler.problem import placement_problem
from pipec.cost.table import CostTable
from pipec.graph.ir import Graph, tensors
from pipec.graph.quantised import DEQUANTIZE, QUANTIZE
from pipec.partition.costgraph import CostGraph
from pipec.partition.orders.linear import linear_orders
from pipec.partition.result import CutResult, cut_result
from pipec.partition.units import Units, make_units

METHOD = "fold and cut: bisection over the interval, boards reach as far as they can"
"""How a `CutResult` says that it is from here."""
ORDERS = 8
"""Linear orders that are tried."""


def interval_bound(network: Network, boards: Sequence[Board]) -> float:
    """Seconds per frame that no cut and no folding beats: all products on all usable DSPs.

    Raises:
        BackendError: A device is no FPGA.
    """
    rate = sum(board.products * board.fabric.clock_hz for board in boards)
    return max(network.macs / rate, 1e-9)


def joint_cut(
    graph: Graph,
    costs: CostTable,
    boards: Sequence[Board],
    links: Sequence[float],
    *,
    free_order: bool = False,
) -> CutResult | None:
    """Cut a model over boards such that the slowest board, folded up to its budget, is fastest.

    Args:
        graph: The whole model, for inference.
        costs: Per node cost, for the linear orders and the memory of DDR.
        boards: One per stage.
        links: Payload bytes per second behind each board but the last.
        free_order: Boards may be put into another order.

    Returns:
        The cut; its bound is `interval_bound`. None if no cut was found.

    Raises:
        BackendError: An op has no engine.
    """
    began = time.perf_counter()
    precision = boards[0].precision
    problem = _with_stream_bytes(placement_problem(graph, costs), graph, precision)
    problem = _with_whole_formats(problem, graph) if precision == "int8" else problem
    units = make_units(problem, problem.bytes[None])
    if units.size < len(boards):
        return None
    network = lower(graph, precision)
    bound = interval_bound(network, boards)
    pace = int(bound * boards[0].fabric.clock_hz)
    each = [memory_ports(board.device) for board in boards]
    least = MemoryPorts(min(m.count for m in each), min(m.room for m in each))
    network = lower(graph, precision, pace=pace, memory=least)
    unit_of = dict(zip(problem.names, units.of_node.tolist(), strict=True))
    demands = Demands(network, precision, unit_of, units.size)
    chain = Chain(boards, links, demands, bound, free_order)
    orders = [(order, crossing(units, order)) for order in _orders(units)]
    found = chain.best(orders)
    if found is None:
        return None
    step, cut = chain.confirmed(*found, crossing(units, found[1].order))
    return _result(problem, units, chain, step, cut, began)


def _orders(units: Units) -> Iterator[Order]:
    """Different linear orders of the units."""
    seen: set[bytes] = set()
    for order in itertools.islice(linear_orders(units, units.work.max(axis=0)), ORDERS):
        if order.tobytes() not in seen:
            seen.add(order.tobytes())
            yield order


def _with_stream_bytes(problem: CostGraph, graph: Graph, precision: str) -> CostGraph:
    """The problem with values as wide as the streams carry them."""
    width = bits_of(precision) / 8
    nodes = graph.nodes
    scale = [
        width / first.itemsize if first.is_floating_point() else 1.0
        for first in (tensors(nodes[problem.names[k]])[0] for k in problem.producer.tolist())
    ]
    return dataclasses.replace(problem, bytes=problem.bytes * np.array(scale))


def _with_whole_formats(problem: CostGraph, graph: Graph) -> CostGraph:
    """The problem with each ``quantize`` in one group with what it rounds and what reads it.

    On a board they are one engine, which writes the integers; no other integers cross a link.
    """
    group = dict(zip(problem.names, problem.group.tolist(), strict=True))
    whole: UnionFind[int] = UnionFind(problem.group.tolist())
    for node in graph.calls:
        if node.target is QUANTIZE:
            inside = [node, *node.users, *_rounded(node)]
            whole.union(*(group[n.name] for n in inside if n.name in group))
    return dataclasses.replace(problem, group=np.array([whole[group[n]] for n in problem.names]))


def _rounded(node: fx.Node) -> Iterator[fx.Node]:
    """The layer whose results a ``quantize`` rounds, and what is done to each result alone."""
    while True:
        node = node.all_input_nodes[0]
        if node.op != "call_function" or node.target is DEQUANTIZE:
            return
        yield node
        if len(node.all_input_nodes) != 1:
            return


def crossing(units: Units, order: Order) -> Numbers:
    """Bytes alive behind each position of an order: what a cut there sends over one link."""
    position = np.empty(units.size, dtype=np.int64)
    position[order] = np.arange(units.size)
    at, starts = position[units.pin], units.pin_ptr[:-1]
    alive = np.zeros(units.size + 1)
    if len(starts):
        np.add.at(alive, np.minimum.reduceat(at, starts), units.cost[0])
        np.add.at(alive, np.maximum.reduceat(at, starts), -units.cost[0])
    return np.asarray(np.cumsum(alive)[:-1])


def _result(
    problem: CostGraph, units: Units, chain: Chain, step: int, cut: Cut, began: float
) -> CutResult:
    stage_of = np.empty(units.size, dtype=np.int64)
    for number, (start, end) in enumerate(itertools.pairwise((0, *cut.ends))):
        stage_of[cut.order[start:end]] = number
    stage = stage_of[units.of_node]
    loads = np.full(len(cut.boards), chain.seconds(step))
    return cut_result(problem, stage, cut.boards, loads, chain.bound, METHOD, began)
