"""Ops that pick or place elements by position."""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as fn

from pipec.frontends.onnx.context import Context, Result, lowering, scalar
from pipec.frontends.onnx.lowerings.casting import narrow, to_ordered, widen
from pipec.frontends.onnx.mini import MOST_ELEMENTS
from pipec.frontends.onnx.refusals import Refused
from pipec.frontends.onnx.values import Value, ints, torch_dtype, type_of
from pipec.graph.arrays import Array


@lowering("Gather", raw=(1,))
def gather(ctx: Context, x: Tensor, index: Value) -> Result:
    """Slices at positions along an axis; negative positions count from the end."""
    axis = ctx.attr("axis", 0) % x.dim()
    if isinstance(index, np.ndarray) and index.ndim == 0:
        return x.select(axis, int(index))
    places = ctx.tensor(index).to(torch.int64)
    # as one place of a row, or torch would ask for its number
    row = places.reshape(1) if places.dim() == 0 else places
    picked = narrow(widen(x)[(slice(None),) * axis + (row,)], x)
    return picked if row is places else picked.squeeze(axis)


def _wrap(index: Tensor, size: int) -> Tensor:
    """Positions with negative ones counted from the end, for ops that do not do so."""
    index = index.to(torch.int64)
    return torch.where(index < 0, index + size, index)


@lowering("GatherElements")
def gather_elements(ctx: Context, x: Tensor, index: Tensor) -> Result:
    """Single elements along an axis."""
    axis = ctx.attr("axis", 0) % x.dim()
    return narrow(widen(x).gather(axis, _wrap(index, x.shape[axis])), x)


@lowering("GatherND")
def gather_nd(ctx: Context, x: Tensor, index: Tensor) -> Result:
    """Slices at tuples of positions, after some batch dimensions."""
    batch, index = ctx.attr("batch_dims", 0), index.to(torch.int64)
    rank = index.dim()
    grid = [
        ctx.tensor(np.arange(x.shape[k]).reshape([-1 if d == k else 1 for d in range(rank - 1)]))
        for k in range(batch)
    ]
    picks = (*grid, *index.unbind(-1))
    return narrow(widen(x)[picks], x)


_REDUCE = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


@lowering("Scatter", "ScatterElements")
def scatter_elements(ctx: Context, x: Tensor, index: Tensor, updates: Tensor) -> Result:
    """Single elements replaced, or combined with what was there."""
    axis, how = ctx.attr("axis", 0) % x.dim(), ctx.attr("reduction", "none")
    places, wide = _wrap(index, x.shape[axis]), widen(x)
    if how == "none":
        return narrow(wide.scatter(axis, places, widen(updates)), x)
    return narrow(wide.scatter_reduce(axis, places, widen(updates), _REDUCE[how]), x)


@lowering("ScatterND")
def scatter_nd(ctx: Context, x: Tensor, index: Tensor, updates: Tensor) -> Result:
    """Slices at tuples of positions replaced, or combined with what was there."""
    how, index = ctx.attr("reduction", "none"), index.to(torch.int64)
    picks, wide, new = index.unbind(-1), widen(x), widen(updates)
    if how in ("none", "add"):
        return narrow(wide.index_put(picks, new, accumulate=how == "add"), x)
    depth = index.shape[-1]
    flat = torch.zeros_like(picks[0])
    for pick, size in zip(picks, x.shape[:depth], strict=True):
        flat = flat * size + _wrap(pick, size)
    rows = wide.reshape(-1, *x.shape[depth:])
    values = new.reshape(-1, *x.shape[depth:])
    shape = (-1,) + (1,) * (values.dim() - 1)
    where = flat.reshape(shape).expand(values.shape)
    return narrow(rows.scatter_reduce(0, where, values, _REDUCE[how]).reshape(x.shape), x)


@lowering("TensorScatter")
def tensor_scatter(ctx: Context, cache: Tensor, new: Tensor, start: Tensor | None = None) -> Result:
    """New entries of a cache, from a position per batch item on; circular if asked."""
    axis = ctx.attr("axis", -2) % cache.dim()
    steps = ctx.tensor(np.arange(new.shape[axis]))
    shape = [1] * cache.dim()
    shape[axis] = -1
    where = steps.reshape(shape)
    if start is not None:
        where = where + start.to(torch.int64).reshape([-1] + [1] * (cache.dim() - 1))
    if ctx.attr("mode", "linear") == "circular":
        where = where % cache.shape[axis]
    return cache.scatter(axis, where.expand(new.shape), new)


