"""Pooling over windows and over whole planes."""

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as fn

from pipec.frontends.onnx.context import Context, Result, lowering
from pipec.frontends.onnx.lowerings.windows import CONV, Window, window
from pipec.frontends.onnx.refusals import Refused
from pipec.frontends.onnx.values import ints
from pipec.graph.arrays import Array

_MAX = {1: fn.max_pool1d, 2: fn.max_pool2d, 3: fn.max_pool3d}
_AVERAGE = {1: fn.avg_pool1d, 2: fn.avg_pool2d, 3: fn.avg_pool3d}


def _make_window(ctx: Context, x: Tensor) -> Window:
    if x.dim() - 2 not in _MAX:
        raise Refused(f"pooling of {x.dim() - 2} spatial dimensions; want 1 to 3")
    shape = window(ctx, tuple(x.shape[2:]), tuple(ctx.attr("kernel_shape", ())))
    if ctx.attr("auto_pad", "NOTSET").startswith("SAME") and max(shape.dilations) > 1:
        raise Refused("auto_pad SAME with dilations, which engines leave out of it", final=True)
    return shape


def _fits_torch(shape: Window) -> bool:
    """Whether torch takes the pads as they are: equal on both sides, at most half a kernel."""
    half = all(2 * b <= k for b, k in zip(shape.begin, shape.kernel, strict=True))
    return shape.symmetric and half


@lowering("MaxPool")
def max_pool(ctx: Context, x: Tensor) -> Result:
    """Maximum per window, and where it was found, counted over the whole tensor."""
    shape = _make_window(ctx, x)
    exact = x.to(torch.float32) if not x.is_floating_point() else x
    indexed = ctx.wants(1)
    if _fits_torch(shape):
        source, pads, ceil = exact, shape.begin, shape.ceil
    else:
        source = shape.pad(exact, -math.inf)
        pads, ceil = (0,) * len(shape.sizes), False
    if not indexed:
        y = _MAX[x.dim() - 2](source, shape.kernel, shape.strides, pads, shape.dilations, ceil)
        return y.to(x.dtype)
    y, index = _MAX[x.dim() - 2](
        source, shape.kernel, shape.strides, pads, shape.dilations, ceil, return_indices=True
    )
    begin = (0,) * len(pads) if source is exact else shape.begin
    return y.to(x.dtype), _global(ctx, index, tuple(source.shape[2:]), begin, x)


def _global(
    ctx: Context, index: Tensor, padded: tuple[int, ...], begin: tuple[int, ...], x: Tensor
) -> Tensor:
    """Positions within a padded plane as positions in the whole tensor, row or column major."""
    coordinates, rest = list[Tensor](), index
    for size, before in zip(reversed(padded), reversed(begin), strict=True):
        coordinates.insert(0, rest % size - before)
        rest = rest // size
    axes = list(range(len(padded)))
    flat = torch.zeros_like(index)
    for k in axes[::-1] if ctx.attr("storage_order", 0) else axes:
        flat = flat * x.shape[2 + k] + coordinates[k]
    planes = x.shape[0] * x.shape[1]
    offsets = np.arange(planes).reshape(*x.shape[:2], *(1,) * len(padded))
    return flat + ctx.tensor(offsets * math.prod(x.shape[2:]))


@lowering("AveragePool")
def average_pool(ctx: Context, x: Tensor) -> Result:
    """Mean per window, padding counted or not."""
    shape, whole = _make_window(ctx, x), bool(ctx.attr("count_include_pad", 0))
    average, dense = _AVERAGE[x.dim() - 2], set(shape.dilations) <= {1}
    if _fits_torch(shape) and dense:
        return average(x, shape.kernel, shape.strides, shape.begin, shape.ceil, whole)
    counts = np.ones(1)
    for k in range(len(shape.sizes)):
        counts = np.multiply.outer(counts, _counts(shape, k, whole))
    elements = math.prod(shape.kernel) if dense else 1
    scale = ctx.tensor((elements / counts[0]).astype(np.float32)).to(x.dtype)
    if dense:
        return average(shape.pad(x), shape.kernel, shape.strides) * scale
    return window_sum(ctx, x, shape) * scale


def _counts(shape: Window, k: int, whole: bool) -> Array:
    """Elements that a mean divides by, per window along dimension ``k``."""
    starts = np.arange(shape.outputs[k]) * shape.strides[k] - shape.begin[k]
    places = starts[:, None] + np.arange(shape.kernel[k]) * shape.dilations[k]
    low, high = (-shape.begin[k], shape.sizes[k] + shape.end[k]) if whole else (0, shape.sizes[k])
    counts: Array = np.maximum(((places >= low) & (places < high)).sum(1), 1).astype(np.float64)
    return counts


def window_sum(ctx: Context, x: Tensor, shape: Window) -> Tensor:
    """Sum per window: a convolution of each plane with ones."""
    rank = len(shape.sizes)
    planes = shape.pad(x)
    flat = planes.reshape(-1, 1, *planes.shape[2:])
    ones = ctx.tensor(np.ones((1, 1, *shape.kernel), np.float32)).to(x.dtype)
    y = CONV[rank](flat, ones, None, shape.strides, 0, shape.dilations)
    return y.reshape(*x.shape[:2], *y.shape[2:])


@lowering("LpPool")
def lp_pool(ctx: Context, x: Tensor) -> Result:
    """Lp norm per window."""
    p = ctx.attr("p", 2)
    powers = torch.pow(x.abs(), p)
    return torch.pow(window_sum(ctx, powers, _make_window(ctx, x)), 1 / p)


@lowering("GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool")
def global_pool(ctx: Context, x: Tensor) -> Result:
    """Mean, Lp norm or maximum per plane."""
    plane = tuple(range(2, x.dim()))
    if ctx.node.op_type == "GlobalMaxPool":
        return x.amax(plane, keepdim=True)
    if ctx.node.op_type == "GlobalLpPool":
        p = ctx.attr("p", 2)
        return torch.pow(torch.pow(x.abs(), p).sum(plane, keepdim=True), 1 / p)
    return fn.adaptive_avg_pool2d(x, 1) if x.dim() == 4 else x.mean(plane, keepdim=True)


@lowering("MaxUnpool", known=(2,))
def max_unpool(ctx: Context, x: Tensor, index: Tensor, shape: Array | None = None) -> Result:
    """Values put back where a MaxPool found them; positions count over the whole input of it."""
    rank = x.dim() - 2
    kernel, ones = ctx.attr("kernel_shape"), [1] * rank
    strides, pads = ctx.attr("strides") or ones, ctx.attr("pads") or [0] * (2 * rank)
    natural = [
        (n - 1) * s - pads[k] - pads[k + rank] + kernel[k]
        for k, (n, s) in enumerate(zip(x.shape[2:], strides, strict=True))
    ]
    sizes = [*x.shape[:2], *natural] if shape is None else ints(shape)
    if shape is not None and sizes[2:] != natural:
        raise Refused("positions that count over another shape than the output's")
    flat = torch.zeros(math.prod(sizes), dtype=x.dtype, device=x.device)
    return flat.scatter(0, index.reshape(-1), x.reshape(-1)).reshape(sizes)
