"""Cutting one layer in two by its output channels, so that a pipeline cut can run through it.

```text
                               ┌► first half  (weight[:k]) ─┐
x ─► linear(weight) ─► y    x ─┤                            ├► cat ─► y
                               └► second half (weight[k:]) ─┘
```

The halves read views of the same parameter, and the ``cat`` has the name of the node that was
split: whatever knew the node (outputs, readers, origins) knows its result still. Where the halves
come to lie in different stages, both stages read the parameter: it is tied between them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import fx

from pipec.errors import GraphError
from pipec.graph.ir import Graph, Origin, op_name, origin, tensor
from pipec.graph.torch_private import OpOverload, graph_module

_aten = torch.ops.aten
_TRANSPOSES = (_aten.t.default, _aten.transpose.int, _aten.permute.default, _aten.numpy_T.default)


@dataclass(frozen=True)
class _Layer:
    """A node as a layer: an op over one input and sliced operands.

    Attributes:
        target: The op of a half.
        args: Arguments of the node.
        sliced: Position of an argument that is sliced, to the dimension.
        channels: Number of output channels.
        dim: Dimension of the output channels.
    """

    target: OpOverload
    args: tuple[object, ...]
    sliced: Mapping[int, int]
    channels: int
    dim: int


def is_splittable(graph: Graph, node: fx.Node) -> bool:
    """Whether `split_node` can split the node: a product or convolution with a weight."""
    return _layer(graph, node) is not None


def is_split(graph: Graph, name: str) -> bool:
    """Whether the node was split before."""
    return {f"{name}_first", f"{name}_second"} <= graph.nodes.keys()


def split_node(graph: Graph, name: str, share: float = 0.5) -> Graph:
    """Split a linear, matmul, mm, addmm or conv2d by output channels.

    Args:
        graph: A whole model; it is not changed.
        name: The node.
        share: Part of the channels that the first half computes; rounded, at least one each.

    Returns:
        A graph that computes the same: slices of weight and bias, two halves
        (``<name>_first``, ``<name>_second``), and a ``cat`` called ``name``.

    Raises:
        GraphError: There is no such node, it cannot be split, or the share is not within (0, 1).
    """
    node = graph.node(name)
    layer = _layer(graph, node)
    if layer is None:
        raise GraphError(
            "the node cannot be split by output channels",
            where=name,
            got=op_name(node),
            want="linear, matmul, mm, addmm or an ungrouped conv2d with a weight and two channels",
        )
    if not 0 < share < 1:
        raise GraphError("the share of the first half is not within (0, 1)", where=name, got=share)
    first = min(max(round(share * layer.channels), 1), layer.channels - 1)
    copy, env = fx.Graph(), dict[fx.Node, fx.Node]()
    for n in graph.module.graph.nodes:
        if n is node:
            env[n] = _halves(copy, n, layer, first, env)
        else:
            env[n] = copy.node_copy(n, env.__getitem__)
    for n in reversed(copy.nodes):  # a transpose that only the split node read
        if n.op == "call_function" and n.target in _TRANSPOSES and not n.users:
            copy.erase_node(n)
    module = graph_module(copy, type(graph.module).__name__)
    return graph.replace(module=module)


def _halves(
    copy: fx.Graph, node: fx.Node, layer: _Layer, first: int, env: Mapping[fx.Node, fx.Node]
) -> fx.Node:
    """Put slices, halves and ``cat`` into the graph that is being made."""
    halves = []
    for word, begin, end in (("first", 0, first), ("second", first, layer.channels)):
        args = list(layer.args)
        for position, dim in layer.sliced.items():
            whole = args[position]
            assert isinstance(whole, fx.Node)
            cut = (env[whole], dim, begin, end)
            args[position] = _call(
                copy, node, _aten.slice.Tensor, cut, f"{node.name}_{word}_{position}"
            )
        moved = [env.get(a, a) if isinstance(a, fx.Node) else a for a in args]
        halves.append(_call(copy, node, layer.target, tuple(moved), f"{node.name}_{word}"))
    return _call(copy, node, _aten.cat.default, (halves, layer.dim), node.name)


def _call(
    copy: fx.Graph, like: fx.Node, target: OpOverload, args: tuple[object, ...], name: str
) -> fx.Node:
    """A new call with its fake result; it comes from where ``like`` came from."""
    new = copy.create_node("call_function", target, args, name=name)  # type: ignore[arg-type]
    values = fx.map_arg(list(args), lambda n: n.meta["val"])  # type: ignore[type-var]
    with tensor(like).fake_mode, torch.no_grad():  # type: ignore[attr-defined]
        new.meta["val"] = target(*values)
    source = origin(like)
    new.meta["origin"] = Origin(source.name, source.op, None, source.location)
    return new


def _layer(graph: Graph, node: fx.Node) -> _Layer | None:
    make = _LAYERS.get(node.target) if isinstance(node.target, OpOverload) else None
    layer = make(node) if make and not node.kwargs else None
    if layer is None or layer.channels < 2:
        return None
    weights = {i.node for i in graph.inputs if i.kind.is_weight}
    whole = [layer.args[position] for position in layer.sliced]
    read = all(isinstance(w, fx.Node) and w.name in weights for w in whole)
    return layer if read and tensor(node).is_contiguous() else None


def _linear(node: fx.Node) -> _Layer:
    x, weight, *bias = node.args
    sliced = {1: 0} | ({2: 0} if bias and bias[0] is not None else {})
    return _Layer(_aten.linear.default, (x, weight, *bias), sliced, *_last(node))


def _product(node: fx.Node) -> _Layer | None:
    """``x @ w``; with a transposed weight the halves are linear layers over its slices."""
    x, weight = node.args
    assert isinstance(weight, fx.Node)
    dims = tensor(weight).dim()
    if dims != 2:
        return None
    if weight.target in _TRANSPOSES:
        args = (x, weight.all_input_nodes[0])
        return _Layer(_aten.linear.default, args, {1: 0}, *_last(node))
    assert isinstance(node.target, OpOverload)
    return _Layer(node.target, (x, weight), {1: 1}, *_last(node))


def _addmm(node: fx.Node) -> _Layer | None:
    bias, x, weight = node.args
    assert isinstance(weight, fx.Node)
    assert isinstance(bias, fx.Node)
    channels, dim = _last(node)
    if tuple(tensor(bias).shape) != (channels,):
        return None
    if weight.target in _TRANSPOSES:
        args = (x, weight.all_input_nodes[0], bias)
        return _Layer(_aten.linear.default, args, {1: 0, 2: 0}, channels, dim)
    return _Layer(_aten.addmm.default, (bias, x, weight), {0: 0, 2: 1}, channels, dim)


def _conv(node: fx.Node) -> _Layer | None:
    args = node.args
    general = node.target is _aten.convolution.default
    groups = args[8] if general else args[6] if len(args) > 6 else 1
    if groups != 1 or (general and args[6]) or tensor(node).dim() != 4:
        return None
    sliced = {1: 0} | ({2: 0} if len(args) > 2 and args[2] is not None else {})
    assert isinstance(node.target, OpOverload)
    return _Layer(node.target, args, sliced, tensor(node).shape[1], 1)


def _last(node: fx.Node) -> tuple[int, int]:
    """Output channels in the last dimension."""
    t = tensor(node)
    return int(t.shape[-1]), t.dim() - 1


_LAYERS = {
    _aten.linear.default: _linear,
    _aten.matmul.default: _product,
    _aten.mm.default: _product,
    _aten.addmm.default: _addmm,
    _aten.conv2d.default: _conv,
    _aten.conv2d.padding: _conv,
    _aten.convolution.default: _conv,
}
