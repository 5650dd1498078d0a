"""The cost table of a graph: what was known of its nodes stays, what is new is timed by a model."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from pipec.compiler.backend import load_backend
from pipec.compiler.capabilities import model_of
from pipec.cost.count import count
from pipec.cost.model import CostModel
from pipec.cost.silicon import load_silicon, product_size
from pipec.cost.stage import MessageCost
from pipec.cost.table import CostTable
from pipec.errors import PassError
from pipec.graph.ir import Graph
from pipec.plan.model import Plan, cut_stages

Parts = Mapping[str, tuple[str, float]]
"""New node to the node of before that it is a part of, and its share of that node's seconds."""


def make_cost_table(plan: Plan, graph: Graph, parts: Parts | None = None) -> CostTable:
    """Costs of a graph that a pass has made of the plan's, on every kind of device of its cluster.

    ``parts`` are the nodes that a measured one was taken apart into.

    A node that is and counts as before keeps its seconds. Others take those of the backend's model;
    parts of a node whose seconds were measured take their share of these. Where the device names
    tables all nodes are timed by these. What was measured of messages and whole stages stays.

    Raises:
        CostError: The plan has costs, and none of a kind of device.
    """
    counted, parts = count(graph), parts or {}
    model: CostModel = model_of(load_backend(plan.target), plan.cluster)
    before, old = plan.costs, plan.graph.nodes
    new = [
        n
        for n in graph.calls
        if not before
        or before.nodes.get(n.name) != counted[n.name]
        or old[n.name].target != n.target
    ]
    seconds, backward = dict[str, Mapping[str, float]](), dict[str, Mapping[str, float]]()
    method, tabled = dict[str, str](), dict[str, list[str]]()
    messages: dict[str, MessageCost] = dict(before.messages) if before else {}
    for device in plan.cluster.devices:
        kind = device.kind
        if kind in seconds:
            continue
        if device.tables:
            tables = load_silicon(device.tables)
            method[kind] = tables.name
            seconds[kind], backward[kind] = tables.seconds(graph, counted, device)
            tabled[kind] = [n.name for n in graph.calls if product_size(n)]
            if (cost := tables.messages(plan.cluster, kind)) is not None:
                messages[kind] = cost
            continue
        method[kind] = before.method[kind] if before else model.name
        known = before.of(kind) if before else {}
        timed = {n.name: model.seconds(n, counted[n.name], device) for n in new}
        if method[kind] != model.name:
            timed |= _share(known, parts)
        seconds[kind] = _join(counted, timed, known)
        if before and kind in before.backward:
            row = before.backward[kind]
            again = {n: s * counted[n].backward for n, s in timed.items()} | _share(row, parts)
            backward[kind] = _join(counted, again, row)
    stages = before.stages if before else {}
    return CostTable(counted, seconds, method, stages, messages, backward, tabled)


def check_unsent(plan: Plan, name: str) -> None:
    """Refuse a pass behind the one whose work it would change.

    Raises:
        PassError: The stages send and receive already.
    """
    if plan.channels:
        raise PassError(f"pass {name} would change what is sent", hint="put it before insert-comm")


def recut(plan: Plan, graph: Graph, home: Mapping[str, int]) -> Plan:
    """The plan whose stages are cut from a graph that a pass has made of its own."""
    assert plan.partition is not None
    return plan.replace(
        graph=graph,
        costs=make_cost_table(plan, graph),
        partition=replace(plan.partition, stage_of=home),
        stages=cut_stages(graph, home, len(plan.stages)),
    )


def _join(
    names: Iterable[str], new: Mapping[str, float], known: Mapping[str, float]
) -> dict[str, float]:
    return {n: new[n] if n in new else known[n] for n in names}


def _share(seconds: Mapping[str, float], parts: Parts) -> dict[str, float]:
    return {name: seconds[whole] * share for name, (whole, share) in parts.items()}
