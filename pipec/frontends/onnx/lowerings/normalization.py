"""Normalisations, softmax, the losses on top of it, and dropout."""

import math
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as fn

from pipec.frontends.onnx.context import Context, Result, lowering, scalar
from pipec.frontends.onnx.refusals import Refused
from pipec.frontends.onnx.values import TORCH_OF_ONNX
from pipec.graph.arrays import Array
from pipec.graph.norms import by_fixed_statistics


@lowering("BatchNormalization")
def batch_normalization(
    ctx: Context, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor
) -> Result:
    """By fixed statistics; with ``training_mode`` by those of the batch.

    The new running statistics of training mode are outputs like any other.
    """
    epsilon = ctx.attr("epsilon", 1e-5)
    if ctx.version < 7 and not ctx.attr("is_test", 0):
        raise Refused("training mode (is_test = 0) before opset 7", final=True)
    if ctx.attr("training_mode", 0) if ctx.version >= 14 else ctx.wants(1):
        if ctx.version < 14:
            raise Refused("training-mode outputs before opset 14")
        return _batch_training(ctx, x, scale, bias, mean, var)
    if ctx.version < 9 and not ctx.attr("spatial", 1):
        return (x - mean) / torch.sqrt(var + epsilon) * scale + bias
    if x.dim() < 2:
        x, flat = x.unsqueeze(1), x
        return fn.batch_norm(x, mean, var, scale, bias, False, 0.0, epsilon).reshape(flat.shape)
    kinds = {scale.dtype, bias.dtype, mean.dtype, var.dtype}
    if kinds != {x.dtype}:
        scale, bias, mean, var = (t.to(x.dtype) for t in (scale, bias, mean, var))
    # what `batch_norm` becomes in the graph anyway; working out its fake result takes longer
    y, _, _ = by_fixed_statistics(x, scale, bias, mean, var, 0.0, epsilon)
    return cast("Tensor", y)


def _batch_training(
    ctx: Context, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor
) -> Result:
    momentum, epsilon = ctx.attr("momentum", 0.9), ctx.attr("epsilon", 1e-5)
    own = scale.to(x.dtype), bias.to(x.dtype)
    y, _, _ = torch.ops.aten._native_batch_norm_legit.no_stats(x, *own, True, 0.0, epsilon)  # noqa: SLF001
    axes = [k for k in range(x.dim()) if k != 1]
    now = x.to(mean.dtype)
    new_mean = mean * momentum + now.mean(axes) * (1 - momentum)
    new_var = var * momentum + now.var(axes, unbiased=False) * (1 - momentum)
    return y, new_mean, new_var


@lowering("InstanceNormalization")
def instance_normalization(ctx: Context, x: Tensor, scale: Tensor, bias: Tensor) -> Result:
    """Each plane by its own statistics."""
    epsilon = ctx.attr("epsilon", 1e-5)
    # not that of `functional`, which refuses planes of one element
    return torch.instance_norm(x, scale, bias, None, None, True, 0.0, epsilon, False)


