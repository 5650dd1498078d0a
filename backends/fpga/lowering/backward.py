"""How training ops are written in ops that engines compute, and those of these that ATen lacks."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from pipec.backends.fpga.engines.network import integers
from pipec.backends.fpga.lowering.rewrite import Emit, Rule

aten = torch.ops.aten
ops = torch.ops.pipec_fpga
Pair = tuple[int, ...]


@torch.library.custom_op("pipec_fpga::one_hot", mutates_args=())
def one_hot(classes: Tensor, count: int, ignored: int = -1) -> Tensor:
    """One-hot rows ``[n, count]`` in float32 of class numbers ``[n]``.

    Zeros throughout where the number is ``ignored`` or no class.
    """
    columns = torch.arange(count, device=classes.device)
    return ((classes[:, None] == columns) & (columns != ignored)).to(torch.float32)


@one_hot.register_fake
def _(classes: Tensor, count: int, ignored: int = -1) -> Tensor:
    return torch.empty(classes.shape[0], count, device=classes.device)


@torch.library.custom_op("pipec_fpga::layer_norm_input_grad", mutates_args=())
def layer_norm_input_grad(
    dy: Tensor, x: Tensor, shape: Sequence[int], weight: Tensor | None, eps: float
) -> Tensor:
    """Input gradient of a layer normalisation over the last axes ``shape``, from x alone."""
    _, mean, rstd = aten.native_layer_norm.default(x, shape, weight, None, eps)
    mask = [True, False, False]
    found: Tensor = aten.native_layer_norm_backward.default(
        dy, x, shape, mean, rstd, weight, None, mask
    )[0]
    return found


@layer_norm_input_grad.register_fake
def _(dy: Tensor, x: Tensor, shape: Sequence[int], weight: Tensor | None, eps: float) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("pipec_fpga::apart", mutates_args=())
def apart(x: Tensor, stride: Sequence[int], size: Sequence[int]) -> Tensor:
    """Maps of ``size`` with the pixels of x ``stride`` rows and columns apart, zeros in between.

    As many as there are places for: ``ceil(size / stride)``.
    """
    found = x.new_zeros(*x.shape[:2], *size)
    found[:, :, :: stride[0], :: stride[1]] = x
    return found


@apart.register_fake
def _(x: Tensor, stride: Sequence[int], size: Sequence[int]) -> Tensor:
    return x.new_empty(*x.shape[:2], *size)


def _channels(x: Tensor) -> tuple[list[int], list[int], int]:
    """Axes of statistics of channels, the shape of a value for each, elements of a channel."""
    axes = [d for d in range(x.ndim) if d != 1]
    return axes, [-1 if d == 1 else 1 for d in range(x.ndim)], x.numel() // x.shape[1]


def batch_norm(
    emit: Emit, x: Tensor, weight: Tensor | None, bias: Tensor, running_mean: Tensor,
    running_var: Tensor, training: bool, momentum: float, eps: float,
) -> Any:  # fmt: skip
    """Over the whole microbatch: ``y = (x - mean) / sqrt(var + eps) * weight + bias``.

    Running means follow by ``momentum``.
    """
    axes, per_channel, count = _channels(x)
    mean = x.mean(axes, True)
    centred = x - mean
    var = (centred * centred).mean(axes, True)
    rstd = (var + eps).rsqrt()
    y = centred * rstd
    if weight is not None:
        y = y * emit.reshape(weight, *per_channel)
        y = y + emit.reshape(bias, *per_channel)

    def running(before: Tensor, now: Tensor, scale: float) -> Tensor:
        flat = emit.reshape(now, x.shape[1])
        kept = before * (1 - momentum)
        return flat * (momentum * scale) + kept

    flat = [emit.reshape(v, x.shape[1]) for v in (mean, rstd)]
    means = running(running_mean, mean, 1.0)
    return (y, *flat, means, running(running_var, var, count / max(count - 1, 1)))


def batch_norm_backward(
    emit: Emit, dy: Tensor, x: Tensor, weight: Tensor | None, _rm: Tensor, _rv: Tensor,
    mean: Tensor, rstd: Tensor, training: bool, *_: object,
) -> Any:  # fmt: skip
    """With batch statistics and ``h = (x - mean) rstd``: ``dweight = sum(dy h)``.

    ``dbias = sum(dy)``, ``dx = weight rstd (dy - dbias/n - h dweight/n)`` (Ioffe and Szegedy 2015).
    """
    if not training:
        return NotImplemented
    axes, per_channel, count = _channels(x)
    mean, rstd = (emit.reshape(v, *per_channel) for v in (mean, rstd))
    h = (x - mean) * rstd
    dweight = (dy * h).sum(axes, True)
    dbias = dy.sum(axes, True)
    slope, shift = dweight * (1 / count), dbias * (1 / count)
    dx = (dy - shift - h * slope) * rstd
    if weight is not None:
        dx = dx * emit.reshape(weight, *per_channel)
    return (dx, *(emit.reshape(v, x.shape[1]) for v in (dweight, dbias)))


def layer_norm_backward(
    emit: Emit, dy: Tensor, x: Tensor, normal: list[int], _mean: Tensor, _rstd: Tensor,
    weight: Tensor | None, _bias: Tensor | None, mask: list[bool], *, eps: float,
) -> Any:  # fmt: skip
    """``dweight = sum(dy h)``, ``dbias = sum(dy)``.

    The input gradient is one op, whose engine computes the statistics again from x.
    """
    dx = dweight = dbias = None
    axes = list(range(x.ndim - len(normal)))
    if mask[0]:
        dx = ops.layer_norm_input_grad.default(dy, x, normal, weight, eps)
    if mask[1]:
        h = emit.call(aten.native_layer_norm.default, x, normal, None, None, eps)[0]
        dweight = (dy * h).sum(axes, False)
    if mask[2]:
        dbias = dy.sum(axes, False)
    return (dx, dweight, dbias)


def nll_loss(
    _: Emit, logs: Tensor, classes: Tensor, weight: Tensor | None, reduction: int, ignored: int
) -> Any:
    """``-sum(log p * one_hot) / labelled``, the sum not divided.

    Rows whose class is ``ignored`` count neither above nor below.
    """
    if weight is not None or reduction == 0 or logs.ndim != 2:
        return NotImplemented
    hot = ops.one_hot.default(classes, logs.shape[1], ignored)
    total = (logs * hot).sum() * -1.0
    return (total / hot.sum() if reduction == 1 else total, None)


def nll_loss_backward(
    _: Emit, dy: Tensor, logs: Tensor, classes: Tensor, weight: Tensor | None, reduction: int,
    ignored: int, _total: Tensor,
) -> Any:  # fmt: skip
    """``-dy/labelled * one_hot``."""
    if weight is not None or reduction == 0 or logs.ndim != 2:
        return NotImplemented
    hot = ops.one_hot.default(classes, logs.shape[1], ignored)
    scale = dy * -1.0
    return hot * (scale / hot.sum() if reduction == 1 else scale)


def hardtanh_backward(_: Emit, dy: Tensor, x: Tensor, low: float, high: float) -> Tensor:
    """``dy`` where ``low < x < high``, else 0; ReLU6 too."""
    return torch.where(x > low, torch.where(x < high, dy, 0.0), 0.0)


def convolution_backward(emit: Emit, *args: Any) -> Any:
    """``(dy, x, w, bias, stride, padding, dilation, transposed, out_padding, groups, mask)``.

    dx is a convolution of dy (`input_gradient`), dw stays, ``dbias = sum(dy)``.
    """
    (dy, x, w), groups, mask = args[:3], args[9], args[10]
    if args[7] or w.ndim != 4:
        return NotImplemented
    dx = dw = dbias = None
    if mask[0]:
        dx = input_gradient(emit, dy, w, x.shape[2:], args[4], args[5], args[6], groups)
    if mask[1]:
        dw = emit.call(aten.convolution_backward.default, *args[:10], [False, True, False])[1]
    if mask[2]:
        dbias = dy.sum([0, 2, 3], False)
    return (dx, dw, dbias)


def input_gradient(
    emit: Emit, dy: Tensor, w: Tensor, size: Sequence[int], steps: object, border: object,
    spread: object, groups: int, bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """``dx[c] = bias[c] + sum over k, m of w[m, c, k] dy[m]`` shifted by k, of maps of ``size``.

    Stride 1: a convolution of dy with the kernel turned round. Stride s: s*s of them, one for each
    place modulo s, with every s-th kernel row and column, put side by side (no zeros multiplied).
    Where the kernel is dilated too or has fewer pixels than that, dy's pixels are put a stride
    apart first, of a kernel of one pixel behind the product.
    """
    stride, padding, dilation = (integers(a, 2) for a in (steps, border, spread))
    kernel, turned = tuple(w.shape[2:]), _turn(emit, w, groups)
    if (kernel, padding) == ((1, 1), (0, 0)) and stride != (1, 1):
        found: Tensor = ops.apart.default(_convolve(dy, turned, groups), list(stride), list(size))
        return found
    dense = kernel[0] >= stride[0] and kernel[1] >= stride[1]
    if dilation == (1, 1) and dense and stride != (1, 1):
        return _phases(emit, dy, size, turned, (kernel, stride, padding), groups, bias)
    before = [d * (k - 1) - p for d, k, p in zip(dilation, kernel, padding, strict=True)]
    return _convolve(_dilate(dy, size, stride, padding, before), turned, groups, bias, dilation)


def _convolve(
    dy: Tensor, w: Tensor, groups: int, bias: Tensor | None = None, dilation: Pair = (1, 1)
) -> Tensor:
    """With stride 1."""
    found: Tensor = aten.convolution.default(
        dy, w, bias, [1, 1], [0, 0], list(dilation), False, [0, 0], groups
    )
    return found


def _dilate(
    dy: Tensor, size: Sequence[int], stride: Pair, padding: Pair, before: Sequence[int]
) -> Tensor:
    """Dy's pixels a stride apart in zeros, for windows that yield maps of ``size``."""
    ends = [(n - 1) * s + 1 for n, s in zip(dy.shape[2:], stride, strict=True)]
    behind = [n - end + p for n, end, p in zip(size, ends, padding, strict=True)]
    apart = dy if stride == (1, 1) else ops.apart.default(dy, list(stride), ends)
    for axis, (first, last) in enumerate(zip(before, behind, strict=True)):
        if min(first, last) < 0:  # no window reaches there
            stop = ends[axis] + min(last, 0)
            apart = aten.slice.Tensor(apart, 2 + axis, max(-first, 0), stop)
    around = [max(n, 0) for n in (before[1], behind[1], before[0], behind[0])]
    found: Tensor = aten.constant_pad_nd.default(apart, around) if any(around) else apart
    return found


