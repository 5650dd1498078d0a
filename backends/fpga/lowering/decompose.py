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
from torch.fx.experimental.proxy_tensor import make_fx

from pipec.autodiff.fakes import fake_like, tracing
from pipec.autodiff.tidy import views_to_reshape
from pipec.backends.fpga.lowering.network import HANDLERS
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


def decomposed(graph: Graph) -> Graph:
    """The graph with composite ops without a handler replaced; itself if there are none.

    Args:
        graph: A stage's compute graph; node names, inputs and outputs stay what they are.
    """
    found = [n for n in graph.module.graph.nodes if _is_composite(n)]
    if not found:
        return graph
    copy = fx.Graph()
    known: dict[fx.Node, fx.Node] = {}
    copy.output(copy.graph_copy(graph.module.graph, known))
    end = next(iter(reversed(copy.nodes)))
    for old, new in known.items():
        new.meta = dict(old.meta)
    end.meta = dict(next(iter(reversed(graph.module.graph.nodes))).meta)
    for node in found:
        _replace(copy, known[node])
    copy.eliminate_dead_code()
    return decomposed(graph.replace(module=fx.GraphModule(graph.module, copy)))


def _replace(graph: fx.Graph, node: fx.Node) -> None:
    """Put what an op consists of in its place."""
    inner = _traced(node)
    name, known = node.name, dict(zip(_placeholders(inner), node.all_input_nodes, strict=True))
    node.name = f"{name}_whole"  # its name becomes free for the last node of the replacement
    results: Any = None
    with graph.inserting_before(node):
        for k, part in enumerate(inner.nodes):
            if part.op == "output":
                results = fx.node.map_arg(part.args[0], known.__getitem__)
            elif part.op != "placeholder":
                known[part] = graph.node_copy(part, known.__getitem__)
                known[part].name = f"{name}_{k}_{_word(part)}"
                known[part].meta = {"origin": node.meta.get("origin")}
                if "val" in part.meta:  # an op of several results has none, its items have
                    known[part].meta["val"] = part.meta["val"]
    if isinstance(results, fx.Node):
        node.replace_all_uses_with(results)
        results.name = name
    else:
        _select(graph, node, results)
    graph.erase_node(node)


def _select(graph: fx.Graph, node: fx.Node, results: Any) -> None:
    """Readers of a tuple's items read the items."""
    for user in list(node.users):
        item = results[user.args[1]]
        name = user.name
        user.replace_all_uses_with(item)
        graph.erase_node(user)
        item.name = name


def _word(node: fx.Node) -> str:
    """The op in one word, for a name: ``add`` of ``aten.add_.Tensor``."""
    return op_name(node).removeprefix("aten.").partition(".")[0].strip("_")


def _placeholders(graph: fx.Graph) -> list[fx.Node]:
    return [n for n in graph.nodes if n.op == "placeholder"]


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
