"""Gradients of activations and losses with corners, in ReLUs, clamps and products of their own."""

from typing import Any

import torch
from torch import Tensor

from pipec.backends.fpga.lowering.rewrite import Emit, Rule


def _where_positive(dy: Tensor, x: Tensor) -> Tensor:
    """``dy`` where ``x > 0``, else 0."""
    found: Tensor = torch.ops.aten.threshold_backward.default(dy, x, 0)
    return found


def leaky_relu_backward(_: Emit, dy: Tensor, x: Tensor, slope: float, is_result: bool) -> Tensor:
    """``dy`` where ``x > 0``, else ``slope dy``."""
    above = _where_positive(dy, x)
    return above + (dy - above) * slope


def hardtanh_backward(_: Emit, dy: Tensor, x: Tensor, low: float, high: float) -> Tensor:
    """``dy`` where ``low < x < high``, else 0; ReLU6 too."""
    return _where_positive(_where_positive(dy, x - low), high - x)


def elu_backward(
    _: Emit, dy: Tensor, alpha: float, scale: float, input_scale: float, is_result: bool, x: Tensor
) -> Any:
    """``alpha exp(x) dy`` where ``x <= 0``."""
    if (scale, input_scale, is_result) != (1, 1, False):
        return NotImplemented
    above = _where_positive(dy, x)
    slope = x.clamp(max=0.0).exp()
    return above + (dy - above) * slope * alpha


def smooth_l1_loss(
    emit: Emit, x: Tensor, target: Tensor, reduction: int = 1, beta: float = 1.0
) -> Any:
    """A Huber loss over ``beta``."""
    return huber_loss(emit, x, target, reduction, beta, beta) if beta > 0 else NotImplemented


def huber_loss(
    _: Emit, x: Tensor, target: Tensor, reduction: int = 1, delta: float = 1.0, over: float = 1.0
) -> Any:
    """``c (|d| - c/2)`` with ``d = x - target`` and ``c = min(|d|, delta)``, summed up."""
    if reduction == 0:
        return NotImplemented
    size = (x - target).abs()
    near = size.clamp(max=delta)
    rest = size - near * 0.5
    return (near * rest).sum() * (1 / (over * _count(x, reduction)))


def smooth_l1_loss_backward(
    emit: Emit, dy: Tensor, x: Tensor, target: Tensor, reduction: int, beta: float
) -> Any:
    """That of a Huber loss over ``beta``."""
    if beta <= 0:
        return NotImplemented
    return huber_loss_backward(emit, dy, x, target, reduction, beta, beta)


def huber_loss_backward(
    _: Emit, dy: Tensor, x: Tensor, target: Tensor, reduction: int, delta: float, over: float = 1.0
) -> Any:
    """``dy clamp(x - target, -delta, delta)``."""
    if reduction == 0:
        return NotImplemented
    near = (x - target).clamp(-delta, delta)
    return near * (1 / (over * _count(x, reduction))) * dy


def _count(x: Tensor, reduction: int) -> int:
    """Elements that a mean is taken over; 1 for a sum."""
    return x.numel() if reduction == 1 else 1


GRADIENTS: dict[str, Rule] = {
    "aten.leaky_relu_backward.default": leaky_relu_backward,
    "aten.hardtanh_backward.default": hardtanh_backward,
    "aten.elu_backward.default": elu_backward,
    "aten.smooth_l1_loss.default": smooth_l1_loss,
    "aten.smooth_l1_loss_backward.default": smooth_l1_loss_backward,
    "aten.huber_loss.default": huber_loss,
    "aten.huber_loss_backward.default": huber_loss_backward,
}
