"""How training ops are written in ops that engines compute; formulas beside each rule."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from pipec.backends.fpga.lowering.constants import shape_of
from pipec.backends.fpga.lowering.network import integers
from pipec.backends.fpga.training import ops as _ops  # noqa: F401  (registers them)
from pipec.backends.fpga.training.rewrite import Emit, Found, Rule

aten = torch.ops.aten
ops = torch.ops.pipec_fpga
Args = Sequence[Any]


def _channels(node: fx.Node) -> tuple[list[int], list[int]]:
    """Axes of the statistics of a batch normalisation, and the shape of a channel's values."""
    rank = len(shape_of(node))
    return [d for d in range(rank) if d != 1], [-1 if d == 1 else 1 for d in range(rank)]


def batch_norm(emit: Emit, old: fx.Node, args: Args) -> Found | None:
    """``(x, weight, bias, mean, var, training, momentum, eps)`` over the whole microbatch.

    ``y = (x - mean) / sqrt(var + eps) * weight + bias``; running means follow by ``momentum``.
    """
    x, weight, bias, running_mean, running_var, _, momentum, eps = args
    axes, per_channel = _channels(x)
    count = math.prod(shape_of(x)) // shape_of(x)[1]
    mean = emit(aten.mean.dim, x, axes, True)
    centred = emit(aten.sub.Tensor, x, mean)
    var = emit(aten.mean.dim, emit(aten.mul.Tensor, centred, centred), axes, True)
    rstd = emit(aten.rsqrt.default, emit(aten.add.Scalar, var, eps))
    y = emit(aten.mul.Tensor, centred, rstd)
    if weight is not None:
        y = emit(aten.mul.Tensor, y, emit(aten.reshape.default, weight, per_channel))
        y = emit(aten.add.Tensor, y, emit(aten.reshape.default, bias, per_channel))

    def running(before: fx.Node, now: fx.Node, scale: float) -> fx.Node:
        flat = emit(aten.reshape.default, now, [shape_of(x)[1]])
        kept = emit(aten.mul.Scalar, before, 1 - momentum)
        return emit(aten.add.Tensor, emit(aten.mul.Scalar, flat, momentum * scale), kept)

    flat = [emit(aten.reshape.default, v, [shape_of(x)[1]]) for v in (mean, rstd)]
    means = running(running_mean, mean, 1.0)
    variances = running(running_var, var, count / max(count - 1, 1))
    return (y, *flat, means, variances)


def batch_norm_backward(emit: Emit, old: fx.Node, args: Args) -> Found | None:
    """``(dy, x, weight, rm, rv, mean, rstd, training, eps, mask)`` with batch statistics.

    ``h = (x - mean) rstd``, ``dweight = sum(dy h)``, ``dbias = sum(dy)``,
    ``dx = weight rstd (dy - dbias/n - h dweight/n)`` (Ioffe and Szegedy 2015).
    """
    dy, x, weight, _, _, mean, rstd, training = args[:8]
    if not training:
        return None
    axes, per_channel = _channels(x)
    count = math.prod(shape_of(x)) // shape_of(x)[1]
    mean, rstd = (emit(aten.reshape.default, v, per_channel) for v in (mean, rstd))
    h = emit(aten.mul.Tensor, emit(aten.sub.Tensor, x, mean), rstd)
    dweight = emit(aten.sum.dim_IntList, emit(aten.mul.Tensor, dy, h), axes, True)
    dbias = emit(aten.sum.dim_IntList, dy, axes, True)
    slope = emit(aten.mul.Scalar, dweight, 1 / count)
    shift = emit(aten.mul.Scalar, dbias, 1 / count)
    dx = emit(aten.sub.Tensor, dy, shift)
    dx = emit(aten.sub.Tensor, dx, emit(aten.mul.Tensor, h, slope))
    dx = emit(aten.mul.Tensor, dx, rstd)
    if weight is not None:
        dx = emit(aten.mul.Tensor, dx, emit(aten.reshape.default, weight, per_channel))
    flat = [emit(aten.reshape.default, v, [shape_of(x)[1]]) for v in (dweight, dbias)]
    return (dx, *flat)


