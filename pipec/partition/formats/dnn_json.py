"""The JSON workloads of Tarnawski et al., NeurIPS'20; "FPGA" means accelerator there."""

import json
from math import inf
from typing import Any

import numpy as np

from pipec.errors import PartitionError
from pipec.partition.costgraph import CostGraph, Value, cost_graph
from pipec.partition.formats.workload import ACCELERATOR, CPU, Workload

MOST = 1e300  # larger numbers, which may be whole ones of any length, are infinite


def parse_dnn_json(text: str, where: str) -> Workload:
    """Reads one workload; unknown fields are ignored.

    Args:
        text: The file.
        where: Its name, for messages.

    Raises:
        PartitionError: What is missing, of the wrong type, or contradictory.
    """
    try:
        data = json.loads(text)
    except RecursionError as error:
        raise PartitionError("the cost graph is nested too deeply", where=where) from error
    except json.JSONDecodeError as error:
        raise PartitionError(
            "the cost graph is not complete JSON",
            where=f"{where}, line {error.lineno}, column {error.colno}",
            got=error.msg,
        ) from error
    if not isinstance(data, dict):
        raise PartitionError("the cost graph must be a JSON object", where=where, got=data)
    nodes, edges = _objects(data, "nodes", where), _objects(data, "edges", where)
    index: dict[Any, int] = {}
    for number, node in enumerate(nodes):
        name = _id(node, "id", f"{where}, nodes[{number}]")
        if name in index:
            raise PartitionError("two nodes have the same id", where=where, got=name)
        index[name] = number
    places = [f"{where}, node {name}" for name in index]
    graph = _graph(nodes, places, index, _values(edges, index, where))
    _check_direction(graph, where)
    return Workload(
        graph,
        priced=True,
        accelerators=_count(data, "maxFPGAs", where),
        cpus=_count(data, "maxCPUs", where),
        memory_bytes=_number(data, "maxSizePerFPGA", where, default=inf),
    )


def _graph(
    nodes: list[dict[str, Any]], places: list[str], index: dict[Any, int], values: list[Value]
) -> CostGraph:
    colours: dict[Any, int] = {}
    group = [
        -1 if n.get("colorClass") is None else colours.setdefault(n["colorClass"], len(colours))
        for n in nodes
    ]
    at = list(zip(nodes, places, strict=True))
    return cost_graph(
        [str(name) for name in index],
        {
            ACCELERATOR: [
                _number(n, "fpgaLatency", p) if _flag(n, "supportedOnFpga", p) else inf
                for n, p in at
            ],
            CPU: [_number(n, "cpuLatency", p) for n, p in at],
        },
        values,
        weight_bytes=[_number(n, "size", p, default=0.0) for n, p in at],
        group=group,
        backward=[_flag(n, "isBackwardNode", p) for n, p in at],
    )


def _values(edges: list[dict[str, Any]], index: dict[Any, int], where: str) -> list[Value]:
    """One value per producer; all its edges must agree on the cost."""
    consumers: dict[int, list[int]] = {}
    cost: dict[int, float] = {}
    for number, edge in enumerate(edges):
        place = f"{where}, edges[{number}]"
        tail, head = _id(edge, "sourceId", place), _id(edge, "destId", place)
        for end in (tail, head):
            if end not in index:
                raise PartitionError("an edge needs a node that is not there", where=place, got=end)
        source, price = index[tail], _number(edge, "cost", place)
        if abs(cost.setdefault(source, price) - price) > 1e-6:
            raise PartitionError(
                "edges of one producer have different costs",
                where=f"{where}, node {tail}",
                got=f"{cost[source]} and {price}",
                want="the time to move its output, the same on every edge",
            )
        consumers.setdefault(source, []).append(index[head])
    return [Value(source, readers, cost[source]) for source, readers in consumers.items()]


def _check_direction(graph: CostGraph, where: str) -> None:
    edges = graph.edges()
    wrong = graph.backward[edges[:, 0]] & ~graph.backward[edges[:, 1]]
    if wrong.any():
        tail, head = edges[int(np.argmax(wrong))].tolist()
        raise PartitionError(
            "a backward node feeds a forward node",
            where=where,
            got=f"{graph.names[tail]} -> {graph.names[head]}",
        )


def _get(data: dict[str, Any], name: str, where: str) -> Any:
    if name not in data:
        raise PartitionError(f"the cost graph lacks '{name}'", where=where, got=", ".join(data))
    return data[name]


def _objects(data: dict[str, Any], name: str, where: str) -> list[dict[str, Any]]:
    found = _get(data, name, where)
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise PartitionError(f"'{name}' must be a list of objects", where=where)
    return found


def _id(data: dict[str, Any], name: str, where: str) -> int | str:
    found = _get(data, name, where)
    if not isinstance(found, int | str):
        raise PartitionError(f"'{name}' must be an integer", where=where, got=found)
    return found


def _number(data: dict[str, Any], name: str, where: str, default: float | None = None) -> float:
    found = _get(data, name, where) if default is None else data.get(name, default)
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise PartitionError(f"'{name}' must be a number", where=where, got=repr(found))
    if not found >= 0:
        raise PartitionError(f"'{name}' must be >= 0", where=where, got=found)
    return inf if found > MOST else float(found)


def _flag(data: dict[str, Any], name: str, where: str) -> bool:
    found = _get(data, name, where)
    if found not in (0, 1):
        raise PartitionError(f"'{name}' must be true, false, 0 or 1", where=where, got=repr(found))
    return bool(found)


def _count(data: dict[str, Any], name: str, where: str) -> int:
    found = _number(data, name, where)
    if found == inf or found != int(found):
        raise PartitionError(f"'{name}' must be a whole number", where=where, got=found)
    return int(found)
