"""The JSON workloads of Tarnawski et al., NeurIPS'20; "FPGA" means accelerator there."""

import json
from collections import Counter
from math import inf
from typing import Annotated

import numpy as np
from msgspec import Meta, Struct, convert, field

from pipec.errors import PartitionError
from pipec.partition.costgraph import CostGraph, Value, cost_graph
from pipec.partition.formats.workload import ACCELERATOR, CPU, Workload

Amount = Annotated[float, Meta(ge=0)]
Flag = bool | Annotated[int, Meta(ge=0, le=1)]
Count = Annotated[int, Meta(ge=0)]


class _Node(Struct, rename="camel"):
    id: int | str
    supported_on_fpga: Flag
    fpga_latency: Amount
    cpu_latency: Amount
    is_backward_node: Flag
    size: Amount = 0.0
    color_class: int | str | None = None


class _Edge(Struct, rename="camel"):
    source_id: int | str
    dest_id: int | str
    cost: Amount


class _File(Struct):
    nodes: list[_Node]
    edges: list[_Edge]
    accelerators: Count = field(name="maxFPGAs")
    cpus: Count = field(name="maxCPUs")
    memory_bytes: Amount = field(name="maxSizePerFPGA", default=inf)


def parse_dnn_json(text: str, where: str) -> Workload:
    """Reads one workload; unknown fields are ignored.

    Args:
        text: The file.
        where: Name of the file, for messages.

    Raises:
        PartitionError: What is missing, of the wrong type, or contradictory.
    """
    try:
        file = convert(json.loads(text), _File)
    except RecursionError as error:
        raise PartitionError("the cost graph is nested too deeply", where=where) from error
    except json.JSONDecodeError as error:
        raise PartitionError(
            "the cost graph is not complete JSON",
            where=f"{where}, line {error.lineno}, column {error.colno}",
            got=error.msg,
        ) from error
    except ValueError as error:  # of its schema, or a number too long to be read
        raise PartitionError("the cost graph is malformed", where=where, got=error) from error
    index = {node.id: number for number, node in enumerate(file.nodes)}
    names = Counter(str(node.id) for node in file.nodes)  # 1 and "1" would have one in the result
    if twice := [name for name, times in names.items() if times > 1]:
        raise PartitionError("two nodes have the same id", where=where, got=twice[0])
    graph = _graph(file.nodes, _values(file.edges, index, where))
    _check_direction(graph, where)
    return Workload(
        graph,
        priced=True,
        accelerators=file.accelerators,
        cpus=file.cpus,
        memory_bytes=file.memory_bytes,
    )


def _graph(nodes: list[_Node], values: list[Value]) -> CostGraph:
    colours: dict[int | str, int] = {}
    return cost_graph(
        [str(n.id) for n in nodes],
        {
            ACCELERATOR: [n.fpga_latency if n.supported_on_fpga else inf for n in nodes],
            CPU: [n.cpu_latency for n in nodes],
        },
        values,
        weight_bytes=[n.size for n in nodes],
        group=[
            -1 if n.color_class is None else colours.setdefault(n.color_class, len(colours))
            for n in nodes
        ],
        backward=[bool(n.is_backward_node) for n in nodes],
    )


def _values(edges: list[_Edge], index: dict[int | str, int], where: str) -> list[Value]:
    """One value per producer; all its edges must agree on the cost."""
    consumers: dict[int, list[int]] = {}
    cost: dict[int, float] = {}
    for number, edge in enumerate(edges):
        for end in (edge.source_id, edge.dest_id):
            if end not in index:
                place = f"{where}, edges[{number}]"
                raise PartitionError("an edge needs a node that is not there", where=place, got=end)
        source = index[edge.source_id]
        if abs(cost.setdefault(source, edge.cost) - edge.cost) > 1e-6:
            raise PartitionError(
                "edges of one producer have different costs",
                where=f"{where}, node {edge.source_id}",
                got=f"{cost[source]} and {edge.cost}",
                want="the time to move its output, the same on every edge",
            )
        consumers.setdefault(source, []).append(index[edge.dest_id])
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
