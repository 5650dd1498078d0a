"""Which values of a model depend on a trained parameter, asked of autograd itself."""

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import fx, nn

from pipec.autodiff.fakes import fake_inputs, tracing
from pipec.errors import GraphError
from pipec.graph.ir import Graph, InputKind, origin
from pipec.graph.structure import structural_key

_known = WeakKeyDictionary[fx.GraphModule, dict[object, frozenset[str]]]()


def trainable(graph: Graph) -> frozenset[str]:
    """Names of the parameters that are trained: real or complex, not ``requires_grad=False``."""
    weights = {i.name: graph.weights[i.name] for i in graph.inputs_of(InputKind.PARAMETER)}
    free = {n: w for n, w in weights.items() if w.requires_grad or not isinstance(w, nn.Parameter)}
    return frozenset(n for n, w in free.items() if w.is_floating_point() or w.is_complex())


def needs_grad(graph: Graph) -> frozenset[str]:
    """Nodes whose value needs a gradient, found by running the whole graph on fake tensors.

    Args:
        graph: The whole model; a part of it would not know what its received values depend on.

    Returns:
        Names of parameters' placeholders and of call nodes; of a tuple, its items are listed.
    """
    trained, known = trainable(graph), _known.setdefault(graph.module, {})
    wanted = frozenset(i.node for i in graph.inputs_of(InputKind.PARAMETER) if i.name in trained)
    # a pass may have changed the graph in place
    same = wanted, structural_key(graph), tuple(n.name for n in graph.calls)
    if same not in known:
        with tracing() as mode, torch.enable_grad():
            inputs = [
                t.requires_grad_() if i.node in wanted else t
                for i, t in zip(graph.inputs, fake_inputs(graph, mode), strict=True)
            ]
            watch = _Watch(graph.module)
            watch.run(*inputs)
        known[same] = frozenset(watch.found)
    return known[same]


class _Watch(fx.Interpreter):
    """Notes which nodes yield a tensor that autograd tracks."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.found: set[str] = set()

    def run_node(self, n: fx.Node) -> Any:
        try:
            result = super().run_node(n)
        except RuntimeError as error:
            raise GraphError(
                "the model cannot be differentiated", where=f"{n.name}: {origin(n)}", got=error
            ) from None
        if isinstance(result, torch.Tensor) and result.requires_grad:
            self.found.add(n.name)
        return result
