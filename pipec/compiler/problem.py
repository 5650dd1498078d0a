"""A graph and its costs as the placement problem that every cut solves."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from weakref import WeakKeyDictionary

import numpy as np
from torch import fx

from pipec.autodiff.needs import needs_grad
from pipec.cluster.cluster import Cluster, Link
from pipec.compiler.backend import load_backend
from pipec.compiler.capabilities import Keeps
from pipec.cost.table import CostTable
from pipec.errors import PartitionError
from pipec.graph.ir import Graph, GraphInput, InputKind, OutputKind, nbytes, tensors
from pipec.graph.units import placement_units
from pipec.partition.costgraph import CostGraph, FloatArray, Value, cost_graph
from pipec.partition.devices import Device
from pipec.plan.model import Plan
from pipec.schedule.schedule import Schedule

TRAINING_COPIES = 4.0
"""Weight-sized tensors in training: weights, gradients, two moments of Adam."""

_known = WeakKeyDictionary[fx.GraphModule, dict[object, tuple[CostTable, CostGraph]]]()


def build_problem(
    plan: Plan, order: Schedule | None = None, *, copies: float = TRAINING_COPIES
) -> CostGraph:
    """A plan's graph as arrays; training counts backward work, gradients, and optimizer state.

    Args:
        plan: With costs, of one microbatch.
        order: The schedule, where it is known: what it keeps together is one unit.
        copies: How often each weight counts in training.
    """
    assert plan.costs is not None
    kept, known = keep_together(plan, order), _known.setdefault(plan.graph.module, {})
    key = (copies, *kept.items())
    if key not in known or known[key][0] is not plan.costs:
        known[key] = plan.costs, _problem(plan.graph, plan.costs, copies, kept)
    return known[key][1]


def keep_together(plan: Plan, order: Schedule | None) -> dict[tuple[str, ...], str]:
    """Calls of a plan that one stage must have besides, and why, in words.

    1. What the target cannot compute apart.
    2. Without a flush, the readers of a weight that is trained: in each of two stages it would
       change at another time.
    """
    found, backend = dict[tuple[str, ...], str](), load_backend(plan.target)
    for calls in backend.keep_together(plan) if isinstance(backend, Keeps) else ():
        found[tuple(calls)] = f"the target {plan.target} computes {', '.join(calls)} on one device"
    if order is None or order.rule.flush or not plan.trains:
        return found
    needs = find_needs(plan.graph)
    for i, _, readers in list_weights(plan.graph):
        if i.kind is InputKind.PARAMETER and len(readers) > 1 and i.node in needs:
            why = f"{order.name} updates each stage at a time of its own, and {len(readers)} calls"
            found[tuple(readers)] = f"{why}, {readers[0]} to {readers[-1]}, read {i.name}"
    return found


def check_together(plan: Plan) -> None:
    """See that a cut keeps together what its target cannot compute apart, whoever made it.

    Raises:
        PartitionError: It does not.
    """
    for calls, why in keep_together(plan, plan.schedule).items():
        if len({plan.home[name] for name in calls}) > 1:
            raise PartitionError(
                "the cut parts what must stay in one stage",
                where=f"target {plan.target}",
                got=", ".join(f"{name} in stage {plan.home[name]}" for name in calls),
                want=why,
                hint="cut elsewhere, or leave the cut to the pass partition",
            )


def _problem(
    graph: Graph, costs: CostTable, copies: float, kept: Mapping[tuple[str, ...], str]
) -> CostGraph:
    training = bool(graph.outputs_of(OutputKind.LOSS))
    calls = graph.calls
    at = {n.name: k for k, n in enumerate(calls)}
    units = placement_units(graph, kept)
    values, held = list[Value](), [0.0] * len(calls)
    for n in calls:
        readers = [at[u.name] for u in n.users if u.op == "call_function"]
        size = nbytes(n) if readers else 0
        floating = any(t.is_floating_point() for t in tensors(n))
        gradient = size if training and floating else 0
        values.append(Value(at[n.name], readers, bytes=size, gradient_bytes=gradient))
    for _, node, names in list_weights(graph):
        if names:  # a weight counts at its first reader
            held[min(at[name] for name in names)] += (copies if training else 1) * nbytes(node)
    problem = cost_graph(
        [n.name for n in calls],
        {kind: _work(graph, costs, kind, training=training) for kind in costs.seconds},
        values,
        weight_bytes=held,
        activation_bytes=[costs.nodes[n.name].output_bytes if training else 0 for n in calls],
        group=[units[n.name] for n in calls],
    )
    return replace(problem, reasons=tuple(kept.values()))


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


def list_weights(graph: Graph) -> list[tuple[GraphInput, fx.Node, list[str]]]:
    """Every weight with its node and the calls that read it."""
    nodes = graph.nodes
    found = [(i, nodes[i.node]) for i in graph.inputs if i.kind.is_weight]
    return [(i, n, [u.name for u in n.users if u.op == "call_function"]) for i, n in found]


def find_needs(graph: Graph) -> frozenset[str]:
    """Nodes whose value needs a gradient (`pipec.autodiff.needs`); none without a loss."""
    return needs_grad(graph) if graph.outputs_of(OutputKind.LOSS) else frozenset()


def chain_of(cluster: Cluster, count: int) -> tuple[list[Device], list[Link]]:
    """The first devices of a cluster, one per stage, and what joins neighbours.

    Raises:
        ClusterError: The cluster has not so many.
    """
    found = [Device(d.kind, d.memory_bytes) for d in cluster.devices[:count]]
    return found, [cluster.link(a, b) for a, b in pairwise(range(count))]