def avg_pool_backward(
    emit: Emit, dy: Tensor, x: Tensor, window: object, steps: object, border: object, ceil: bool,
    include: bool, divisor: int | None,
) -> Any:  # fmt: skip
    """Windows that tile the maps: pixels repeated. Others: sums over dy, its pixels put apart.

    Windows at the borders that are divided by less are so before.
    """
    kernel, padding = integers(window, 2), integers(border, 2)
    stride, size = integers(steps or window, 2), x.shape[2:]
    count = divisor or kernel[0] * kernel[1]
    if (stride, padding) == (kernel, (0, 0)) and all(
        n == h * k for n, h, k in zip(size, dy.shape[2:], kernel, strict=True)
    ):
        return emit.call(aten.upsample_nearest2d.default, dy, list(size)) * (1 / count)
    ends = [(n - 1) * s + k for n, s, k in zip(dy.shape[2:], stride, kernel, strict=True)]
    over = any(e > h + 2 * p for e, h, p in zip(ends, size, padding, strict=True))
    if divisor is None and (over or (padding != (0, 0) and not include)):
        around = [padding[1], padding[1], padding[0], padding[0]] if include else [0] * 4
        ones = aten.constant_pad_nd.default(aten.ones.default([1, 1, *size]), around, 1.0)
        left = [0, 0] if include else list(padding)
        each = aten.avg_pool2d.default(ones, kernel, stride, left, ceil, True, 1)
        dy, count = dy * each[:, :, : dy.shape[2], : dy.shape[3]].reciprocal(), 1
    before = [k - 1 - p for k, p in zip(kernel, padding, strict=True)]
    padded = _dilate(dy, size, stride, padding, before)
    return aten.avg_pool2d.default(padded, kernel, [1, 1], [0, 0], False, True, count)


