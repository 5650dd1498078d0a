"""A model as exploration sees it: its costs at any microbatch size."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from torch import fx

from pipec.autodiff.differentiate import differentiate
from pipec.cluster.cluster import Cluster
from pipec.compiler.problem import forward_work, placement_problem
from pipec.compiler.stage_timing import holder, peak_of
from pipec.cost.model import Roofline
from pipec.cost.table import CostTable, NodeCost
from pipec.errors import PlanError
from pipec.graph.ir import Graph, InputKind, OutputKind, nbytes, tensors
from pipec.graph.split_node import split_node
from pipec.partition.costgraph import CostGraph, FloatArray
from pipec.passes.split_layer import split_costs


@dataclass(frozen=True)
class Workload:
    """One graph with its costs, traced at one batch size.

    Attributes:
        graph: The model; with its loss if it is trained.
        costs: At the traced batch size.
        cluster: The devices.
        traced_batch: Samples in the traced inputs.
        saved: Bytes of what the backward needs of the traced batch, by the call that makes it.
    """

    graph: Graph
    costs: CostTable
    cluster: Cluster
    traced_batch: int
    saved: Mapping[str, int]
    _problems: dict[tuple[int, bool], CostGraph] = field(default_factory=dict, compare=False)
    _forward: dict[int, FloatArray] = field(default_factory=dict, compare=False)

    @property
    def trains(self) -> bool:
        """Whether the model has a loss, so that there is a backward pass."""
        return bool(self.graph.outputs_of(OutputKind.LOSS))

    def forward_bytes(
        self, stage: Sequence[int], stages: int, samples: int
    ) -> tuple[list[float], list[float]]:
        """What a forward of every stage holds of its own, given the stage of every call.

        Returns:
            Most bytes of values alive while it runs, the model's inputs with them; bytes of the
            model's outputs that it leaves.
        """
        at = {n.name: s for n, s in zip(self.graph.calls, stage, strict=True)}
        inputs = {i.node for i in self.graph.inputs_of(InputKind.INPUT)}
        given: list[dict[str, fx.Node]] = [{} for _ in range(stages)]
        rows: list[list[fx.Node]] = [[] for _ in range(stages)]
        leave: list[set[str]] = [set() for _ in range(stages)]
        for n in self.graph.calls:
            s = at[n.name]
            rows[s].append(n)
            for read in n.all_input_nodes:
                if read.name in inputs:
                    given[s][read.name] = read
                elif at.get(read.name, s) != s:
                    leave[at[read.name]].add(read.name)
        left = [0.0] * stages
        for o in self.graph.outputs_of(OutputKind.OUTPUT):
            if o.node in at:
                leave[at[o.node]].add(o.node)
                left[at[o.node]] += nbytes(holder(self.graph.node(o.node)))
        live = []
        for first, row, out in zip(given, rows, leave, strict=True):
            order = [*first.values(), *row]
            live.append(peak_of(order, out, {n.name for n in order})[0])
        share = samples / self.traced_batch
        return [peak * share for peak in live], [size * share for size in left]

    def problem(self, samples: int, *, recompute: bool) -> CostGraph:
        """The placement problem for microbatches of ``samples``.

        Bytes and FLOPs of activations grow with the samples, those of weights do not; seconds
        follow by the roofline, or in proportion where they were measured or modelled otherwise.
        Recompute adds one forward to the backward and keeps nothing between the two but the
        stage's input (which the cut knows as crossing bytes).
        """
        key = (samples, recompute)
        if key not in self._problems:
            ratio = samples / self.traced_batch
            problem = placement_problem(self.graph, self.scaled(ratio))
            held = [ratio * self.saved.get(name, 0) for name in problem.names]
            problem = replace(problem, activation_bytes=np.array(held))
            if recompute:
                problem = replace(problem, work=problem.work + self.forward(samples))
            self._problems[key] = problem
        return self._problems[key]

    def forward(self, samples: int) -> FloatArray:
        """Forward seconds of microbatches of ``samples``, [kinds of devices, calls]."""
        if samples not in self._forward:
            costs = self.scaled(samples / self.traced_batch)
            rows = [forward_work(self.graph, costs, kind) for kind in costs.seconds]
            self._forward[samples] = np.stack(rows)
        return self._forward[samples]

    def split(self, node: str, share: float) -> "Workload":
        """The same model with one layer in two halves; see `pipec.graph.split_node`.

        Raises:
            GraphError: The node cannot be split.
        """
        graph = split_node(self.graph, node, share)
        costs = split_costs(self.costs, graph, node, Roofline(), self.cluster)
        new = [n.name for n in graph.calls if n.name not in self.saved]
        known = {n.name for n in graph.calls}
        gone = sum(size for name, size in self.saved.items() if name not in known)
        saved = {**self.saved, **dict.fromkeys(new, 0), new[-1]: gone}
        return Workload(graph, costs, self.cluster, self.traced_batch, saved)

    @cached_property
    def shared_weights(self) -> list[tuple[int, list[int]]]:
        """Bytes and reading calls (their indices) of every weight that several calls read."""
        nodes, at = self.graph.nodes, {n: k for k, n in enumerate(self.graph.calls)}
        found = []
        for i in self.graph.inputs_of(InputKind.PARAMETER):
            readers = [at[u] for u in nodes[i.node].users if u in at]
            if len(readers) > 1:
                found.append((nbytes(nodes[i.node]), readers))
        return found

    def scaled(self, ratio: float) -> CostTable:
        """The costs of ``ratio`` times as many samples."""
        nodes = {name: _scaled(cost, ratio) for name, cost in self.costs.nodes.items()}
        seconds = {kind: self._seconds(kind, nodes, ratio) for kind in self.costs.seconds}
        backward = {
            kind: {name: s * ratio for name, s in row.items()}
            for kind, row in self.costs.backward.items()
        }
        return CostTable(nodes, seconds, self.costs.method, backward=backward)

    def _seconds(
        self, kind: str, nodes: Mapping[str, NodeCost], ratio: float
    ) -> Mapping[str, float]:
        row = self.costs.of(kind)
        if self.costs.method[kind] != Roofline.name:
            return {name: s * ratio for name, s in row.items()}
        device = next(d for d in self.cluster.devices if d.kind == kind)
        model = Roofline()
        return {n.name: model.seconds(n, nodes[n.name], device) for n in self.graph.calls}


def _scaled(cost: NodeCost, ratio: float) -> NodeCost:
    data = cost.bytes_read - cost.parameter_bytes
    return replace(
        cost,
        flops=cost.flops * ratio,
        bytes_read=int(data * ratio) + cost.parameter_bytes,
        bytes_written=int(cost.bytes_written * ratio),
        output_bytes=int(cost.output_bytes * ratio),
    )


def make_workload(graph: Graph, costs: CostTable, cluster: Cluster) -> Workload:
    """A workload whose batch is the first dimension of the first input.

    Raises:
        PlanError: The first input has no dimension.
    """
    saved = saved_bytes(graph) if graph.outputs_of(OutputKind.LOSS) else {}
    return Workload(graph, costs, cluster, batch_of(graph), saved)


def saved_bytes(graph: Graph) -> dict[str, int]:
    """Bytes that the backward of the whole model needs, by the call of the model that makes them.

    What a call is decomposed into counts with it.

    Raises:
        GraphError: It cannot be differentiated.
    """
    training = differentiate(graph, [graph])[0]
    sizes = {v.name: v.nbytes for v in training.saved}
    found = {n.name: 0 for n in graph.calls}
    at = graph.calls[-1].name
    for name in reversed(list(training.F.nodes)):
        at = name if name in found else at
        found[at] += sizes.get(name, 0)
    return found


def batch_of(graph: Graph) -> int:
    """Samples of the traced inputs: the first dimension of the first input.

    Raises:
        PlanError: The first input has no dimension.
    """
    first = graph.inputs_of(InputKind.INPUT)
    shape = tensors(graph.nodes[first[0].node])[0].shape if first else ()
    if not shape:
        raise PlanError("the first input has no batch dimension", got=list(shape))
    return int(shape[0])