def layer_norm_backward(emit: Emit, old: fx.Node, args: Args, eps: float) -> Found | None:
    """``(dy, x, shape, mean, rstd, weight, bias, mask)``.

    The input gradient is one op, whose engine computes the statistics again from x.
    ``dweight = sum(dy h)``, ``dbias = sum(dy)``.
    """
    dy, x, normal, _, _, weight, _, mask = args
    dx = dweight = dbias = None
    axes = list(range(len(shape_of(x)) - len(normal)))
    if mask[0]:
        dx = emit(ops.layer_norm_input_grad.default, dy, x, normal, weight, eps)
    if mask[1]:
        h = emit.item(emit(aten.native_layer_norm.default, x, normal, None, None, eps), 0)
        product = emit(aten.mul.Tensor, dy, h)
        dweight = emit(aten.sum.dim_IntList, product, axes, False)
    if mask[2]:
        dbias = emit(aten.sum.dim_IntList, dy, axes, False)
    return (dx, dweight, dbias)


def nll_loss(emit: Emit, old: fx.Node, args: Args) -> Found | None:
    """``(log p, classes, weight, reduction, ignored)``: ``-sum(log p * one_hot) / labelled``.

    Rows whose class is ``ignored`` count neither above nor below; the sum is not divided.
    """
    logs, classes, weight, reduction, ignored = args
    if weight is not None or reduction == 0 or len(shape_of(logs)) != 2:
        return None
    hot = emit(ops.one_hot.default, classes, shape_of(logs)[1], ignored)
    total = emit(aten.sum.default, emit(aten.mul.Tensor, logs, hot))
    if reduction == 1:
        total = emit(aten.div.Tensor, total, emit(aten.sum.default, hot))
    return (emit(aten.mul.Scalar, total, -1.0), None)


def nll_loss_backward(emit: Emit, old: fx.Node, args: Args) -> Found | None:
    """``(dy, log p, classes, weight, reduction, ignored, total)``: ``-dy/labelled * one_hot``."""
    dy, logs, classes, weight, reduction, ignored = args[:6]
    if weight is not None or reduction == 0 or len(shape_of(logs)) != 2:
        return None
    hot = emit(ops.one_hot.default, classes, shape_of(logs)[1], ignored)
    scale = emit(aten.mul.Scalar, dy, -1.0)
    if reduction == 1:
        scale = emit(aten.div.Tensor, scale, emit(aten.sum.default, hot))
    return emit(aten.mul.Tensor, hot, scale)


def mse_loss(emit: Emit, old: fx.Node, args: Args) -> Found | None:
    """``mean((a - b)^2)``, or the sum."""
    a, b, *rest = args
    reduction = rest[0] if rest else 1
    if reduction == 0:
        return None
    d = emit(aten.sub.Tensor, a, b)
    total = aten.mean.default if reduction == 1 else aten.sum.default
    return emit(total, emit(aten.mul.Tensor, d, d))


def mse_loss_backward(emit: Emit, old: fx.Node, args: Args) -> Found | None:
    """``2 (a - b) dy / n``."""
    dy, a, b, reduction = args
    if reduction == 0:
        return None
    scale = 2.0 / math.prod(shape_of(a)) if reduction == 1 else 2.0
    d = emit(aten.mul.Scalar, emit(aten.sub.Tensor, a, b), scale)
    return emit(aten.mul.Tensor, d, dy)


def convolution_backward(emit: Emit, old: fx.Node, args: Args) -> Found | None:
    """``(dy, x, w, bias, stride, padding, dilation, transposed, out_padding, groups, mask)``.

    dx is a convolution of dy (`input_gradient`), dw stays, ``dbias = sum(dy)``.
    """
    mask, dims = args[10], shape_of(args[2])
    if args[7] or len(dims) != 4:
        return None
    dx = dw = dbias = None
    if mask[0]:
        dx = input_gradient(emit, args)
    if mask[1]:
        found = emit(aten.convolution_backward.default, *args[:10], [False, True, False])
        dw = emit.item(found, 1)
    if mask[2]:
        dbias = emit(aten.sum.dim_IntList, args[0], [0, 2, 3], False)
    return (dx, dw, dbias)