def adaptive_avg_pool_backward(emit: Emit, dy: Tensor, x: Tensor) -> Any:
    """Of maps whose size dy's divides: pixels repeated."""
    times = [n // h for n, h in zip(x.shape[2:], dy.shape[2:], strict=True)]
    if [h * k for h, k in zip(dy.shape[2:], times, strict=True)] != list(x.shape[2:]):
        return NotImplemented
    return avg_pool_backward(emit, dy, x, times, times, 0, False, True, None)


def _turn(emit: Emit, w: Tensor, groups: int) -> Tensor:
    """``[g*m, c, kh, kw]`` to ``[g*c, m, kh, kw]``, kernels turned by half a circle."""
    m, c, kh, kw = w.shape
    split = emit.reshape(w, groups, m // groups, c, kh, kw)
    swapped = split.permute(0, 2, 1, 3, 4)
    return emit.reshape(swapped, groups * c, m // groups, kh, kw).flip([2, 3])


def _phases(
    emit: Emit, dy: Tensor, size: Sequence[int], turned: Tensor, geometry: tuple[Pair, ...],
    groups: int, bias: Tensor | None,
) -> Tensor:  # fmt: skip
    """The convolutions of a strided input gradient, interleaved and cropped."""
    kernel, stride, padding = geometry
    n, c = dy.shape[0], turned.shape[0]
    count = [(h - 1 + p) // s + 1 for h, p, s in zip(size, padding, stride, strict=True)]
    parts = []
    for ry in range(stride[0]):
        for rx in range(stride[1]):
            sub, border = turned, list[int]()
            for axis, r in ((1, rx), (0, ry)):
                k, s = kernel[axis], stride[axis]
                taps = -(-(k - r) // s)
                first = k - 1 - (r + s * (taps - 1))
                sub = aten.slice.Tensor(sub, 2 + axis, first, k - r, s)
                border += [taps - 1, count[axis] - dy.shape[2 + axis]]
            around = aten.constant_pad_nd.default(dy, border)
            parts.append(_convolve(around, sub, groups, bias))
    split = emit.reshape(torch.cat(parts, 1), n, *stride, c, *count)
    placed = split.permute(0, 3, 4, 1, 5, 2)
    whole = emit.reshape(placed, n, c, *(q * s for q, s in zip(count, stride, strict=True)))
    whole = whole.clone(memory_format=torch.channels_last)
    for axis in (0, 1):
        start = padding[axis]
        whole = aten.slice.Tensor(whole, 2 + axis, start, start + size[axis])
    return whole


def embedding_backward(
    emit: Emit, dy: Tensor, indices: Tensor, rows: int, padding: int, by_frequency: bool
) -> Any:
    """``one_hot(indices)^T dy``; the gradient of the padding row is zero."""
    if by_frequency:
        return NotImplemented
    count, width = indices.numel(), dy.shape[-1]
    hot = ops.one_hot.default(emit.reshape(indices, count), rows)
    found = hot.permute(1, 0).mm(emit.reshape(dy, count, width))
    if padding < 0:
        return found
    ends = (0, padding), (padding + 1, rows)
    slices = [[aten.slice.Tensor(found, 0, a, b)] if a < b else [] for a, b in ends]
    return torch.cat([*slices[0], aten.full.default([1, width], 0.0), *slices[1]], 0)


def slice_backward(
    _: Emit, dy: Tensor, sizes: list[int], dim: int, start: int, stop: int, step: int
) -> Any:
    """Dy between zeros (a part of a split layer)."""
    return _between_zeros(dy, sizes, dim, start) if step == 1 else NotImplemented


def select_backward(_: Emit, dy: Tensor, sizes: list[int], dim: int, index: int) -> Tensor:
    """Dy between zeros, which no sum of gradients takes together (`join_selects`)."""
    dim %= len(sizes)
    index %= sizes[dim]
    return _between_zeros(dy, sizes, dim, index, selected=True)


def _between_zeros(
    dy: Tensor, sizes: list[int], dim: int, start: int, *, selected: bool = False
) -> Tensor:
    count = 1 if selected else dy.shape[dim]
    parts = []
    for zeros in (start, sizes[dim] - start - count):
        shape = [zeros if axis == dim else size for axis, size in enumerate(sizes)]
        parts.append([aten.full.default(shape, 0.0)] if zeros else [])
    placed = dy.unsqueeze(dim) if selected else dy
    return torch.cat([*parts[0], placed, *parts[1]], dim)


def join_selects(emit: Emit, *args: Any, **_: Any) -> Any:
    """The sum of the gradients of all ``x.select(dim, k)``: stacked, not padded and added."""
    if emit.old.kwargs or not all(isinstance(a, fx.Node) for a in emit.old.args):
        return NotImplemented
    parts = [part for a in emit.old.all_input_nodes for part in _find_selects(a)]
    if None in parts:
        return NotImplemented
    found = {part.args[3]: part for part in parts}
    sizes, dim = next(iter(found.values())).args[1:3]
    alike = all(part.args[1:3] == (sizes, dim) for part in found.values())
    if not alike or len(found) != len(parts) or sorted(found) != list(range(sizes[dim])):
        return NotImplemented
    return torch.stack([emit.value(found[k].args[0]) for k in range(len(found))], dim)


def _find_selects(node: fx.Node) -> list[Any]:
    """The gradients of selections that a sum is made of; None for what is none."""
    if node.target is aten.select_backward.default:
        return [node]
    if node.target is aten.add.Tensor and not node.kwargs:
        return [part for a in node.all_input_nodes for part in _find_selects(a)]
    return [None]


def of_shape(emit: Emit, dy: Tensor, x: Tensor, *rest: Any) -> Any:
    """Of a pooling: of x only the shape counts, so it need not be saved."""
    if emit.old.all_input_nodes[1].op != "placeholder":
        return NotImplemented
    return emit.call(emit.old.target, dy, aten.full.default(list(x.shape), 0.0), *rest)


RULES: dict[str, Rule] = {
    "aten.add.Tensor": join_selects,
    "aten.slice_backward.default": slice_backward,
    # where a row is minus infinity throughout torch yields zeros
    "aten._safe_softmax.default": lambda _, x, dim: aten._softmax.default(x, dim, False),
    "aten.embedding_dense_backward.default": embedding_backward,
    "aten._native_batch_norm_legit_functional.default": batch_norm,
    "aten.native_batch_norm_backward.default": batch_norm_backward,
    "aten.nll_loss_forward.default": nll_loss,
    "aten.nll_loss_backward.default": nll_loss_backward,
    "aten.hardtanh_backward.default": hardtanh_backward,
    "aten.convolution_backward.default": convolution_backward,
    "aten.max_pool2d_with_indices_backward.default": of_shape,
    "aten.avg_pool2d_backward.default": avg_pool_backward,
    "aten._adaptive_avg_pool2d_backward.default": adaptive_avg_pool_backward,
}
"""Op name to rule; layer normalisation needs its epsilon (`phases._layer_norm_rules`)."""