@lowering("GroupNormalization")
def group_normalization(ctx: Context, x: Tensor, scale: Tensor, bias: Tensor) -> Result:
    """Each group of channels by its own statistics; before opset 21 one scale per group."""
    groups, epsilon = ctx.attr("num_groups"), ctx.attr("epsilon", 1e-5)
    if ctx.version < 21 and scale.numel() == groups != x.shape[1]:
        scale, bias = (t.repeat_interleave(x.shape[1] // groups) for t in (scale, bias))
    return torch.group_norm(x, groups, scale.to(x.dtype), bias.to(x.dtype), epsilon)


@lowering("LayerNormalization")
def layer_normalization(
    ctx: Context, x: Tensor, scale: Tensor, bias: Tensor | None = None
) -> Result:
    """Over the last dimensions, from ``axis`` on; also mean and inverse deviation if asked."""
    axis = ctx.attr("axis", -1) % x.dim()
    shape, epsilon = tuple(x.shape[axis:]), ctx.attr("epsilon", 1e-5)
    plain = tuple(scale.shape) == shape and (bias is None or tuple(bias.shape) == shape)
    kinds = {t.dtype for t in (x, scale, bias) if t is not None}
    if plain and len(kinds) == 1 and not (ctx.wants(1) or ctx.wants(2)):
        return fn.layer_norm(x, shape, scale, bias, epsilon)
    stash = TORCH_OF_ONNX.get(ctx.attr("stash_type", 1), torch.float32)
    wide, axes = x.to(stash), tuple(range(axis, x.dim()))
    mean = wide.mean(axes, keepdim=True)
    inverse = torch.rsqrt((wide - mean).square().mean(axes, keepdim=True) + epsilon)
    y = ((wide - mean) * inverse).to(x.dtype) * scale
    return (y if bias is None else y + bias), mean, inverse


@lowering("RMSNormalization")
def rms_normalization(ctx: Context, x: Tensor, scale: Tensor) -> Result:
    """By the root of the mean square over the last dimensions."""
    axis, epsilon = ctx.attr("axis", -1) % x.dim(), ctx.attr("epsilon", 1e-5)
    shape = tuple(x.shape[axis:])
    stash = TORCH_OF_ONNX.get(ctx.attr("stash_type", 1), torch.float32)
    if tuple(scale.shape) == shape and scale.dtype == x.dtype == stash:
        return fn.rms_norm(x, shape, scale, epsilon)
    wide, axes = x.to(stash), tuple(range(axis, x.dim()))
    normal = wide * torch.rsqrt(wide.square().mean(axes, keepdim=True) + epsilon)
    return normal.to(scale.dtype) * scale


@lowering("LpNormalization")
def lp_normalization(ctx: Context, x: Tensor) -> Result:
    """By the L1 or L2 norm along an axis; a vector of zeros stays."""
    axis, p = ctx.attr("axis", -1), ctx.attr("p", 2)
    norm = torch.linalg.vector_norm(x, p, axis, keepdim=True)
    return torch.where(norm == 0, torch.zeros_like(x), x / norm)


@lowering("LRN")
def lrn(ctx: Context, x: Tensor) -> Result:
    """Each element by the squares of its neighbours across channels."""
    size, alpha = ctx.attr("size"), ctx.attr("alpha", 1e-4)
    beta, bias = ctx.attr("beta", 0.75), ctx.attr("bias", 1.0)
    if size % 2:
        return fn.local_response_norm(x, size, alpha, beta, bias)
    before = (size - 1) // 2
    flat = x.square().reshape(x.shape[0], 1, x.shape[1], -1)
    padded = fn.pad(flat, (0, 0, before, size - 1 - before))
    means = fn.avg_pool2d(padded, (size, 1), 1)
    return x / torch.pow(means.reshape(x.shape) * alpha + bias, beta)


_SOFTMAX = {"Softmax": fn.softmax, "LogSoftmax": fn.log_softmax}


@lowering("Softmax", "LogSoftmax", "Hardmax")
def softmax(ctx: Context, x: Tensor) -> Result:
    """Along an axis; before opset 13 over all dimensions from ``axis`` on."""
    old = ctx.version < 13
    axis = ctx.attr("axis", 1 if old else -1)
    if not -x.dim() <= axis <= x.dim() - (not old):
        raise Refused(f"axis {axis} of a tensor of {x.dim()} dimensions")
    if not old:
        return _along(ctx, x, axis)
    axis += x.dim() if axis < 0 else 0
    if axis == x.dim() - 1 or (math.prod(x.shape[axis + 1 :]) == 1 and axis < x.dim()):
        return _along(ctx, x, axis)
    flat = x.reshape(math.prod(x.shape[:axis]), -1)
    return _along(ctx, flat, 1).reshape(x.shape)


def _along(ctx: Context, x: Tensor, axis: int) -> Tensor:
    if ctx.node.op_type != "Hardmax":
        return _SOFTMAX[ctx.node.op_type](x, axis)
    zero = torch.zeros_like(x)
    return zero.scatter(axis, x.argmax(axis, keepdim=True), 1)


@lowering("Dropout", known=(1, 2))
def dropout(
    ctx: Context, x: Tensor, ratio: Array | None = None, training: Array | None = None
) -> Result:
    """The identity, unless ``training_mode`` is set; the mask is all true then."""
    if ctx.version < 7 and not ctx.attr("is_test", 0):
        raise Refused("training mode (is_test = 0) before opset 7", final=True)
    p = float(scalar(ratio, ctx.attr("ratio", 0.5)))
    if not scalar(training, default=False) or p == 0:
        mask_type = torch.bool if ctx.version >= 10 else x.dtype
        mask = torch.ones_like(x, dtype=mask_type) if ctx.wants(1) else None
        return x, mask
    kept, mask = torch.ops.aten.native_dropout(x, p, True)
    return kept, mask


@lowering("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
def class_loss(ctx: Context, x: Tensor, target: Tensor, weight: Tensor | None = None) -> Result:
    """Minus the log probability of the target's class, averaged or summed by class weight.

    With the softmax in it: the log probabilities too if asked.
    """
    ignored, how = ctx.attr("ignore_index", -100), ctx.attr("reduction", "mean")
    softmax = ctx.node.op_type == "SoftmaxCrossEntropyLoss"
    if softmax and not ctx.wants(1):
        return fn.cross_entropy(x, target.long(), weight, ignore_index=ignored, reduction=how)
    logs = fn.log_softmax(x, 1) if softmax else x
    loss = fn.nll_loss(logs, target.long(), weight, ignore_index=ignored, reduction=how)
    return (loss, logs) if softmax else loss
