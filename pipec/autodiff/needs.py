"""Which values of a model depend on a trained parameter, asked of autograd itself."""

from collections.abc import Collection
from typing import Any

import torch
from torch import fx

from pipec.autodiff.fakes import fake_inputs, tracing
from pipec.graph.ir import Graph, InputKind


def trainable(graph: Graph, frozen: Collection[str] = ()) -> frozenset[str]:
    """Names of the parameters that can get a gradient: floating point, and not ``frozen``."""
    nodes = graph.nodes
    return frozenset(
        i.name
        for i in graph.inputs_of(InputKind.PARAMETER)
        if i.name not in frozen and nodes[i.node].meta["val"].is_floating_point()
    )


def needs_grad(graph: Graph, frozen: Collection[str] = ()) -> frozenset[str]:
    """Nodes whose value needs a gradient, found by running the whole graph on fake tensors.

    Args:
        graph: The whole model; a part of it would not know what its received values depend on.
        frozen: Parameters that are not trained.

    Returns:
        Names of parameters' placeholders and of call nodes; of a tuple, its items are listed.
    """
    wanted = trainable(graph, frozen)
    with tracing() as mode, torch.enable_grad():
        inputs = [
            t.requires_grad_() if i.name in wanted and i.kind is InputKind.PARAMETER else t
            for i, t in zip(graph.inputs, fake_inputs(graph, mode), strict=True)
        ]
        watch = _Watch(graph.module)
        watch.run(*inputs)
    return frozenset(watch.found)


class _Watch(fx.Interpreter):
    """Notes which nodes yield a tensor that autograd tracks."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.found: set[str] = set()

    def run_node(self, n: fx.Node) -> Any:
        """Run a node and note what its gradient needs."""
        result = super().run_node(n)
        if isinstance(result, torch.Tensor) and result.requires_grad:
            self.found.add(n.name)
        return result
