"""A graph and its costs as the placement problem that every cut solves."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from weakref import WeakKeyDictionary

import numpy as np
from torch import fx

from pipec.cluster.cluster import Cluster, Link
from pipec.cost.table import CostTable
from pipec.graph.ir import Graph, OutputKind, nbytes, tensors
from pipec.graph.units import placement_units
from pipec.partition.costgraph import CostGraph, FloatArray, Value, cost_graph
from pipec.partition.devices import Device

TRAINING_COPIES = 4.0
"""Weight-sized tensors in training: weights, gradients, two moments of Adam."""

_known: WeakKeyDictionary[fx.GraphModule, tuple[CostTable, float, CostGraph]] = WeakKeyDictionary()


def build_problem(graph: Graph, costs: CostTable, *, copies: float = TRAINING_COPIES) -> CostGraph:
    """The graph as arrays; training counts backward work, gradients, and optimizer state.

    ``costs`` are of one microbatch; in training each weight counts ``copies`` times.
    """
    known = _known.get(graph.module)
    if known is None or known[0] is not costs or known[1] != copies:
        _known[graph.module] = known = costs, copies, _problem(graph, costs, copies)
    return known[2]


def _problem(graph: Graph, costs: CostTable, copies: float) -> CostGraph:
    training = bool(graph.outputs_of(OutputKind.LOSS))
    calls = graph.calls
    at = {n.name: k for k, n in enumerate(calls)}
    units = placement_units(graph)
    values = []
    for n in calls:
        readers = [at[u.name] for u in n.users if u.op == "call_function"]
        size = nbytes(n) if readers else 0
        floating = any(t.is_floating_point() for t in tensors(n))
        gradient = size if training and floating else 0
        values.append(Value(at[n.name], readers, bytes=size, gradient_bytes=gradient))
    return cost_graph(
        [n.name for n in calls],
        {kind: _work(graph, costs, kind, training=training) for kind in costs.seconds},
        values,
        weight_bytes=_weight_bytes(graph, at, copies if training else 1.0),
        activation_bytes=[costs.nodes[n.name].output_bytes if training else 0 for n in calls],
        group=[units[n.name] for n in calls],
    )


def _work(graph: Graph, costs: CostTable, kind: str, *, training: bool) -> FloatArray:
    row = costs.of(kind)
    forward = np.array([row[n.name] for n in graph.calls])
    if not training:
        return forward
    backward = costs.backward_of(kind)
    return forward + [backward[n.name] for n in graph.calls]


def share_work(problem: CostGraph, kinds: Sequence[Sequence[str]]) -> tuple[CostGraph, list[str]]:
    """The problem with device classes for stages that several devices share as replicas.

    Args:
        problem: With one class per kind of device.
        kinds: The kinds of devices of every stage, one per replica.

    Returns:
        The problem with a class per (kinds, replicas), in which r replicas take an r-th of the
        slowest one's seconds, and the class of every stage.
    """
    names, rows = dict[str, int](), list[np.ndarray]()
    found = []
    for stage in kinds:
        replicas = len(stage)
        name = ",".join(sorted(set(stage))) + (f" x{replicas}" if replicas > 1 else "")
        if name not in names:
            names[name] = len(rows)
            each = [problem.work[problem.classes.index(kind)] for kind in set(stage)]
            rows.append(np.max(each, axis=0) / replicas)
        found.append(name)
    return replace(problem, classes=tuple(names), work=np.stack(rows)), found


def _weight_bytes(graph: Graph, at: dict[str, int], copies: float) -> list[float]:
    """Bytes of weights per node; a weight counts at its first reader."""
    found = [0.0] * len(at)
    nodes = graph.nodes
    for i in graph.inputs:
        if i.kind.is_weight:
            readers = [at[u.name] for u in nodes[i.node].users if u.name in at]
            if readers:
                found[min(readers)] += copies * nbytes(nodes[i.node])
    return found


def chain_of(cluster: Cluster, count: int) -> tuple[list[Device], list[Link]]:
    """The first devices of a cluster, one per stage, and what joins neighbours.

    Raises:
        ClusterError: The cluster has not so many.
    """
    found = [Device(d.kind, d.memory_bytes) for d in cluster.devices[:count]]
    return found, [cluster.link(a, b) for a, b in pairwise(range(count))]
