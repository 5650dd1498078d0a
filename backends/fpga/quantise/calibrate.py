"""What values do on sample inputs: their ranges, magnitudes and zeros."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, fx

from pipec.backends.fpga.lowering.decompose import decomposed
from pipec.backends.fpga.lowering.network import Network
from pipec.graph.ir import Graph, op_name

_SCORES = "_scores"
"""Suffix of the edge between the two products of an attention."""
HIDDEN = -1e4
"""Less than this is what an attention mask puts where it hides something."""
DEVIATION = "_deviation"
"""Suffix under which the spread of a normalisation's rows is noted."""


@dataclass(frozen=True)
class Seen:
    """What was seen of one value.

    Attributes:
        low: Least finite number; ``high`` the largest.
        square: Mean square.
        density: Share of numbers that are not zero.
        peak: The largest magnitude of a sample, of the sample where it is least.
        cut: Mean square of what lies outside of the limits that were given.
        samples: Tensors that were looked at.
    """

    low: float
    high: float
    square: float = 0.0
    density: float = 1.0
    peak: float = 0.0
    cut: float = 0.0
    samples: int = 1

    @property
    def largest(self) -> float:
        """The largest magnitude."""
        return max(abs(self.low), abs(self.high))

    def with_(self, other: "Seen") -> "Seen":
        """Both together."""
        n, m = self.samples, other.samples
        return Seen(
            min(self.low, other.low),
            max(self.high, other.high),
            (n * self.square + m * other.square) / (n + m),
            (n * self.density + m * other.density) / (n + m),
            min(self.peak, other.peak),
            (n * self.cut + m * other.cut) / (n + m),
            n + m,
        )


def observed(
    graphs: Sequence[Graph],
    samples: Sequence[Mapping[str, Tensor]],
    limits: Sequence[Mapping[str, tuple[float, float]]] | None = None,
) -> list[dict[str, Seen]]:
    """What was seen of every floating-point node of every stage, over all samples.

    What an attention mask hides (below `HIDDEN`) is not looked at.

    Args:
        graphs: Compute graphs of the stages in order, with weights.
        samples: The model's inputs by name, at least one set.
        limits: Per stage, node name to the least and the largest number that will be held.

    Returns:
        Node name to what was seen, per stage.
    """
    graphs = [decomposed(graph) for graph in graphs]
    found: list[dict[str, Seen]] = [{} for _ in graphs]
    within = [{} for _ in graphs] if limits is None else limits
    for sample in samples:
        known = dict(sample)
        for graph, seen, ends in zip(graphs, found, within, strict=True):
            arguments = [
                graph.weights[i.name] if i.kind.is_weight else known[i.name] for i in graph.inputs
            ]
            with torch.no_grad():
                weights = frozenset(i.node for i in graph.inputs if i.kind.is_weight)
                results = _Watch(graph.module, seen, ends, weights).run(*arguments)
            known |= {o.name: v for o, v in zip(graph.outputs, results, strict=True)}
    return found


class _Watch(fx.Interpreter):
    """Runs a graph and notes what it sees."""

    def __init__(
        self,
        module: fx.GraphModule,
        seen: dict[str, Seen],
        limits: Mapping[str, tuple[float, float]],
        weights: frozenset[str],
    ) -> None:
        super().__init__(module)
        self._seen, self._limits, self._weights = seen, limits, weights

    def run_node(self, n: fx.Node) -> Any:
        """Run a node and note its result."""
        result = super().run_node(n)
        if isinstance(result, Tensor) and n.name not in self._weights:
            self._note(n.name, result)
        if op_name(n) == "aten.scaled_dot_product_attention.default":
            q, k = (cast("Tensor", self.env[cast("fx.Node", a)]) for a in n.args[:2])
            scale = cast("float | None", n.kwargs.get("scale")) or q.shape[-1] ** -0.5
            self._note(n.name + _SCORES, q @ k.transpose(-1, -2) * scale)
        if op_name(n) in ("aten.layer_norm.default", "aten.native_layer_norm.default"):
            x = cast("Tensor", self.env[cast("fx.Node", n.args[0])])
            axes = len(cast("list[int]", n.args[1]))
            rows = x.flatten(x.dim() - axes)
            self._note(n.name + DEVIATION, rows.std(-1, correction=0))
        return result

    def _note(self, name: str, value: Tensor) -> None:
        if not value.dtype.is_floating_point or value.numel() == 0:
            return
        flat = value.float().reshape(-1)
        low, high = (float(end) for end in flat.aminmax())
        if not (low > HIDDEN and high < math.inf):  # also where one is no number
            flat = flat[flat.isfinite() & (flat > HIDDEN)]
            if flat.numel() == 0:
                return
            low, high = (float(end) for end in flat.aminmax())
        least, most = self._limits.get(name, (low, high))
        cut = 0.0
        if low < least or high > most:
            cut = float((flat - flat.clamp(least, most)).square().mean())
        seen = Seen(
            low,
            high,
            float(flat.dot(flat)) / flat.numel(),
            int(flat.count_nonzero()) / flat.numel(),
            max(abs(low), abs(high)),
            cut,
        )
        before = self._seen.get(name)
        self._seen[name] = seen if before is None else before.with_(seen)


def on_edges(network: Network, nodes: Mapping[str, Seen]) -> dict[str, Seen]:
    """What was seen by edge instead of by node.

    Args:
        network: What was lowered.
        nodes: What was seen of every node of its graph.
    """
    return dict(_on_edges(network, nodes))


def _on_edges(network: Network, nodes: Mapping[str, Seen]) -> Iterator[tuple[str, Seen]]:
    for edge, node in network.nodes.items():
        if node in nodes:
            yield edge, nodes[node]
    for layer in network.layers:
        if layer.name in nodes and layer.name.endswith(_SCORES):
            yield layer.name, nodes[layer.name]
        if layer.node + DEVIATION in nodes:
            yield layer.name + DEVIATION, nodes[layer.node + DEVIATION]
