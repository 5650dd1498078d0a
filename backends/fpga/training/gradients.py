"""Gradients of activations and losses with corners, in ReLUs, clamps and products of their own."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from pipec.backends.fpga.lowering.constants import shape_of
from pipec.backends.fpga.training.rewrite import Emit, Found, Rule

aten = torch.ops.aten
Args = Sequence[Any]


def _where_positive(emit: Emit, dy: fx.Node, x: fx.Node) -> fx.Node:
    """``dy`` where ``x > 0``, else 0."""
    return emit(aten.threshold_backward.default, dy, x, 0)


def leaky_relu_backward(emit: Emit, old: fx.Node, args: Args) -> Found | None:
    """``(dy, x, slope, is result)``: ``dy`` where ``x > 0``, else ``slope dy``."""
    dy, x, slope = args[:3]
    above = _where_positive(emit, dy, x)
    below = emit(aten.sub.Tensor, dy, above)
    return emit(aten.add.Tensor, above, emit(aten.mul.Scalar, below, slope))


def hardtanh_backward(emit: Emit, old: fx.Node, args: Args) -> Found | None:
    """``(dy, x, low, high)``: ``dy`` where ``low < x < high``, else 0; ReLU6 too."""
    dy, x, low, high = args
    above = _where_positive(emit, dy, emit(aten.sub.Scalar, x, low))
    return _where_positive(emit, above, emit(aten.rsub.Scalar, x, high))


def elu_backward(emit: Emit, old: fx.Node, args: Args) -> Found | None:
    """``(dy, alpha, scale, input scale, is result, x)``: ``alpha exp(x) dy`` where ``x <= 0``."""
    dy, alpha, scale, input_scale, is_result, x = args
    if (scale, input_scale, is_result) != (1, 1, False):
        return None
    above = _where_positive(emit, dy, x)
    slope = emit(aten.exp.default, emit(aten.clamp.default, x, None, 0.0))
    below = emit(aten.mul.Tensor, emit(aten.sub.Tensor, dy, above), slope)
    return emit(aten.add.Tensor, above, emit(aten.mul.Scalar, below, alpha))


def smooth_l1_loss(emit: Emit, old: fx.Node, args: Args) -> Found | None:
    """``(x, target, reduction, beta)``: a Huber loss over ``beta``."""
    x, target, reduction, beta = _with_defaults(args)
    return _huber(emit, (x, target), reduction, beta, beta) if beta > 0 else None


def huber_loss(emit: Emit, old: fx.Node, args: Args) -> Found | None:
    """``(x, target, reduction, delta)``."""
    x, target, reduction, delta = _with_defaults(args)
    return _huber(emit, (x, target), reduction, delta, 1.0)


def _with_defaults(args: Args) -> Args:
    """A mean, and a corner at 1, where nothing else is said."""
    defaults: list[Any] = [1, 1.0]
    return [*args, *defaults[len(args) - 2 :]]


def _huber(
    emit: Emit, operands: tuple[fx.Node, fx.Node], reduction: int, delta: float, over: float
) -> Found | None:
    """``c (|d| - c/2)`` with ``d = x - target`` and ``c = min(|d|, delta)``, summed up."""
    if reduction == 0:
        return None
    size = emit(aten.abs.default, emit(aten.sub.Tensor, *operands))
    near = emit(aten.clamp.default, size, None, delta)
    rest = emit(aten.sub.Tensor, size, emit(aten.mul.Scalar, near, 0.5))
    total = emit(aten.sum.default, emit(aten.mul.Tensor, near, rest))
    return emit(aten.mul.Scalar, total, 1 / (over * _count(operands[0], reduction)))


def smooth_l1_loss_backward(emit: Emit, old: fx.Node, args: Args) -> Found | None:
    """``(dy, x, target, reduction, beta)``: that of a Huber loss over ``beta``."""
    dy, x, target, reduction, beta = args
    return _huber_backward(emit, (dy, x, target), reduction, beta, beta) if beta > 0 else None


def huber_loss_backward(emit: Emit, old: fx.Node, args: Args) -> Found | None:
    """``(dy, x, target, reduction, delta)``."""
    dy, x, target, reduction, delta = args
    return _huber_backward(emit, (dy, x, target), reduction, delta, 1.0)


def _huber_backward(
    emit: Emit, operands: tuple[fx.Node, fx.Node, fx.Node], reduction: int, delta: float,
    over: float,
) -> Found | None:  # fmt: skip
    """``dy clamp(x - target, -delta, delta)``."""
    dy, x, target = operands
    if reduction == 0:
        return None
    near = emit(aten.clamp.default, emit(aten.sub.Tensor, x, target), -delta, delta)
    scaled = emit(aten.mul.Scalar, near, 1 / (over * _count(x, reduction)))
    return emit(aten.mul.Tensor, scaled, dy)


def _count(x: fx.Node, reduction: int) -> int:
    """Elements that a mean is taken over; 1 for a sum."""
    return math.prod(shape_of(x)) if reduction == 1 else 1


def select_backward(emit: Emit, old: fx.Node, args: Args) -> Found | None:
    """``(dy, sizes, dim, index)``: dy between zeros."""
    dy, sizes, dim, index = args
    dim %= len(sizes)
    index %= sizes[dim]
    parts = []
    for zeros in (index, sizes[dim] - index - 1):
        shape = [zeros if axis == dim else size for axis, size in enumerate(sizes)]
        parts.append([emit(aten.full.default, shape, 0.0)] if zeros else [])
    placed = emit(aten.unsqueeze.default, dy, dim)
    return emit(aten.cat.default, [*parts[0], placed, *parts[1]], dim)


GRADIENTS: dict[str, Rule] = {
    "aten.leaky_relu_backward.default": leaky_relu_backward,
    "aten.hardtanh_backward.default": hardtanh_backward,
    "aten.elu_backward.default": elu_backward,
    "aten.smooth_l1_loss.default": smooth_l1_loss,
    "aten.smooth_l1_loss_backward.default": smooth_l1_loss_backward,
    "aten.huber_loss.default": huber_loss,
    "aten.huber_loss_backward.default": huber_loss_backward,
}
