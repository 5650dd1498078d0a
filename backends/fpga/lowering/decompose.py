"""Composite ops that no engine computes, as torch itself takes them apart.

A recurrent cell becomes its matrix products and gates, ``hardswish`` its multiplication, and so on
(the tables of `torch.export.default_decompositions`). What is taken apart keeps its name: the last
node of the replacement is called what the op was called, the others behind it.
"""

from collections.abc import Callable
from functools import cache
from operator import getitem
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from pipec.autodiff.fakes import fake_like, tracing
from pipec.autodiff.tidy import views_to_reshape
from pipec.backends.fpga.lowering.constants import Constants
from pipec.backends.fpga.lowering.network import HANDLERS
from pipec.backends.fpga.lowering.rewrite import Emit, rewritten
from pipec.backends.fpga.lowering.written import gathered
from pipec.graph.ir import Graph, op_name
from pipec.graph.torch_private import OpOverload

WHOLE = ("conv_transpose", "scaled_dot_product_attention")
"""Ops whose decomposition leads to nothing that an engine computes; better named in the error."""


@cache
def _table() -> dict[Any, Callable[..., Any]]:
    return dict(torch.export.default_decompositions())


def _is_composite(node: fx.Node) -> bool:
    if not isinstance(node.target, OpOverload) or op_name(node) in HANDLERS:
        return False
    return node.target in _table() and not any(word in op_name(node) for word in WHOLE)


def decomposed(graph: Graph, precision: str) -> Graph:
    """The graph with what models write out, and composite ops without a handler, replaced.

    Args:
        graph: A stage's compute graph; node names, inputs and outputs stay what they are.
        precision: Element type.
    """
    graph = gathered(graph, precision)
    constants = Constants(graph)
    found = {op_name(n): _apart for n in graph.calls if n not in constants and _is_composite(n)}
    return decomposed(rewritten(graph, found), precision) if found else graph


def _apart(emit: Emit, *_: object) -> Any:
    """The ops of which a node consists; the last one takes its name."""
    sources = emit.old.all_input_nodes
    found = _Ops(_traced(emit.old), emit).run(*map(emit.value, sources))
    return emit.named(found) if isinstance(found, torch.Tensor) else tuple(found)


class _Ops(fx.Interpreter):
    """Appends the nodes of a graph to one that grows."""

    def __init__(self, graph: fx.Graph, emit: Emit) -> None:
        super().__init__(torch.nn.Module(), graph=graph)
        self._emit = emit

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """An op as one node, and its results."""
        return target(*args) if target is getitem else self._emit.whole(target, *args, **kwargs)


def _traced(node: fx.Node) -> fx.Graph:
    """What an op consists of, one placeholder per node among its arguments."""
    sources = node.all_input_nodes
    position = {source: k for k, source in enumerate(sources)}
    target: Any = node.target

    def call(*values: torch.Tensor) -> Any:
        """The op on values in place of its argument nodes."""
        args, kwargs = fx.node.map_arg(
            (node.args, node.kwargs), lambda source: values[position[source]]
        )
        return target(*args, **kwargs)

    with tracing() as mode, torch.no_grad():
        fakes = [fake_like(source.meta["val"], mode) for source in sources]
        table = {target: _table()[target]}
        traced = make_fx(call, table, tracing_mode="real", pre_dispatch=True)(*fakes)
    for part in traced.graph.nodes:
        _without_mutation(part)
    views_to_reshape(traced.graph)
    traced.graph.eliminate_dead_code()
    return traced.graph


def _without_mutation(node: fx.Node) -> None:
    """``add_`` becomes ``add`` where nobody else reads what it overwrites."""
    name, _, overload = op_name(node).removeprefix("aten.").partition(".")
    if not name.endswith("_") or len(node.all_input_nodes[0].users) != 1:
        return
    packet = getattr(torch.ops.aten, name.removesuffix("_"), None)
    node.target = getattr(packet, overload, node.target)
