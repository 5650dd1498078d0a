"""Ops that no engine computes, and what models write out in single steps, as ops with an engine.

```text
(x - mean) / sqrt(mean((x - mean)^2) + eps)      layer_norm over one axis
x * rsqrt(mean(x^2) + eps)                       rms_norm over one axis
group_norm, instance_norm                        layer_norm over the maps of a group
batch_norm(x, w, b, mean, var)                   x scale + shift, which vanish into weights
split, chunk, unbind, select                     slices
scaled_dot_product_attention                     product, softmax, product
prelu(x, w)                                      max(x, 0) + w min(x, 0)
upsample_bilinear2d, upsample_bicubic2d          per axis, a sum of positions times fixed weights
conv_transpose2d(x, w)                           the input gradient of conv2d: stride^2 convolutions
```

Of interpolations, ``out[i] = w0[i] x[p[i]] + w1[i] x[p[i] + 1]`` (four terms for cubic), positions
are constant, so that each term is what `pipec.backends.fpga.lowering.gathering` makes of an
``index_select``: slices and repetitions. Torch itself says the weights: those of an axis are what
the op makes of an identity matrix.

Other composite ops torch itself takes apart, by `torch.export.default_decompositions`: a recurrent
cell becomes its matrix products and gates. The last node of a replacement is called what the op was
called.
"""

from collections.abc import Callable
from functools import cache, partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, fx
from torch.overrides import TorchFunctionMode

from pipec.backends.fpga.engines.constants import Constants, shape_of
from pipec.backends.fpga.engines.network import HANDLERS, integers
from pipec.backends.fpga.lowering.backward import input_gradient, select_backward
from pipec.backends.fpga.lowering.norms import response_of
from pipec.backends.fpga.lowering.rewrite import Emit, Rule, rewrite
from pipec.graph.arguments import bind
from pipec.graph.ir import Graph, op_name

aten = torch.ops.aten
_LAYER, _RMS = aten.layer_norm.default, aten.rms_norm.default
_MULTIPLY = ("aten.mul.Tensor",)
_DIVIDE = ("aten.div.Tensor",)


def gather_steps(graph: Graph, precision: str) -> Graph:
    """A stage's graph with these steps replaced; itself if there are none.

    The last node of a replacement has the name of what it replaces. 8-bit integers hold no mask.
    """
    always: dict[str, Rule] = {**_ALWAYS, _ATTENTION: partial(attention, masks=precision != "int8")}
    if not any(
        _match_norm(n) or _match_transposed(n) or op_name(n) in always or response_of(n)
        for n in graph.calls
    ):
        return graph
    rules: dict[str, Rule] = dict.fromkeys((*_MULTIPLY, *_DIVIDE), _norm_rule)
    rules |= {_CONVOLUTION: _replace_transposed} | always
    return rewrite(graph, rules)


def _norm_rule(emit: Emit, *args: Tensor) -> Any:
    found, response = _match_norm(emit.old), response_of(emit.old)
    if response is not None:
        x, (size, *_) = emit.value(response.bound["x"]), response.bound["kernel"]
        numbers = (float(response.bound[name]) for name in ("alpha", "k", "beta"))
        return emit.rename(torch.ops.pipec_fpga.response.default(x, size, *numbers))
    if found is None:
        return NotImplemented
    op, at, axis, eps = found
    x = emit.value(emit.old.all_input_nodes[at].all_input_nodes[0]) if op is _LAYER else args[at]
    rank = x.ndim
    order = [*(d for d in range(rank) if d != axis), axis]
    if axis != rank - 1:
        x = x.permute(order)
    more = (None, None, eps) if op is _LAYER else (None, eps)
    y = emit.call(op, x, [x.shape[-1]], *more)
    return emit.rename(y if axis == rank - 1 else y.permute([order.index(d) for d in range(rank)]))


def _match_norm(node: fx.Node) -> tuple[Any, int, int, float] | None:
    """Which normalisation ends here, which argument is normalised, over which axis; epsilon."""
    if op_name(node) not in (*_MULTIPLY, *_DIVIDE) or node.kwargs.get("rounding_mode"):
        return None
    root = "aten.rsqrt.default" if op_name(node) in _MULTIPLY else "aten.sqrt.default"
    for at in (0, 1) if op_name(node) in _MULTIPLY else (0,):
        x, found = node.args[at], _epsilon(node.args[1 - at], root, node.args[at])
        if isinstance(x, fx.Node) and found is not None:
            axis, eps = found
            centred = op_name(x) == "aten.sub.Tensor" and _mean_of(x.args[1]) == (x.args[0], axis)
            return (_LAYER if centred else _RMS, at, axis, eps)
    return None


