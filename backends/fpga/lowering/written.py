"""Ops that models write out in single steps, and transposed convolutions, as ops with an engine.

```text
(x - mean) / sqrt(mean((x - mean)^2) + eps)      layer_norm over the last axis
x * rsqrt(mean(x^2) + eps)                       rms_norm over the last axis
conv_transpose2d(x, w)                           the input gradient of conv2d: stride^2 convolutions
```
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from pipec.backends.fpga.lowering.constants import shape_of
from pipec.backends.fpga.lowering.network import argument, integers
from pipec.backends.fpga.training.rewrite import Emit, Found, Rule, rewritten
from pipec.backends.fpga.training.rules import input_gradient
from pipec.graph.ir import Graph, op_name

aten = torch.ops.aten
_MULTIPLY = ("aten.mul.Tensor",)
_DIVIDE = ("aten.div.Tensor", "aten.div.Tensor_mode")


def gathered(graph: Graph) -> Graph:
    """The graph with these steps replaced; itself if there are none.

    Args:
        graph: A stage's compute graph; the last node of a replacement has the name of what it
            replaces.
    """
    wanted = [n for n in graph.calls if _normalised(n) is not None or _transposed(n) is not None]
    if not wanted:
        return graph
    rules: dict[str, Rule] = dict.fromkeys((*_MULTIPLY, *_DIVIDE), _norm_rule)
    rules |= dict.fromkeys(_TRANSPOSED, _transposed_rule)
    return rewritten(graph, rules)


def _norm_rule(emit: Emit, old: fx.Node, args: Sequence[Any]) -> Found | None:
    found = _normalised(old)
    if found is None:
        return None
    op, at, eps = found
    x = args[at]
    if op == "layer_norm":
        return _named(
            emit(aten.layer_norm.default, x.args[0], [shape_of(x)[-1]], None, None, eps), old
        )
    return _named(emit(aten.rms_norm.default, x, [shape_of(x)[-1]], None, eps), old)


def _named(node: fx.Node, old: fx.Node) -> fx.Node:
    node.name = old.name
    return node


def _normalised(node: fx.Node) -> tuple[str, int, float] | None:
    """Which normalisation ends here, which argument is normalised, and its epsilon."""
    if op_name(node) not in (*_MULTIPLY, *_DIVIDE) or node.kwargs.get("rounding_mode"):
        return None
    root = "aten.rsqrt.default" if op_name(node) in _MULTIPLY else "aten.sqrt.default"
    for at in (0, 1) if op_name(node) in _MULTIPLY else (0,):
        x, eps = node.args[at], _epsilon(node.args[1 - at], root, node.args[at])
        if isinstance(x, fx.Node) and eps is not None:
            return ("layer_norm" if _centred(x) else "rms_norm", at, eps)
    return None


def _epsilon(scale: object, root: str, x: object) -> float | None:
    """The epsilon of ``root(mean(x^2) + eps)``; None if it is something else."""
    total = _first(scale, root)
    if not isinstance(total, fx.Node) or op_name(total) != "aten.add.Tensor":
        return None
    square, eps = _mean_of(total.args[0]), total.args[1]
    if not isinstance(eps, int | float) or not isinstance(square, fx.Node):
        return None
    power = op_name(square) == "aten.pow.Tensor_Scalar" and square.args == (x, 2)
    product = op_name(square) in _MULTIPLY and square.args == (x, x)
    return float(eps) if power or product else None


def _centred(x: fx.Node) -> bool:
    """Whether it is something less its own mean."""
    return op_name(x) == "aten.sub.Tensor" and _mean_of(x.args[1]) is x.args[0]


def _mean_of(node: object) -> object:
    """What a mean over the last axis, kept, is of; None if it is something else."""
    if not isinstance(node, fx.Node) or op_name(node) != "aten.mean.dim":
        return None
    x, axes = node.args[:2]
    assert isinstance(x, fx.Node)
    rank = len(shape_of(x))
    last = [a % rank for a in integers(axes, 1)] == [rank - 1]
    return x if last and argument(node, 2, "keepdim", default=False) else None


def _first(node: object, op: str) -> object:
    return node.args[0] if isinstance(node, fx.Node) and op_name(node) == op else None


_TRANSPOSED = ("aten.conv_transpose2d.input", "aten.convolution.default")


def _transposed(node: fx.Node) -> tuple[object, object, object, int] | None:
    """Stride, padding, dilation and groups of a transposed convolution that can be replaced."""
    if op_name(node) == "aten.conv_transpose2d.input":
        places = ((3, "stride", 1), (4, "padding", 0), (7, "dilation", 1), (6, "groups", 1))
    elif op_name(node) == "aten.convolution.default" and argument(node, 6, "transposed"):
        places = ((3, "stride", 1), (4, "padding", 0), (5, "dilation", 1), (8, "groups", 1))
    else:
        return None
    stride, padding, dilation, groups = (argument(node, *place) for place in places)
    weight = node.args[1]
    assert isinstance(weight, fx.Node)
    kernel = shape_of(weight)[2:]
    if len(kernel) != 2 or len(shape_of(node)) != 4:
        return None
    steps = integers(stride, 2)
    border = zip(integers(dilation, 2), kernel, integers(padding, 2), strict=True)
    plain = steps == (1, 1) and all(d * (k - 1) >= p for d, k, p in border)
    phased = integers(dilation, 2) == (1, 1) and all(
        k >= s for k, s in zip(kernel, steps, strict=True)
    )
    return (stride, padding, dilation, int(str(groups))) if plain or phased else None


def _transposed_rule(emit: Emit, old: fx.Node, args: Sequence[Any]) -> Found | None:
    """A transposed convolution is the input gradient of the convolution with the same weights."""
    found = _transposed(old)
    if found is None:
        return None
    stride, padding, dilation, groups = found
    x = input_gradient(
        emit, [args[0], old, args[1], None, stride, padding, dilation, False, [0, 0], groups]
    )
    bias = args[2] if len(args) > 2 else None
    if bias is not None:
        shaped = emit(aten.reshape.default, bias, [1, -1, 1, 1])
        x = emit(aten.add.Tensor, x, shaped)
    return _named(x, old)
