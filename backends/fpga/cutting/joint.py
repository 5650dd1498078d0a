"""The joint fold and cut of a plan: a client of `pipec.partition`, which knows no boards."""

import itertools
import time
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import fx

from pipec.backends.fpga.banks import memory_ports
from pipec.backends.fpga.cutting.chain import Chain, Cut, Order
from pipec.backends.fpga.demand import Demands, Numbers
from pipec.backends.fpga.design import Stream
from pipec.backends.fpga.engines.constants import Constants
from pipec.backends.fpga.engines.network import MemoryPorts, Network
from pipec.backends.fpga.engines.view import standard_order
from pipec.backends.fpga.folding import wire_lanes
from pipec.backends.fpga.links import Frame, link_cycles
from pipec.backends.fpga.lowering.lower import lower
from pipec.backends.fpga.lowering.norms import response_of
from pipec.backends.fpga.memory import interface
from pipec.backends.fpga.search import Board, port_kernels
from pipec.cluster.cluster import Link, slowest_link
from pipec.compiler.problem import build_problem
from pipec.graph.ir import Graph, tensors
from pipec.graph.quantised import DEQUANTIZE, QUANTIZE
from pipec.graph.written import ancestors
from pipec.partition.costgraph import CostGraph
from pipec.partition.orders.linear import generate_orders
from pipec.partition.result import CutResult, make_result
from pipec.partition.units import Units, make_units
from pipec.plan.model import Plan

METHOD = "fold and cut: bisection over the interval, boards reach as far as they can"
"""How a `CutResult` says that it is from here."""
ORDERS = 8
"""Linear orders that are tried."""


def interval_bound(network: Network, boards: Sequence[Board]) -> float:
    """Seconds per frame that no cut and no folding beats: all products on all usable DSPs.

    Raises:
        BackendError: A device is no FPGA.
    """
    rate = sum(board.limits.dsp * board.fabric.clock_hz for board in boards)
    return max(network.products(boards[0].precision) / rate, 1e-9)


def joint_cut(
    plan: Plan, boards: Sequence[Board], links: Sequence[Link], *, free_order: bool = False
) -> CutResult | None:
    """Cut a model over boards such that the slowest board, folded up to its budget, is fastest.

    Args:
        plan: A model for inference; with costs, for the linear orders and the memory of DDR.
        boards: One per stage.
        links: Behind each board but the last; of boards in any order, as slow as any of them.
        free_order: Boards may be put into another order.

    Returns:
        The cut; its bound is `interval_bound`. None if no cut was found.

    Raises:
        BackendError: An op has no engine.
    """
    began = time.perf_counter()
    graph, precision = plan.graph, boards[0].precision
    problem = build_problem(plan)
    units = make_units(problem, problem.bytes[None])
    if units.size < len(boards):
        return None
    network = lower(graph, precision, own=boards[0].own)
    bound = interval_bound(network, boards)
    pace = int(bound * boards[0].fabric.clock_hz)
    each = [memory_ports(board.device) for board in boards]
    least = MemoryPorts(min(m.count for m in each), min(m.room for m in each))
    network = lower(graph, precision, pace=pace, memory=least, own=boards[0].own)
    unit_of = dict(zip(problem.names, units.of_node.tolist(), strict=True))
    network, ports = network.at_clock(boards[0].fabric.clock_hz), (network.inputs, network.outputs)
    demands = Demands(network, precision, unit_of, units.size)
    # about what any cut has at each board
    kernels = port_kernels(ports, (), platform=True) + interface(demands.design(pace))
    boards = [board.beside(kernels) for board in boards]
    chain = Chain(boards, demands, bound, free_order)
    joints = [slowest_link(links)] * len(links) if free_order and links else links
    sources = [problem.names[k] for k in problem.producer.tolist()]
    frames = [_frame(graph, n, network.types.get(n, precision)) for n in sources]
    clock = boards[0].fabric.clock_hz

    def crossing(order: Order) -> Numbers:
        """Seconds of every link for what crosses behind every position."""
        behind = live_values(problem, units, order)
        sent = [[frames[v] for v in values] for values in behind]
        return np.array([[link_cycles(f, j, clock) / clock for f in sent] for j in joints])

    some = itertools.islice(generate_orders(units, units.work.max(axis=0)), ORDERS)
    orders = {order.tobytes(): order for order in some}.values()
    found = chain.find_best((order, crossing(order)) for order in orders)
    return None if found is None else _result(problem, units, chain, *found, began)


def _frame(graph: Graph, node: str, precision: str) -> Frame:
    """A value as it crosses a link, in the axis order at cuts."""
    first = tensors(graph.node(node))[0]
    dtype = precision if first.is_floating_point() else "int32"
    channels = first.shape[standard_order(first.shape)[-1]] if first.ndim else 1
    rows, lanes = first.numel() // channels, wire_lanes(channels, dtype)
    return Frame.of(Stream(node, rows, channels, lanes, dtype))


def keep_together(graph: Graph, precision: str) -> Iterator[list[str]]:
    """Names of calls of a model that one board computes, a row for each such board.

    Truth values, which no stream carries, with what chooses by them; a constant with its only
    reader, whose weight it may be; the steps of a local response normalisation, one engine; in
    int8 what a ``quantize`` rounds, and what reads it, as no other integers cross a link.
    """
    constants = Constants(graph)
    for node in graph.calls:
        row = {node}
        by = [str(n.target) for n in node.users if node in constants]
        fixed = len(by) == 1 and not by[0].endswith(".input")  # that is the state of an RNN
        if fixed or tensors(node)[0].dtype is torch.bool:
            row |= {*node.users}
        if (found := response_of(node)) is not None:
            row |= ancestors([node]) - ancestors([found.bound["x"]])
        if node.target is QUANTIZE and precision == "int8":
            row |= {*node.users} | _list_rounded(node.all_input_nodes[0])
        if len(names := [n.name for n in graph.calls if n in row]) > 1:
            yield names


def _list_rounded(node: fx.Node) -> set[fx.Node]:
    """The layer whose results a ``quantize`` rounds, and what is done to each result alone."""
    if node.op != "call_function" or node.target is DEQUANTIZE:
        return set()
    inputs = node.all_input_nodes
    return {node} | (_list_rounded(inputs[0]) if len(inputs) == 1 else set())


def live_values(problem: CostGraph, units: Units, order: Order) -> list[list[int]]:
    """Values alive behind each position of an order: what a cut there sends over one link."""
    position = np.empty(units.size, dtype=np.int64)
    position[order] = np.arange(units.size)
    found: list[list[int]] = [[] for _ in order]
    for value, made in enumerate(problem.producer.tolist()):
        readers = problem.consumer[slice(*problem.consumer_ptr[value : value + 2])]
        at = position[units.of_node[[made, *readers]]]
        for behind in range(at.min(), at.max()):
            found[behind].append(value)
    return found


def _result(
    problem: CostGraph, units: Units, chain: Chain, step: int, cut: Cut, began: float
) -> CutResult:
    stage_of = np.empty(units.size, dtype=np.int64)
    for number, (start, end) in enumerate(itertools.pairwise((0, *cut.ends))):
        stage_of[cut.order[start:end]] = number
    stage = stage_of[units.of_node]
    loads = np.full(len(cut.boards), chain.seconds(step))
    return make_result(problem, stage, cut.boards, loads, chain.bound, METHOD, began)
