"""Floating point operations per node: what torch counts where it counts, else counts per element.

A multiply-add is two operations. Matrix products, convolutions and attention, composites of them
included (``linear``, ``matmul``, ``einsum``, ``lstm``), are counted by
`torch.utils.flop_counter.FlopCounterMode` on meta tensors: on CPU tensors it takes fused attention
for nothing. What it leaves out is estimated per element of what is read or written:

| ops | FLOPs |
|---|---|
| elementwise arithmetic, comparisons, reductions | 1 per element |
| softmax, log-softmax | 5 per element (maximum, subtract, exponent, sum, divide) |
| norms with statistics of the input | 5 per element, 7 with an affine map |
| batch norm with fixed statistics | 2 per element |
| pooling | 1 per element of every window |
| cross entropy | 6 per element of the scores |
| quantising, dequantising | 4 and 2 per element; products of integers as those of floats |
| moves: copies, casts, gathers, concatenation, constants | 0 |
| ops of other packages | by torch's `register_flop_formula`; without one 1 per element, a guess |
"""

import math
import operator
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, fx
from torch.utils.flop_counter import (
    FlopCounterMode,
    flop_registry,
    sdpa_backward_flop_count,
    sdpa_flop_count,
)

from pipec.graph.comm import is_comm
from pipec.graph.ir import tensors
from pipec.graph.kernels import arguments
from pipec.graph.torch_private import OpOverload, is_composite, is_view, namespace_of, tree_map

Formula = Callable[[fx.Node], float]
OWN = ("aten", "prims", "pipec")
"""Namespaces whose ops this table knows."""


class FlopCounter:
    """Counts nodes; what has been counted is kept for all graphs, since layers repeat.

    Example:
        >>> from pipec.graph.torch_private import FakeTensorMode
        >>> with FakeTensorMode():
        ...     x, w = torch.empty(8, 16), torch.empty(32, 16)
        >>> graph = fx.Graph(); a = graph.placeholder("a"); b = graph.placeholder("b")
        >>> a.meta["val"], b.meta["val"] = x, w
        >>> node = graph.call_function(torch.ops.aten.linear.default, (a, b))
        >>> node.meta["val"] = torch.ops.aten.linear.default(x, w)
        >>> FlopCounter().flops(node) == 2 * 8 * 16 * 32
        True
    """

    _known: ClassVar[dict[object, int]] = {}

    def flops(self, node: fx.Node) -> float:
        """FLOPs of one node."""
        if node.target is operator.getitem or not isinstance(node.target, OpOverload):
            return 0.0
        if is_view(node.target) or node.target in _MOVES or is_comm(node):
            return 0.0
        own = _formula(node)
        if own is not None:
            return own(node)
        return float(self.count(node)) or float(_largest(node))

    def is_guess(self, node: fx.Node, flops: float) -> bool:
        """Whether so many FLOPs of an op from another package are the default: one per element."""
        if not isinstance(node.target, OpOverload) or is_view(node.target):
            return False
        known = namespace_of(node.target) in OWN or is_composite(node.target)
        return not known and flops == _largest(node)

    def is_product(self, node: fx.Node) -> bool:
        """Whether the node multiplies matrices: its FLOPs are no count of elements."""
        return _formula(node) in (_group_mm, _integer_conv, _eager) or self.count(node) > 0

    def count(self, node: fx.Node) -> int:
        """What `FlopCounterMode` counts for the node on meta tensors; 0 where it counts nothing."""
        target = node.target
        if not isinstance(target, OpOverload) or namespace_of(target) == "pipec":
            return 0
        if target.overloadpacket not in flop_registry and not is_composite(target):
            return 0
        given = ((v.shape, v.dtype) if isinstance(v, Tensor) else v for v in arguments(node))
        key = (target, *given)
        if key not in self._known:
            self._known[key] = _count_by_torch(node)
        return self._known[key]


def _count_by_torch(node: fx.Node) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        args, kwargs = fx.map_arg(
            (node.args, node.kwargs), lambda n: tree_map(_on_meta, n.meta["val"])
        )
        kwargs = {k: torch.device("meta") if k == "device" else v for k, v in kwargs.items()}
        node.target(*args, **kwargs)  # type: ignore[operator]
    return int(counter.get_total_flops())


