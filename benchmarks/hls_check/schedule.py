"""Cycles of operations that are scheduled as soon as possible: of a loop, between loops."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import networkx as nx

from benchmarks.hls_check.ir import Function, Instruction, Loop

HAND_OVER = 2
"""Cycles from the end of a loop to the start of what follows: trips and iteration latencies of 803
of 827 loops in reports of Vitis HLS leave as many."""


def cycles_of(
    operations: Iterable[Instruction],
    graph: "nx.DiGraph[Instruction]",
    delay: Callable[[Instruction], float],
    period: float,
) -> int:
    """Cycles from the first operation to the end of the last one.

    An operation of less than a cycle stands behind another in the same cycle if both fit in it; one
    with registers begins with a cycle.

    Args:
        operations: What is scheduled.
        graph: Who waits for whom: edges of distance 0.
        delay: Nanoseconds of an operation.
        period: Nanoseconds of a cycle.
    """
    here = set(operations)
    now: nx.DiGraph[Instruction] = nx.DiGraph()
    now.add_nodes_from(here)
    now.add_edges_from(
        (a, b) for a, b, e in graph.edges(data=True) if e["distance"] == 0 and {a, b} <= here
    )
    ends: dict[Instruction, float] = {}
    last = 0.0
    for i in nx.topological_sort(now):
        ready = max((ends[p] for p in now.predecessors(i)), default=0.0)
        took = delay(i)
        inside = ready - math.floor(ready / period + 1e-9) * period
        if inside > 1e-9 and inside + took > period + 1e-9:
            ready += period - inside
        ends[i] = ready + took
        last = max(last, ends[i])
    return math.ceil(last / period - 1e-9)


@dataclass(frozen=True)
class Pause:
    """What lies between two pipelined loops of one engine.

    Attributes:
        function: Mangled name of the function.
        declared: Cycles from the last start in the first loop to the first in the other one, as the
            code says.
        before: The first loop.
        between: Blocks between them, as a loop's whose header may be among them.
    """

    function: str
    declared: int
    before: Loop
    between: Loop


def pauses_in(function: Function) -> Iterator[Pause]:
    """The pauses that a function declares between loops of more than one iteration."""
    inner = [x for x in function.loops if not any(y.blocks < x.blocks for y in function.loops)]
    inside = {block for loop in inner for block in loop.blocks}
    for mark in (i for i in function if i.callee == "@pipec_gap"):
        if mark.block in inside:
            continue  # between loops of one iteration, which are the body of another
        back = _reached(function.flow.reverse(copy=False), mark.block, inside)
        on = _reached(function.flow, mark.block, inside)
        before = [x for x in inner if x.blocks & _beside(function.flow.reverse(copy=False), back)]
        after = [x for x in inner if x.header in _beside(function.flow, on)]
        if len(before) == len(after) == 1 and before != after:
            around = function.innermost(mark.block)
            blocks = frozenset(back | on) & (around.blocks if around else frozenset())
            heads = [x.header for x in function.loops if x.header in blocks]
            between = Loop(heads[0] if heads else "", blocks)
            yield Pause(function.name, mark.numbers[0], before[0], between)


def _reached(flow: "nx.DiGraph[str]", start: str, stop: set[str]) -> set[str]:
    """Blocks that are reached from one without a way through some others."""
    seen, todo = {start}, [start]
    while todo:
        for label in flow.successors(todo.pop()):
            if label not in seen and label not in stop:
                seen.add(label)
                todo.append(label)
    return seen


def _beside(flow: "nx.DiGraph[str]", blocks: set[str]) -> set[str]:
    return {s for b in blocks for s in flow.successors(b)}
