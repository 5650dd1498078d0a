"""Ops that move elements and compute nothing."""

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as fn

from pipec.frontends.onnx.context import Context, Result, lowering, scalar
from pipec.frontends.onnx.lowerings.casting import narrow, widen
from pipec.frontends.onnx.refusals import Refused
from pipec.frontends.onnx.values import ints
from pipec.graph.arrays import Array


def axes_of(ctx: Context, given: Array | None, rank: int) -> list[int] | None:
    """Axes from an input or, in older opsets, from the attribute; non-negative, None if absent.

    Raises:
        Refused: One lies outside the tensor.
    """
    axes = ctx.attr("axes") if given is None else ints(given)
    if axes is None:
        return None
    if any(not -rank <= a < rank for a in axes):
        raise Refused(f"axes {list(axes)} of a tensor of {rank} dimensions")
    return [a % rank for a in axes]


@lowering("Reshape", known=(1,))
def reshape(ctx: Context, x: Tensor, shape: Array | None = None) -> Result:
    """Another shape; 0 copies a dimension (unless ``allowzero``), -1 is what is left."""
    sizes = list(ctx.attr("shape", [])) if shape is None else ints(shape)
    if not ctx.attr("allowzero", 0):
        if any(s == 0 and k >= x.dim() for k, s in enumerate(sizes)):
            raise Refused(f"shape {sizes} copies a dimension that the input lacks")
        sizes = [x.shape[k] if s == 0 else s for k, s in enumerate(sizes)]
    return x.reshape(sizes)


@lowering("Flatten")
def flatten(ctx: Context, x: Tensor) -> Result:
    """Two dimensions: those before ``axis`` and the rest."""
    axis = ctx.attr("axis", 1)
    axis += x.dim() if axis < 0 else 0
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


@lowering("Transpose")
def transpose(ctx: Context, x: Tensor) -> Result:
    """Dimensions in another order; reversed by default."""
    return x.permute(tuple(ctx.attr("perm") or range(x.dim())[::-1]))


@lowering("Squeeze", known=(1,))
def squeeze(ctx: Context, x: Tensor, axes: Array | None = None) -> Result:
    """Without the given dimensions of size 1, or without all of them."""
    found = axes_of(ctx, axes, x.dim())
    if found is None:
        return x.squeeze()
    if any(x.shape[a] != 1 for a in found):
        raise Refused(f"axes {found} of shape {list(x.shape)} are not all of size 1")
    return x.squeeze(tuple(found))


@lowering("Unsqueeze", known=(1,))
def unsqueeze(ctx: Context, x: Tensor, axes: Array | None = None) -> Result:
    """With dimensions of size 1 at the given places of the result."""
    count = len(ctx.attr("axes", []) if axes is None else ints(axes))
    for axis in sorted(axes_of(ctx, axes, x.dim() + count) or []):
        x = x.unsqueeze(axis)
    return x


@lowering("Expand", known=(1,))
def expand(_: Context, x: Tensor, shape: Array) -> Result:
    """Broadcast against a shape, both ways."""
    return x.expand(torch.broadcast_shapes(tuple(x.shape), tuple(ints(shape))))


@lowering("Tile", known=(1, 2))
def tile(ctx: Context, x: Tensor, repeats: Array, axis: Array | None = None) -> Result:
    """Copies side by side; the first opset repeats along one axis."""
    counts = ints(repeats)
    if ctx.version < 6 and axis is not None:
        counts = [counts[0] if k == int(scalar(axis)) else 1 for k in range(x.dim())]
    if len(counts) != x.dim():
        raise Refused(f"{len(counts)} repeats for {x.dim()} dimensions", final=True)
    return x.repeat(counts)


@lowering("Concat")
def concat(ctx: Context, *parts: Tensor) -> Result:
    """Parts along an axis."""
    return torch.cat(parts, ctx.attr("axis", 1))


