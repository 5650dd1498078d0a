"""Small exact rewrites of traced graphs: nothing here changes a value or its strides."""

import operator
from collections.abc import Collection
from typing import Any

import torch
from torch import fx

_aten = torch.ops.aten
_ALIASES = (_aten.detach.default, _aten.alias.default)
_VIEWS = (_aten.view.default, _aten._unsafe_view.default)
_MASK = 10
"""Position of ``output_mask`` in ``aten.convolution_backward``."""


def results(graph: fx.Graph) -> tuple[Any, ...]:
    """The elements of the one flat output tuple: nodes, and None for what does not exist."""
    found: Any = graph.output_node().args[0]
    return tuple(found)


def drop_aliases(graph: fx.Graph) -> None:
    """Remove ``detach`` and ``alias``: outside autograd they compute nothing."""
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target in _ALIASES:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def drop_double_transposes(graph: fx.Graph) -> None:
    """Let readers of ``t(t(x))`` read ``x``."""
    for node in graph.nodes:
        if node.target is _aten.t.default and node.args[0].target is _aten.t.default:
            node.replace_all_uses_with(node.args[0].args[0])


def views_to_reshape(graph: fx.Graph) -> None:
    """Make every ``view`` a ``reshape``, which is legal for any strides."""
    for node in graph.nodes:
        if node.op == "call_function" and node.target in _VIEWS:
            node.target = _aten.reshape.default


def separate_convolutions(graph: fx.Graph) -> None:
    """Take each backward of a convolution apart: the input's gradient, and the weights' gradient.

    As one node it could not be in both I and W.
    """
    for node in list(graph.nodes):
        if node.target is _aten.convolution_backward.default and node.args[_MASK][0]:
            _separate(graph, node, node.args[_MASK])


def _separate(graph: fx.Graph, node: fx.Node, mask: Any) -> None:
    if not any(mask[1:]):
        return
    for items, part in (((0,), [True, False, False]), ((1, 2), [False, *mask[1:]])):
        with graph.inserting_before(node):
            args = (*node.args[:_MASK], part)
            twin = graph.call_function(_aten.convolution_backward.default, args)
        twin.meta = dict(node.meta)
        twin.meta["val"] = tuple(
            v if wanted else None for v, wanted in zip(node.meta["val"], part, strict=True)
        )
        for user in list(node.users):
            if user.target is operator.getitem and user.args[1] in items:
                user.update_arg(0, twin)
    graph.erase_node(node)


def copy_graph(
    graph: fx.Graph, names: list[str] | None = None, taken: Collection[str] = ()
) -> fx.Graph:
    """A copy with call nodes named uniquely and only value and origin as metadata.

    Args:
        graph: Placeholders, calls, and one flat output tuple.
        names: Names for the placeholders, which call nodes must yield to.
        taken: Names that no call node may have.
    """
    copy, env = fx.Graph(), dict[fx.Node, fx.Node]()
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    for node, name in zip(placeholders, names or [n.name for n in placeholders], strict=True):
        env[node] = copy.placeholder(name)
    for name in taken:
        copy.erase_node(copy.placeholder(name))  # the graph gives its name to no other node
    for node in graph.nodes:
        if node.op == "call_function":
            env[node] = copy.node_copy(node, env.__getitem__)
    for old, new in env.items():
        new.meta = {k: old.meta[k] for k in ("val", "origin") if k in old.meta}
    copy.output(tuple(env[r] if isinstance(r, fx.Node) else r for r in results(graph)))
    return copy
