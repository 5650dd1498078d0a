"""Cycles of operations that are scheduled as soon as possible: of a loop, between loops."""

import math
from bisect import insort
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import networkx as nx

from benchmarks.hls_check.ir import Function, Instruction, Loop

HAND_OVER = 2
"""Cycles from the end of a loop to the start of what follows: trips and iteration latencies of 803
of 827 loops in reports of Vitis HLS leave as many."""


def ends_of(
    operations: Iterable[Instruction],
    graph: "nx.DiGraph[Instruction]",
    delay: Callable[[Instruction], float],
    period: float,
    ii: int = 1,
    sums: Mapping[Instruction, Sequence[Instruction | None]] | None = None,
    ready: Mapping[Instruction, float] | None = None,
) -> dict[Instruction, int]:
    """Cycle in which each operation has ended, counted from the start of the iteration.

    An operation of less than a cycle stands behind another in the same cycle if both fit in it; one
    with registers begins with a cycle. What another iteration computed is waited for, too, but for
    recurrences, which the interval leaves time for.

    Args:
        operations: What is scheduled.
        graph: Who waits for whom, in which later iteration.
        delay: Nanoseconds of an operation.
        period: Nanoseconds of a cycle.
        ii: Cycles from one iteration to the next.
        sums: Additions to all that they sum, two by two, what is there first before the rest;
            None for what is there from the start on.
        ready: Nanoseconds before which an operation does not begin.
    """
    here = graph.subgraph(operations)
    number = {i: k for k, part in enumerate(nx.strongly_connected_components(here)) for i in part}
    now: nx.DiGraph[Instruction] = nx.DiGraph()
    now.add_nodes_from(operations)
    for a, b, e in here.edges(data=True):
        if e["distance"] == 0 or number[a] != number[b]:
            now.add_edge(a, b, before=e["distance"] * ii * period)
    ends: dict[Instruction, float] = {}

    def end(ready: float, took: float) -> float:
        inside = ready - math.floor(ready / period + 1e-9) * period
        late = inside > 1e-9 and inside + took > period + 1e-9
        return ready + took + (period - inside if late else 0.0)

    for i in nx.topological_sort(now):
        waits = (ends[p] - now.edges[p, i]["before"] for p in now.predecessors(i))
        first = ready.get(i, 0.0) if ready else 0.0
        ends[i] = end(max((first, *waits)), delay(i))
        if sums and i in sums:
            terms = sorted(ends.get(p, 0.0) if p else 0.0 for p in sums[i])
            while len(terms) > 1:
                insort(terms, end(max(terms.pop(0), terms.pop(0)), delay(i)))
            ends[i] = max(ends[i], terms[0])
    return {i: math.ceil(end / period - 1e-9) for i, end in ends.items()}


def find_inner_sums(operations: Sequence[Instruction]) -> frozenset[str]:
    """Integer additions that only another one reads.

    A tool balances sums of integers (EXPRESSION_BALANCE, on by default), so what comes last is
    added last; clang's order, which adds it first, says nothing.
    """
    here = {i.name: i for i in operations if i.name}
    readers = Counter(v for i in operations for v in set(i.values))
    sums = [i for i in operations if i.op == "add"]
    inner = {v for i in sums for v in i.values if v in here and readers[v] == 1}
    return frozenset(v for v in inner if here[v].op == "add")


def find_terms(
    i: Instruction, here: Mapping[str, Instruction], inner: Collection[str]
) -> Iterator[Instruction | None]:
    """What an addition sums with those that only it reads; None for what is no operation here."""
    todo = [*(*i.values, "")[:2]]
    while todo:
        v = todo.pop()
        if v in inner:
            todo.extend((*here[v].values, "")[:2])
        else:
            yield here.get(v)


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
        back = _find_reached(function.flow.reverse(copy=False), mark.block, inside)
        on = _find_reached(function.flow, mark.block, inside)
        before = [x for x in inner if x.blocks & _beside(function.flow.reverse(copy=False), back)]
        after = [x for x in inner if x.header in _beside(function.flow, on)]
        if len(before) == len(after) == 1 and before != after:
            around = function.innermost(mark.block)
            blocks = frozenset(back | on) & (around.blocks if around else frozenset())
            heads = [x.header for x in function.loops if x.header in blocks]
            between = Loop(heads[0] if heads else "", blocks)
            yield Pause(function.name, mark.numbers[0], before[0], between)


def _find_reached(flow: "nx.DiGraph[str]", start: str, stop: set[str]) -> set[str]:
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


def longer_cycle(graph: "nx.DiGraph[Instruction]", period: float) -> list[Instruction]:
    """A cycle whose delays exceed its distances times a period; empty if there is none."""
    time = dict.fromkeys(graph, 0.0)
    before: dict[Instruction, Instruction] = {}
    edges = [(a, b, e["delay"] - e["distance"] * period) for a, b, e in graph.edges(data=True)]
    for _ in range(len(time) + 1):
        moved = False
        for a, b, weight in edges:
            if time[a] + weight > time[b] + 1e-9:
                time[b], before[b], moved = time[a] + weight, a, True
        if not moved:
            return []
        if cycle := _find_cycle(before):
            return cycle
    raise AssertionError("longest paths without an end have a cycle")


def _find_cycle(before: Mapping[Instruction, Instruction]) -> list[Instruction]:
    """A cycle of predecessors, in order; empty if there is none."""
    done: set[Instruction] = set()
    for start in before:
        way: dict[Instruction, None] = {}
        at: Instruction | None = start
        while at is not None and at not in done and at not in way:
            way[at] = None
            at = before.get(at)
        if at is not None and at in way:
            nodes = list(way)
            return nodes[nodes.index(at) :][::-1]
        done.update(way)
    return []
