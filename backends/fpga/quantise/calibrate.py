"""The ranges that values take on sample inputs."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, fx

from pipec.backends.fpga.lowering.decompose import decomposed
from pipec.backends.fpga.lowering.network import Network
from pipec.backends.fpga.quantise.formats import Range
from pipec.graph.ir import Graph, op_name

_SCORES = "_scores"
"""Suffix of the edge between the two products of an attention."""


def observed(
    graphs: Sequence[Graph], samples: Sequence[Mapping[str, Tensor]]
) -> list[dict[str, Range]]:
    """Least and largest finite value of every node of every stage, over all samples.

    Args:
        graphs: Compute graphs of the stages in order, with weights.
        samples: The model's inputs by name, at least one set.

    Returns:
        Node name to range, per stage.
    """
    graphs = [decomposed(graph) for graph in graphs]
    found: list[dict[str, Range]] = [{} for _ in graphs]
    for sample in samples:
        known = dict(sample)
        for graph, ranges in zip(graphs, found, strict=True):
            arguments = [
                graph.weights[i.name] if i.kind.is_weight else known[i.name] for i in graph.inputs
            ]
            with torch.no_grad():
                results = _Watch(graph.module, ranges).run(*arguments)
            known |= {o.name: v for o, v in zip(graph.outputs, results, strict=True)}
    return found


class _Watch(fx.Interpreter):
    """Runs a graph and widens ranges by what it sees."""

    def __init__(self, module: fx.GraphModule, ranges: dict[str, Range]) -> None:
        super().__init__(module)
        self._ranges = ranges

    def run_node(self, n: fx.Node) -> Any:
        """Run a node and note the range of its result."""
        result = super().run_node(n)
        if isinstance(result, Tensor):
            self._note(n.name, result)
        if op_name(n) == "aten.scaled_dot_product_attention.default":
            q, k = (cast("Tensor", self.env[cast("fx.Node", a)]) for a in n.args[:2])
            scale = cast("float | None", n.kwargs.get("scale")) or q.shape[-1] ** -0.5
            self._note(n.name + _SCORES, q @ k.transpose(-1, -2) * scale)
        return result

    def _note(self, name: str, value: Tensor) -> None:
        if not value.dtype.is_floating_point:
            return
        value = value[value.isfinite()]
        if value.numel() == 0:
            return
        low, high = float(value.min()), float(value.max())
        before = self._ranges.get(name, (low, high))
        self._ranges[name] = (min(low, before[0]), max(high, before[1]))


def on_edges(network: Network, nodes: Mapping[str, Range]) -> dict[str, Range]:
    """Ranges by edge instead of by node.

    Args:
        network: What was lowered.
        nodes: Range of every node of its graph.
    """
    return dict(_on_edges(network, nodes))


def _on_edges(network: Network, nodes: Mapping[str, Range]) -> Iterator[tuple[str, Range]]:
    for edge, node in network.nodes.items():
        if node in nodes:
            yield edge, nodes[node]
    for layer in network.layers:
        if layer.name in nodes and layer.name.endswith(_SCORES):
            yield layer.name, nodes[layer.name]