def input_gradient(emit: Emit, args: Args) -> fx.Node:
    """``dx[c] = sum over k, m of w[m, c, k] dy[m]`` shifted by k.

    Stride 1: a convolution of dy with the kernel turned round. Stride s: s*s of them, one for each
    place modulo s, with every s-th kernel row and column, put side by side (no zeros multiplied).
    Where the kernel is dilated too, dy's pixels are put a stride apart first. A kernel of one pixel
    stays as it is: its engine puts zeros between pixels.
    """
    dy, x, w = args[:3]
    stride, padding, dilation = (integers(a, 2) for a in args[4:7])
    groups, kernel = args[9], shape_of(w)[2:]
    turned = _turned(emit, w, groups)
    if stride == (1, 1):
        border = [d * (k - 1) - p for d, k, p in zip(dilation, kernel, padding, strict=True)]
        if min(border) >= 0:
            return emit(
                aten.convolution.default, dy, turned, None, [1, 1], border, list(dilation),
                False, [0, 0], groups,
            )  # fmt: skip
    if dilation != (1, 1):
        found = _apart(emit, (dy, x), turned, (kernel, stride, padding, dilation), groups)
        if found is not None:
            return found
    if dilation != (1, 1) or kernel[0] < stride[0] or kernel[1] < stride[1]:
        found = emit(aten.convolution_backward.default, *args[:10], [True, False, False])
        return emit.item(found, 0)
    return _phases(emit, (dy, x), turned, (kernel, stride, padding), groups)


def _apart(
    emit: Emit,
    maps: tuple[fx.Node, fx.Node],
    turned: fx.Node,
    geometry: tuple[tuple[int, ...], ...],
    groups: int,
) -> fx.Node | None:
    """A dilated convolution of dy with zeros between pixels; None if dy had to be cropped."""
    kernel, stride, padding, dilation = geometry
    apart = emit(ops.apart.default, maps[0], list(stride))
    size, has = shape_of(maps[1])[2:], shape_of(apart)[2:]
    before = [d * (k - 1) - p for d, k, p in zip(dilation, kernel, padding, strict=True)]
    behind = [n - h + p for n, h, p in zip(size, has, padding, strict=True)]
    if min(*before, *behind) < 0:
        return None
    padded = emit(aten.constant_pad_nd.default, apart, [before[1], behind[1], before[0], behind[0]])
    return emit(
        aten.convolution.default, padded, turned, None, [1, 1], [0, 0], list(dilation), False,
        [0, 0], groups,
    )  # fmt: skip