@lowering("OneHot", known=(1,))
def one_hot(ctx: Context, index: Tensor, depth: Array, values: Tensor) -> Result:
    """A row with one special entry per position; none where the position is out of range."""
    size, axis = int(scalar(depth)), ctx.attr("axis", -1)
    if size > MOST_ELEMENTS:
        raise Refused(f"a row of {size} entries per position", final=True)
    index = _wrap(index, size)
    axis += index.dim() + 1 if axis < 0 else 0
    steps = ctx.tensor(np.arange(size))
    hot = index.unsqueeze(-1) == steps
    wide = widen(values)
    return narrow(torch.where(hot, wide[1], wide[0]).movedim(-1, axis), values)


@lowering("TopK", known=(1,))
def top_k(ctx: Context, x: Tensor, k: Array | None = None) -> Result:
    """The largest or smallest elements along an axis and their positions; of equals the first."""
    count = int(ctx.attr("k") if k is None else scalar(k))
    axis, largest = ctx.attr("axis", -1), bool(ctx.attr("largest", 1))
    wide = to_ordered(x) if x.dtype == torch.uint64 else widen(x)
    values, index = torch.sort(wide, dim=axis, descending=largest, stable=True)
    values, index = values.narrow(axis, 0, count), index.narrow(axis, 0, count)
    return narrow(to_ordered(values) if x.dtype == torch.uint64 else values, x), index


@lowering("Compress", known=(1,))
def compress(ctx: Context, x: Tensor, condition: Array) -> Result:
    """The slices that a known condition selects."""
    places = np.flatnonzero(condition)
    axis = ctx.attr("axis")
    source = x.reshape(-1) if axis is None else x
    return narrow(widen(source).index_select(axis or 0, ctx.tensor(places)), x)


@lowering("EyeLike")
def eye_like(ctx: Context, x: Tensor) -> Result:
    """Ones on a diagonal."""
    rows, columns = x.shape
    array = np.eye(rows, columns, ctx.attr("k", 0), dtype=np.float32)
    dtype = torch_dtype(ctx.attr("dtype")) if ctx.has("dtype") else x.dtype
    return ctx.tensor(array).to(dtype)


@lowering("Range", known=(0, 1, 2))
def range_(ctx: Context, start: Array, limit: Array, delta: Array) -> Result:
    """Numbers at equal distances: integers that depend on a size, others are folded."""
    first, end, step = ints(start), ints(limit), ints(delta)
    if start.dtype.kind != "i" or abs(end[0] - first[0]) > MOST_ELEMENTS:
        raise Refused(f"from {first} to {end} by {step}: too many numbers")
    dtype = torch_dtype(type_of(start).dtype)
    return torch.arange(first[0], end[0], step[0], dtype=dtype)


@lowering("GridSample")
def grid_sample(ctx: Context, x: Tensor, grid: Tensor) -> Result:
    """Samples at fractional positions."""
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(
        found := ctx.attr("mode", "linear"), found
    )
    if mode == "bicubic" and x.dim() != 4:
        raise Refused("cubic samples of other than 4 dimensions")
    padding, aligned = ctx.attr("padding_mode", "zeros"), bool(ctx.attr("align_corners", 0))
    return fn.grid_sample(x, grid, mode, padding, aligned)


@lowering("AffineGrid", known=(1,))
def affine_grid(ctx: Context, theta: Tensor, size: Array) -> Result:
    """Positions that an affine map gives."""
    return fn.affine_grid(theta, ints(size), bool(ctx.attr("align_corners", 0)))


@lowering("Col2Im", known=(1, 2))
def col2im(ctx: Context, x: Tensor, shape: Array, block: Array) -> Result:
    """Columns summed back into a plane."""
    sizes, kernel = tuple(ints(shape)), tuple(ints(block))
    pads = tuple(ctx.attr("pads") or (0,) * (2 * len(sizes)))
    if len(sizes) != 2 or pads[:2] != pads[2:]:
        raise Refused("other than two dimensions with equal pads on both sides")
    dilations, strides = ctx.attr("dilations") or 1, ctx.attr("strides") or 1
    return fn.fold(x, sizes, kernel, dilations, pads[:2], strides)