def _epsilon(scale: object, root: str, x: object) -> tuple[int, float] | None:
    """Axis and epsilon of ``root(mean(x^2) + eps)``; None if it is something else."""
    if not isinstance(scale, fx.Node) or op_name(scale) != root:
        return None
    (total,) = scale.all_input_nodes
    if op_name(total) != "aten.add.Tensor":
        return None
    mean, eps = _mean_of(total.args[0]), total.args[1]
    if not isinstance(eps, int | float) or mean is None:
        return None
    square, axis = mean
    power = op_name(square) == "aten.pow.Tensor_Scalar" and square.args[1] == 2
    product = op_name(square) in _MULTIPLY and square.args[0] is square.args[1]
    return (axis, float(eps)) if (power or product) and _same(square.args[0], x) else None


def _same(a: object, b: object) -> bool:
    """Whether two nodes are one, or one op of the same arguments written twice."""
    if not (isinstance(a, fx.Node) and isinstance(b, fx.Node)):
        return False
    return a is b or (a.target, a.args, a.kwargs) == (b.target, b.args, b.kwargs)


def _mean_of(node: object) -> tuple[fx.Node, int] | None:
    """The operand and the axis of a mean that keeps its axis; None if it is something else."""
    if not isinstance(node, fx.Node) or op_name(node) != "aten.mean.dim":
        return None
    x, axes = node.args[:2]
    assert isinstance(x, fx.Node)
    over = [a % len(shape_of(x)) for a in integers(axes, 1)]
    return (x, over[0]) if len(over) == 1 and bind(node)["keepdim"] else None


def _group_norm(
    emit: Emit, x: Tensor, groups: int, weight: Tensor | None = None, bias: Tensor | None = None,
    eps: float = 1e-5, *_: object,
) -> Tensor:  # fmt: skip
    """Each group of channels of a map as one row of a layer normalisation."""
    length = x.numel() // x.shape[0] // groups
    flat = emit.reshape(x, x.shape[0], groups, length)
    y = emit.reshape(emit.call(_LAYER, flat, [length], None, None, eps), *x.shape)
    per_channel = [-1, *[1] * (x.ndim - 2)]
    if weight is not None:
        y = y * emit.reshape(weight, *per_channel)
    if bias is not None:
        y = y + emit.reshape(bias, *per_channel)
    return emit.rename(y)


def _instance_norm(
    emit: Emit, x: Tensor, weight: Tensor | None, bias: Tensor | None, _mean: object, _var: object,
    own: bool, _momentum: float, eps: float, *_: object,
) -> Any:  # fmt: skip
    """With its own statistics."""
    return _group_norm(emit, x, x.shape[1], weight, bias, eps) if own else NotImplemented


def batch_norm(
    emit: Emit, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor,
    _momentum: float, eps: float,
) -> Any:  # fmt: skip
    """``x scale + shift`` in inference, with numbers for each channel in full precision."""
    gamma, beta = (t if t is None else t.double() for t in (weight, bias))
    mean, var = mean.double(), var.double()
    scale = (var + eps).rsqrt()
    scale = scale if gamma is None else scale * gamma
    shift = -mean * scale if beta is None else beta - mean * scale
    per_channel = [-1, *[1] * (x.ndim - 2)]
    y = x * emit.reshape(scale, *per_channel) + emit.reshape(shift, *per_channel)
    return (emit.rename(y.to(x.dtype)), None, None)


_ATTENTION = "aten.scaled_dot_product_attention.default"