def _on_meta(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


def _count_read(node: fx.Node) -> int:
    """Elements of the first tensor that the node reads."""
    return next((tensors(n)[0].numel() for n in node.all_input_nodes if tensors(n)), 0)


def _count_written(node: fx.Node) -> int:
    return max((t.numel() for t in tensors(node)), default=0)


def _largest(node: fx.Node) -> int:
    """Elements of the largest tensor read or written: a reduction works on what it reads."""
    read = max((t.numel() for n in node.all_input_nodes for t in tensors(n)), default=0)
    floating = any(t.is_floating_point() or t.is_complex() for t in tensors(node))
    return max(read, _count_written(node)) if floating else _count_written(node)


def _per_element(count: int) -> Formula:
    return lambda node: float(count * _count_read(node))


def _norm(affine: int) -> Formula:
    """Normalisation whose argument number ``affine`` is the weight, if there is one."""

    def flops(node: fx.Node) -> float:
        scaled = len(node.args) > affine and node.args[affine] is not None
        return float((7 if scaled else 5) * _count_read(node))

    return flops


def _window(node: fx.Node) -> float:
    size: Any = node.args[1]
    dims = node.meta["val"][0] if isinstance(node.meta["val"], tuple) else node.meta["val"]
    window = math.prod(size) if len(size) > 1 else size[0] ** (dims.ndim - 2)
    return float(dims.numel() * window)


def _group_mm(node: fx.Node) -> float:
    """Rows times one of several weight matrices each: (T, K) x (G, K, N) for T x N results."""
    rows: Any = node.args[0]
    return 2.0 * tensors(node)[0].numel() * tensors(rows)[0].shape[-1]


def _eager(node: fx.Node) -> float:
    """What was counted of a module that runs as it is."""
    flops: Any = node.args[4]
    return float(flops)


def _integer_conv(node: fx.Node) -> float:
    """Weights are the second argument or, if every operand comes with a scale, the fourth."""
    weights: Any = node.args[1 if "integer" in str(node.target) else 3]
    return 2.0 * tensors(node)[0].numel() * math.prod(tensors(weights)[0].shape[1:])


def _attention(node: fx.Node) -> float:
    """Fused attention as CPUs run it: torch counts every variant but this one."""
    query, key, value = (n.meta["val"].shape for n in _first(node, 3))
    return float(sdpa_flop_count(query, key, value))


def _attention_backward(node: fx.Node) -> float:
    gradient, query, key, value = (n.meta["val"].shape for n in _first(node, 4))
    return float(sdpa_backward_flop_count(gradient, query, key, value))


def _first(node: fx.Node, count: int) -> list[fx.Node]:
    """The first arguments; several of them may be one node (attention of a value to itself)."""
    return [a for a in node.args[:count] if isinstance(a, fx.Node)]


_aten = torch.ops.aten
_MOVES = frozenset(
    {
        _aten._to_copy.default, _aten.clone.default, _aten.cat.default, _aten.stack.default,
        _aten.embedding.default, _aten.index.Tensor, _aten.index_select.default,
        _aten.gather.default, _aten.slice_scatter.default, _aten.select_scatter.default,
        _aten.index_put.default, _aten.scatter.src, _aten.scatter.value,
        _aten.constant_pad_nd.default, _aten.pad.default, _aten.repeat.default, _aten.flip.default,
        _aten.roll.default, _aten.arange.default, _aten.arange.start, _aten.arange.start_step,
        _aten.full.default, _aten.full_like.default, _aten.zeros.default, _aten.zeros_like.default,
        _aten.ones.default, _aten.ones_like.default, _aten.empty.memory_format,
        _aten.new_zeros.default, _aten.new_ones.default, _aten.new_full.default,
        _aten.scalar_tensor.default, _aten.tril.default, _aten.triu.default,
        _aten.lift_fresh_copy.default, _aten.one_hot.default, _aten.pixel_shuffle.default,
        _aten.pixel_unshuffle.default, _aten.channel_shuffle.default,
        _aten.repeat_interleave.self_int, _aten.im2col.default, _aten.unfold_copy.default,
    }
)  # fmt: skip
_FORMULAS: dict[str, Formula] = {
    "softmax": _per_element(5),
    "_softmax": _per_element(5),
    "_safe_softmax": _per_element(5),
    "log_softmax": _per_element(5),
    "_log_softmax": _per_element(5),
    "cross_entropy_loss": _per_element(6),
    "native_layer_norm": _norm(2),
    "layer_norm": _norm(2),
    "rms_norm": _norm(2),
    "group_norm": _norm(2),
    "native_group_norm": _norm(1),
    "instance_norm": _norm(1),
    "_native_batch_norm_legit_functional": _norm(1),
    "_native_batch_norm_legit_no_training": _per_element(2),
    "max_pool1d": _window,
    "max_pool2d": _window,
    "max_pool3d": _window,
    "max_pool2d_with_indices": _window,
    "max_pool3d_with_indices": _window,
    "avg_pool1d": _window,
    "avg_pool2d": _window,
    "avg_pool3d": _window,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "_grouped_mm": _group_mm,
    "transformers.grouped_mm_fallback": _group_mm,
    "pipec.eager": _eager,
    "pipec.add_gradients": _per_element(1),
    "pipec.quantize": _per_element(4),
    "pipec.dynamic_quantize": _per_element(6),
    "pipec.dequantize": _per_element(2),
    "pipec.integer_matmul": _group_mm,
    "pipec.qlinear_matmul": _group_mm,
    "pipec.integer_conv": _integer_conv,
    "pipec.qlinear_conv": _integer_conv,
}
"""Packet name to formula, for what torch counts as nothing."""


def _formula(node: fx.Node) -> Formula | None:
    if not isinstance(node.target, OpOverload):
        return None
    return _FORMULAS.get(str(node.target.overloadpacket).removeprefix("aten."))
