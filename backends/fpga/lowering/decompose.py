"""Composite ops that no engine computes, as torch itself takes them apart.

A recurrent cell becomes its matrix products and gates, ``hardswish`` its multiplication, and so on
(the tables of `torch.export.default_decompositions`). What is taken apart keeps its name: the last
node of the replacement is called what the op was called, the others behind it.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import fx
from torch.overrides import TorchFunctionMode

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


class _WholeProducts(TorchFunctionMode):
    """Keeps linear layers in one node, which torch would take apart by the strides of its input."""

    def __init__(self, emit: Emit) -> None:
        super().__init__()
        self._emit = emit

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """A call of a function of torch."""
        if func is torch.nn.functional.linear:
            return self._emit.whole(torch.ops.aten.linear.default, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _apart(emit: Emit, *args: Any) -> Any:
    """The ops of which a node consists; the last one takes its name."""
    own = [list(a) if isinstance(a, list) else a for a in args]  # which some change
    given = fx.node.map_arg(emit.old.kwargs, emit.value)
    with _WholeProducts(emit):
        found = _table()[emit.old.target](*own, **given)
    return emit.named(found) if isinstance(found, torch.Tensor) else tuple(found)