def attention(emit: Emit, q: Tensor, k: Tensor, v: Tensor, *_: Any, masks: bool) -> Any:
    """``softmax(scale q k^T + mask) v``; the mask is added, or true where something is kept."""
    names = ("attn_mask", "dropout_p", "is_causal", "scale")
    keeps, dropout, causal, scale = (bind(emit.old)[name] for name in names)
    mask = emit.value(keeps) if keeps is not None else None
    if dropout or q.shape[:-2] != k.shape[:-2] or not (masks or (mask is None and not causal)):
        return NotImplemented
    scores = emit.call(aten.matmul.default, q, k.transpose(-1, -2))
    scores = scores * (q.shape[-1] ** -0.5 if scale is None else scale)
    if mask is not None and mask.dtype is torch.bool:
        if keeps not in emit.constants:
            return NotImplemented
        mask = torch.where(mask, 0.0, -torch.inf).to(scores.dtype)
    elif causal:
        whole = (q.shape[-2], k.shape[-2])
        mask = torch.full(whole, -torch.inf, dtype=scores.dtype).triu(1)
    scores = scores if mask is None else scores + mask
    weights = aten._softmax.default(scores, scores.ndim - 1, False)
    return emit.rename(emit.call(aten.matmul.default, weights, v))


def _parts(emit: Emit, x: Tensor, *_: Any) -> Any:
    """Parts of one axis, each a slice."""
    unbind = op_name(emit.old) == "aten.unbind.int"
    axis = bind(emit.old)["dim"] % x.ndim
    sizes = [1 if unbind else part.shape[axis] for part in emit.old.meta["val"]]
    ends = accumulate(sizes)
    parts = [aten.slice.Tensor(x, axis, e - n, e) for n, e in zip(sizes, ends, strict=True)]
    return tuple(part.squeeze(axis) if unbind else part for part in parts)


def _select(emit: Emit, x: Tensor, axis: int, index: int) -> Tensor:
    """One position of an axis."""
    first = index % x.shape[axis]
    return emit.rename(aten.slice.Tensor(x, axis, first, first + 1).squeeze(axis))


_PARTS = ("split.Tensor", "split_with_sizes.default", "unbind.int")


def _prelu(emit: Emit, x: Tensor, weight: Tensor) -> Tensor:
    """``max(x, 0) + weight min(x, 0)``."""
    slope = emit.reshape(weight, -1, *[1] * (x.ndim - 2)) if x.ndim > 1 else weight
    below = x.clamp(max=0.0) * slope
    return emit.rename(x.relu() + below)


_TAPS = {"linear1d": 2, "bilinear2d": 2, "bicubic2d": 4}
"""Positions that a result is made of, along one axis."""
_OPS = {2: aten.upsample_bilinear2d.default, 4: aten.upsample_bicubic2d.default}


def _interpolate(emit: Emit, x: Tensor, size: object, corners: object, *scales: Any) -> Tensor:
    """``(x, sizes, align_corners, scales)``, or one scale after the other."""
    op, before, after = op_name(emit.old), x, shape_of(emit.old)
    taps = _TAPS[op.split("upsample_")[1].partition(".")[0]]
    factors = scales[0] if op.endswith(".vec") and scales else scales
    each = [*(factors or ()), None, None]
    for axis in reversed(range(2, x.ndim)):  # along rows first: there are fewer of them
        scale, count = each[axis - 2], x.shape[axis]
        if after[axis] != count or scale not in (None, 1.0):
            kernel = _kernel(emit, x, axis, after[axis], taps, corners, scale)
            x = _weigh(emit, x, axis, kernel, min(taps, count))
    return emit.rename(x.clone() if x is before else x)


def _kernel(
    emit: Emit, x: Tensor, axis: int, size: int, taps: int, corners: object, scale: object
) -> Tensor:
    """The weight of each position of an axis in each one of the result, ``[before][after]``."""
    before = x.shape[axis]
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    lines = aten.eye.default(before, dtype=dtype, device="cpu")
    found = _OPS[taps](emit.reshape(lines, before, 1, before, 1), [size, 1], corners, scale, None)
    return emit.reshape(found, before, size)


def _weigh(emit: Emit, x: Tensor, axis: int, kernel: Tensor, taps: int) -> Tensor:
    """The sum of so many neighbours along an axis, from the first that counts."""
    before, size = kernel.shape
    shape = [size if d == axis else 1 for d in range(x.ndim)]
    counts = (kernel != 0).to(torch.int32)
    first = counts.argmax(0).clamp(None, before - taps)
    total: Tensor | None = None
    for k in range(taps):
        places = first + k
        weights = emit.call(aten.to.dtype, kernel.gather(0, places.unsqueeze(0)), x.dtype)
        part = x.index_select(axis, places) * emit.reshape(weights, *shape)
        total = part if total is None else total + part
    assert total is not None
    return total


