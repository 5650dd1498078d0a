"""Running a graph on tensors by name."""

from collections.abc import Mapping

from torch import Tensor

from pipec.graph.ir import Graph


def run(graph: Graph, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Output name to value; weights are the graph's own."""
    values = [graph.weights[i.name] if i.kind.is_weight else inputs[i.name] for i in graph.inputs]
    results = graph.module(*values)
    return {o.name: v for o, v in zip(graph.outputs, results, strict=True)}