def _turned(emit: Emit, w: fx.Node, groups: int) -> fx.Node:
    """``[g*m, c, kh, kw]`` to ``[g*c, m, kh, kw]``, kernels turned by half a circle."""
    m, c, kh, kw = shape_of(w)
    split = emit(aten.reshape.default, w, [groups, m // groups, c, kh, kw])
    swapped = emit(aten.permute.default, split, [0, 2, 1, 3, 4])
    flat = emit(aten.reshape.default, swapped, [groups * c, m // groups, kh, kw])
    return emit(aten.flip.default, flat, [2, 3])


def _phases(
    emit: Emit,
    maps: tuple[fx.Node, fx.Node],
    turned: fx.Node,
    geometry: tuple[tuple[int, ...], ...],
    groups: int,
) -> fx.Node:
    """The convolutions of a strided input gradient, interleaved and cropped."""
    dy, x = maps
    kernel, stride, padding = geometry
    n, c, *size = shape_of(x)
    count = [(h - 1 + p) // s + 1 for h, p, s in zip(size, padding, stride, strict=True)]
    parts = []
    for ry in range(stride[0]):
        for rx in range(stride[1]):
            sub, border = turned, list[int]()
            for axis, r in ((1, rx), (0, ry)):
                k, s = kernel[axis], stride[axis]
                taps = -(-(k - r) // s)
                first = k - 1 - (r + s * (taps - 1))
                sub = emit(aten.slice.Tensor, sub, 2 + axis, first, k - r, s)
                border += [taps - 1, count[axis] - shape_of(dy)[2 + axis]]
            padded = emit(aten.constant_pad_nd.default, dy, border)
            parts.append(
                emit(
                    aten.convolution.default, padded, sub, None, [1, 1], [0, 0], [1, 1], False,
                    [0, 0], groups,
                )
            )  # fmt: skip
    joined = emit(aten.cat.default, parts, 1)
    split = emit(aten.reshape.default, joined, [n, *stride, c, *count])
    placed = emit(aten.permute.default, split, [0, 3, 4, 1, 5, 2])
    big = [q * s for q, s in zip(count, stride, strict=True)]
    whole = emit(aten.reshape.default, placed, [n, c, *big])
    whole = emit(aten.clone.default, whole, memory_format=torch.channels_last)
    for axis in (0, 1):
        start = padding[axis]
        whole = emit(aten.slice.Tensor, whole, 2 + axis, start, start + size[axis])
    return whole


def safe_softmax(emit: Emit, old: fx.Node, args: Args) -> Found | None:
    """``(x, dim)``: a softmax; where a row is minus infinity throughout torch yields zeros."""
    return emit(aten._softmax.default, args[0], args[1], False)


def embedding_backward(emit: Emit, old: fx.Node, args: Args) -> Found | None:
    """``(dy, indices, rows, padding row, by frequency)``: ``one_hot(indices)^T dy``.

    The gradient of the padding row is zero.
    """
    dy, indices, rows, padding, by_frequency = args
    if by_frequency:
        return None
    count, width = math.prod(shape_of(indices)), shape_of(dy)[-1]
    flat = emit(aten.reshape.default, indices, [count])
    hot = emit(ops.one_hot.default, flat, rows)
    turned = emit(aten.permute.default, hot, [1, 0])
    found = emit(aten.mm.default, turned, emit(aten.reshape.default, dy, [count, width]))
    if padding < 0:
        return found
    ends = (0, padding), (padding + 1, rows)
    kept = [[emit(aten.slice.Tensor, found, 0, a, b)] if a < b else [] for a, b in ends]
    return emit(aten.cat.default, [*kept[0], emit(aten.full.default, [1, width], 0.0), *kept[1]], 0)


def slice_backward(emit: Emit, old: fx.Node, args: Args) -> Found | None:
    """``(dy, sizes, dim, start, stop, step)``: dy between zeros (a part of a split layer)."""
    dy, sizes, dim, start, _, step = args
    if step != 1:
        return None
    count = shape_of(dy)[dim]
    parts = []
    for zeros in (start, sizes[dim] - start - count):
        shape = [zeros if axis == dim else size for axis, size in enumerate(sizes)]
        parts.append([emit(aten.full.default, shape, 0.0)] if zeros else [])
    return emit(aten.cat.default, [*parts[0], dy, *parts[1]], dim)


def joined_selects(emit: Emit, old: fx.Node, args: Args) -> Found | None:
    """The sum of the gradients of all ``x.select(dim, k)``: stacked, not padded and added."""
    if old.kwargs or not all(isinstance(a, fx.Node) for a in args):
        return None
    parts = [part for a in args for part in _selected(a)]
    if None in parts:
        return None
    found = {part.args[3]: part for part in parts if part is not None}
    sizes, dim = next(iter(found.values())).args[1:3]
    alike = all(part.args[1:3] == (sizes, dim) for part in found.values())
    if not alike or len(found) != len(parts) or sorted(found) != list(range(sizes[dim])):
        return None
    return emit(aten.stack.default, [found[k].args[0] for k in range(len(found))], dim)


def _selected(node: fx.Node) -> list[Any]:
    """The gradients of selections that a sum is made of; None for what is none."""
    if node.target is aten.select_backward.default:
        return [node]
    if node.target is aten.add.Tensor and not node.kwargs:
        return [part for a in node.all_input_nodes for part in _selected(a)]
    return [None]


def of_shape(emit: Emit, old: fx.Node, args: Args) -> Found | None:
    """``(dy, x, ...)`` of a pooling: of x only the shape counts, so it need not be saved."""
    dy, x, *rest = args
    if x.op != "placeholder" or not callable(old.target):
        return None
    return emit(old.target, dy, emit(aten.full.default, list(shape_of(x)), 0.0), *rest)


RULES: dict[str, Rule] = {
    "aten.add.Tensor": joined_selects,
    "aten.slice_backward.default": slice_backward,
    "aten._safe_softmax.default": safe_softmax,
    "aten.embedding_dense_backward.default": embedding_backward,
    "aten._native_batch_norm_legit_functional.default": batch_norm,
    "aten.native_batch_norm_backward.default": batch_norm_backward,
    "aten.nll_loss_forward.default": nll_loss,
    "aten.nll_loss_backward.default": nll_loss_backward,
    "aten.mse_loss.default": mse_loss,
    "aten.mse_loss_backward.default": mse_loss_backward,
    "aten.convolution_backward.default": convolution_backward,
    "aten.max_pool2d_with_indices_backward.default": of_shape,
    "aten.avg_pool2d_backward.default": of_shape,
    "aten._adaptive_avg_pool2d_backward.default": of_shape,
}
"""Op name to rule; layer normalisation needs its epsilon (`phases.rules_of`)."""