_ALWAYS: dict[str, Rule] = {
    "aten._native_batch_norm_legit_no_training.default": batch_norm,
    **{f"aten.{op}": _parts for op in _PARTS},
    "aten.select.int": _select,
    "aten.group_norm.default": _group_norm,
    "aten.instance_norm.default": _instance_norm,
    "aten.prelu.default": _prelu,
    "aten.select_backward.default": lambda emit, *args: emit.rename(select_backward(emit, *args)),
    **{f"aten.upsample_{k}.{form}": _interpolate for k in _TAPS for form in ("default", "vec")},
}
_CONVOLUTION = "aten.convolution.default"


def _match_transposed(node: fx.Node) -> tuple[tuple[int, ...], ...] | None:
    """Stride, padding, dilation, groups of a transposed convolution that can be replaced.

    Over one axis it is one over maps of a single row.
    """
    if op_name(node) != _CONVOLUTION or not node.args[6]:
        return None
    weight = node.args[1]
    assert isinstance(weight, fx.Node)
    kernel = shape_of(weight)[2:]
    if len(kernel) not in (1, 2) or len(shape_of(node)) != len(kernel) + 2:
        return None
    per_axis = [integers(value, len(kernel)) for value in node.args[3:6]]
    steps, padding, dilation = per_axis
    border = zip(dilation, kernel, padding, strict=True)
    plain = set(steps) == {1} and all(d * (k - 1) >= p for d, k, p in border)
    phased = set(dilation) == {1} and all(k >= s for k, s in zip(kernel, steps, strict=True))
    if not (plain or phased):
        return None
    row = ((1,), (0,), (1,)) if len(kernel) == 1 else ((), (), ())
    return (*(a + b for a, b in zip(row, per_axis, strict=True)), integers(node.args[8], 1))


def _replace_transposed(emit: Emit, x: Tensor, weight: Tensor, bias: Tensor | None, *_: Any) -> Any:
    """A transposed convolution is the input gradient of the convolution with the same weights."""
    found = _match_transposed(emit.old)
    if found is None:
        return NotImplemented
    stride, padding, dilation, (groups,) = (list(v) for v in found)
    one_axis = x.ndim == 3
    if one_axis:
        x, weight = x.unsqueeze(2), weight.unsqueeze(2)
    size = [1, *shape_of(emit.old)[2:]][-2:]
    y = input_gradient(emit, x, weight, size, stride, padding, dilation, groups, bias)
    return emit.rename(y.squeeze(2) if one_axis else y)


WHOLE = "scaled_dot_product_attention"
"""An op whose decomposition leads to nothing that an engine computes; better named in the error."""


@cache
def _table() -> dict[Any, Callable[..., Any]]:
    return dict(torch.export.default_decompositions())


def decompose(graph: Graph, precision: str) -> Graph:
    """A stage's graph with what models write out, and composite ops without a handler, replaced.

    Node names, inputs and outputs stay what they are.
    """
    graph = gather_steps(graph, precision)
    constants = Constants(graph)
    composite = (n for n in graph.calls if n.target in _table() and n not in constants)
    names = {op_name(n) for n in composite} - HANDLERS.keys()
    found = dict.fromkeys((name for name in names if WHOLE not in name), _decompose)
    return decompose(rewrite(graph, found), precision) if found else graph


class _WholeProducts(TorchFunctionMode):
    """Keeps linear layers in one node, which torch would take apart by the strides of its input."""

    def __init__(self, emit: Emit) -> None:
        super().__init__()
        self._emit = emit

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """A call of a function of torch."""
        if func is torch.nn.functional.linear:
            return self._emit.call(torch.ops.aten.linear.default, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _decompose(emit: Emit, *args: Any) -> Any:
    """The ops of which a node consists; the last one takes its name."""
    own = [list(a) if isinstance(a, list) else a for a in args]  # which some change
    rename = fx.node.map_arg(emit.old.kwargs, emit.value)
    with _WholeProducts(emit):
        found = _table()[emit.old.target](*own, **rename)
    return emit.rename(found) if isinstance(found, torch.Tensor) else tuple(found)