@lowering("Split", known=(1,))
def split(ctx: Context, x: Tensor, sizes: Array | None = None) -> Result:
    """Parts along an axis; without sizes equal ones, the last one smaller."""
    axis = ctx.attr("axis", 0)
    given = ctx.attr("split") if sizes is None else ints(sizes)
    if given is None:
        count = ctx.attr("num_outputs", len(ctx.node.output))
        each = -(-x.shape[axis] // count)
        given = [each] * (count - 1) + [x.shape[axis] - each * (count - 1)]
    return tuple(torch.split(x, list(given), axis))


@lowering("Slice", known=(1, 2, 3, 4))
def slice_(
    ctx: Context,
    x: Tensor,
    starts: Array | None = None,
    ends: Array | None = None,
    axes: Array | None = None,
    steps: Array | None = None,
) -> Result:
    """A range with a step per axis; attributes before opset 10."""
    first = ctx.attr("starts", []) if starts is None else ints(starts)
    last = ctx.attr("ends", []) if ends is None else ints(ends)
    where = axes_of(ctx, axes, x.dim())
    where = list(range(len(first))) if where is None else where
    step = [1] * len(first) if steps is None else ints(steps)
    for axis, a, b, s in zip(where, first, last, step, strict=True):
        x = _slice(ctx, x, axis, range(x.shape[axis])[_range(a, b, s, x.shape[axis])])
    return x


def _range(start: int, end: int, step: int, size: int) -> slice:
    """A Python slice: a negative step may end with the first element, as at the largest number."""
    if step > 0:
        return slice(start, end, step)
    ends = (2**31 - 1, 2**63 - 1)  # of either side: older opsets have no other
    return slice(max(start, -size), None if end < -size or end in ends else end, step)


def _slice(ctx: Context, x: Tensor, axis: int, places: range) -> Tensor:
    if len(places) == x.shape[axis] and places.step == 1:
        return x
    if places.step > 0:
        sliced: Tensor = torch.ops.aten.slice.Tensor(
            x, axis, places.start, max(places.stop, places.start), places.step
        )
        return sliced
    if len(places) == x.shape[axis]:
        return narrow(widen(x).flip(axis), x)
    return narrow(widen(x).index_select(axis, ctx.tensor(np.array(places, np.int64))), x)


@lowering("Pad", known=(1, 2, 3))
def pad(
    ctx: Context,
    x: Tensor,
    pads: Array | None = None,
    value: Array | None = None,
    axes: Array | None = None,
) -> Result:
    """Borders of a constant, of the edge, mirrored or wrapped around; negative pads crop."""
    amounts = ctx.attr("pads", ctx.attr("paddings", [])) if pads is None else ints(pads)
    where = list(range(x.dim())) if axes is None else [a % x.dim() for a in ints(axes)]
    begin, end = [0] * x.dim(), [0] * x.dim()
    for k, axis in enumerate(where):
        begin[axis], end[axis] = amounts[k], amounts[k + len(where)]
    fill, mode = scalar(value, ctx.attr("value", 0.0)), ctx.attr("mode", "constant")
    if mode == "constant":
        return _constant_pad(x, begin, end, fill)
    for axis in range(x.dim()):
        x = _pad_border(ctx, x, axis, (begin[axis], end[axis]), mode)
    return x


def _constant_pad(x: Tensor, begin: list[int], end: list[int], fill: float) -> Tensor:
    flat = [n for pair in reversed(list(zip(begin, end, strict=True))) for n in pair]
    while len(flat) > 2 and flat[-2:] == [0, 0]:
        flat = flat[:-2]
    if not any(flat):
        return x
    if x.dtype == torch.bool:
        return fn.pad(x.to(torch.uint8), flat, value=float(bool(fill))).to(torch.bool)
    number = fill if x.is_floating_point() else int(fill)
    return narrow(fn.pad(widen(x), flat, value=number), x)


def _pad_border(ctx: Context, x: Tensor, axis: int, pads: tuple[int, int], mode: str) -> Tensor:
    if pads == (0, 0):
        return x
    if mode not in ("reflect", "edge", "wrap"):
        raise Refused(f"mode {mode!r}")
    places = np.arange(x.shape[axis])
    places = places[max(0, -pads[0]) : x.shape[axis] - max(0, -pads[1])]
    places = np.pad(places, (max(0, pads[0]), max(0, pads[1])), mode=mode)  # type: ignore[call-overload]
    return narrow(widen(x).index_select(axis, ctx.tensor(places)), x)


@lowering("DepthToSpace")
def depth_to_space(ctx: Context, x: Tensor) -> Result:
    """Blocks of channels spread over space; ``DCR`` or ``CRD`` order."""
    n, c, h, w = x.shape
    b = ctx.attr("blocksize")
    if ctx.attr("mode", "DCR") == "DCR":
        y = x.reshape(n, b, b, c // (b * b), h, w).permute(0, 3, 4, 1, 5, 2)
        return y.reshape(n, c // (b * b), h * b, w * b)
    return fn.pixel_shuffle(x, b)


@lowering("SpaceToDepth")
def space_to_depth(ctx: Context, x: Tensor) -> Result:
    """Blocks of space stacked as channels; ``DCR`` or ``CRD`` order."""
    n, c, h, w = x.shape
    b = ctx.attr("blocksize")
    y = x.reshape(n, c, h // b, b, w // b, b)
    order = (0, 3, 5, 1, 2, 4) if ctx.attr("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    return y.permute(order).reshape(n, c * b * b, h // b, w // b)


@lowering("Trilu", known=(1,))
def trilu(ctx: Context, x: Tensor, k: Array | None = None) -> Result:
    """The upper or lower triangle, zeros elsewhere."""
    function = torch.triu if ctx.attr("upper", 1) else torch.tril
    return narrow(function(widen(x), int(scalar(k, 0))), x)


@lowering("ReverseSequence", known=(1,))
def reverse_sequence(ctx: Context, x: Tensor, lengths: Array) -> Result:
    """The first elements of every batch item in reverse order."""
    time, batch = ctx.attr("time_axis", 0), ctx.attr("batch_axis", 1)
    steps = np.arange(x.shape[time])[:, None]
    sizes = np.array(ints(lengths))[None]
    places = np.where(steps < sizes, sizes - 1 - steps, steps)
    y = x.movedim((time, batch), (0, 1))
    picked = y[ctx.tensor(places), ctx.tensor(np.arange(x.shape[batch])[None])]
    return picked.movedim((0, 1), (time, batch))
