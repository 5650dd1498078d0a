"""Pooling, and reductions over pixels."""

import dataclasses
import math
from typing import cast

import numpy as np
from torch import fx

from pipec.backends.fpga.lowering.borders import made_for_windows
from pipec.backends.fpga.lowering.constants import shape_of
from pipec.backends.fpga.lowering.layers import Array, Pool, RowReduce, Table, Use, Window
from pipec.backends.fpga.lowering.maps import Maps, as_maps, maps_value, window_of
from pipec.backends.fpga.lowering.network import (
    Builder,
    UnsupportedError,
    Value,
    argument,
    integers,
    lowers,
)
from pipec.backends.fpga.lowering.view import View


@lowers("aten.max_pool2d.default")
def max_pool(b: Builder, node: fx.Node) -> Value:
    """``max_pool2d(x, kernel, stride, padding, dilation, ceil_mode)``."""
    return max_pool_value(b, node)


def max_pool_value(b: Builder, node: fx.Node) -> Value:
    """The maxima of ``max_pool2d`` or ``max_pool2d_with_indices``."""
    maps, window = pooled(b, node)
    return pool(b, node, maps, window, "max")


def pooled(b: Builder, node: fx.Node) -> tuple[Maps, Window]:
    """What a max pooling slides over, and its window."""
    made_for_windows(b, cast("fx.Node", node.args[0]), -math.inf)
    maps = as_maps(b, node, node.args[0], spatial=2)
    kernel = integers(node.args[1], 2)
    stride = integers(argument(node, 2, "stride") or kernel, 2)
    padding = integers(argument(node, 3, "padding", 0), 2)
    dilation = integers(argument(node, 4, "dilation", 1), 2)
    return maps, window_of(maps, kernel, stride, dilation, padding, shape_of(node)[-2:])


def _borders(maps: Maps) -> tuple[int, int, int, int]:
    p = maps.padding
    return (p.top, p.left, p.bottom, p.right)


def pool(
    b: Builder,
    node: fx.Node,
    maps: Maps,
    window: Window,
    op: str,
    scale: float = 1.0,
    scales: Table | None = None,
) -> Value:
    """A POOL layer behind a window."""
    layer = Pool(
        **b.facts(node),
        inputs=(maps.value.use(maps.channels),),
        rows=window.batch * window.oh * window.ow,
        channels=maps.channels,
        window=window,
        op=op,
        scale=scale,
        scales=scales,
    )
    shape = (window.batch, maps.channels, window.oh, window.ow)
    found = maps_value(b.add(layer), maps, shape, keep_order=True)
    return dataclasses.replace(found, view=found.view.reshape(shape_of(node)))


@lowers("aten.avg_pool2d.default")
def avg_pool(b: Builder, node: fx.Node) -> Value:
    """``avg_pool2d(x, kernel, stride, padding, ceil_mode, count_include_pad, divisor)``."""
    made_for_windows(b, cast("fx.Node", node.args[0]), 0.0)
    maps = as_maps(b, node, node.args[0], spatial=2)
    kernel = integers(node.args[1], 2)
    stride = integers(argument(node, 2, "stride") or kernel, 2)
    padding = integers(argument(node, 3, "padding", 0), 2)
    window = window_of(maps, kernel, stride, (1, 1), padding, shape_of(node)[-2:])
    counts = _counts(
        maps, window, padding, include=bool(argument(node, 5, "count_include_pad", True))
    )
    divisor = cast("int | None", argument(node, 6, "divisor_override"))
    if divisor is not None:
        counts = np.full_like(counts, divisor)
    if (counts == counts[0]).all():
        return pool(b, node, maps, window, "sum", 1.0 / float(counts[0]))
    return pool(b, node, maps, window, "sum", 1.0, Table(lambda: np.asarray(1.0 / counts)))


def _counts(maps: Maps, window: Window, padding: tuple[int, ...], *, include: bool) -> Array:
    """Elements that each window averages over: ``[oh*ow]``.

    With ``include`` the op's own padding counts, but not what ``ceil_mode`` adds behind it.
    """
    t, left, bottom, right = _borders(maps)
    counts = []
    for size, extra, pad, k, step, out in (
        (maps.h, (t, bottom), padding[0], window.kh, window.sh, window.oh),
        (maps.w, (left, right), padding[1], window.kw, window.sw, window.ow),
    ):
        low = -extra[0] - (pad if include else 0)
        high = size + extra[1] + (pad if include else 0)
        start = np.arange(out) * step - pad - extra[0]
        counts.append(np.minimum(start + k, high) - np.maximum(start, low))
    return np.asarray(np.outer(*counts).reshape(-1))


@lowers("aten.adaptive_avg_pool2d.default", "aten._adaptive_avg_pool2d.default")
def adaptive_avg_pool(b: Builder, node: fx.Node) -> Value:
    """Average pooling to a given size that divides the maps."""
    out = integers(node.args[1], 2)
    if out == (1, 1):
        return _global(b, node, "sum")
    maps = as_maps(b, node, node.args[0], spatial=2)
    if maps.h % out[0] or maps.w % out[1]:
        raise UnsupportedError(f"adaptive pooling of {maps.h} x {maps.w} to {out[0]} x {out[1]}")
    kernel = (maps.h // out[0], maps.w // out[1])
    window = window_of(maps, kernel, kernel, (1, 1), (0, 0), out)
    return pool(b, node, maps, window, "sum", 1.0 / math.prod(kernel))


@lowers("aten.mean.dim", "aten.sum.dim_IntList", "aten.amax.default")
def reduce_axes(b: Builder, node: fx.Node) -> Value:
    """Reduction over any axes; fastest over pixels, the rows of each item, or all but channels."""
    rank = len(shape_of(cast("fx.Node", node.args[0])))
    axes = argument(node, 1, "dim")
    if axes is None or axes == []:
        axes = list(range(rank))
    found = {int(a) % rank for a in cast("list[int]", axes if isinstance(axes, list) else [axes])}
    op = "max" if "amax" in str(node.target) else "sum"
    mean = "mean" in str(node.target)
    if rank == 4 and found == {2, 3}:
        return _global(b, node, op, mean=mean)
    if found == set(range(rank)) - {1 if rank == 4 else rank - 1}:
        return _per_channel(b, node, op, mean=mean)
    if rank == 3 and found == {1}:
        return _over_rows(b, node, op, mean=mean)
    return _innermost(b, node, found, op, mean=mean)


@lowers("aten.mean.default", "aten.sum.default")
def reduce_all(b: Builder, node: fx.Node) -> Value:
    """One number of a whole tensor: sums per channel, then over the channels."""
    value, mean = b.value(node.args[0]), "mean" in str(node.target)
    sums, count = b.facts(node, "_sums"), value.view.numel
    partial = RowReduce(
        **sums,
        inputs=(value.use(),),
        rows=1,
        channels=value.channels,
        window=value.rows,
        op="sum",
    )
    edge = b.add(partial)
    whole = RowReduce(
        **b.facts(node),
        inputs=(Use(edge, value.channels, 1, value.dtype),),
        rows=1,
        channels=1,
        window=value.channels,
        op="sum",
        scale=1.0 / count if mean else 1.0,
    )
    return Value(b.add(whole), 1, 1, View((), ()), value.dtype)


def _per_channel(b: Builder, node: fx.Node, op: str, *, mean: bool) -> Value:
    """Over all axes but the channels'."""
    value = b.standard(node, b.value(node.args[0]))
    channels = value.channels if len(value.view.shape) != 4 else value.view.shape[1]
    rows = value.view.numel // channels
    edge = _row_reduce(b, node, value, 1, (op, 1.0 / rows if mean else 1.0))
    return Value(edge, 1, channels, View.of((channels,), (0,)).reshape(shape_of(node)), value.dtype)


def _global(b: Builder, node: fx.Node, op: str, *, mean: bool = True) -> Value:
    maps = as_maps(b, node, node.args[0], spatial=2)
    pixels = maps.h * maps.w
    edge = _row_reduce(b, node, maps.value, maps.batch, (op, 1.0 / pixels if mean else 1.0))
    shape = (maps.batch, maps.channels, 1, 1)
    value = maps_value(edge, maps, shape, keep_order=True)
    return Value(edge, value.rows, value.channels, value.view.reshape(shape_of(node)), value.dtype)


def _over_rows(b: Builder, node: fx.Node, op: str, *, mean: bool) -> Value:
    value = b.value(node.args[0])
    n, rows, channels = value.view.shape
    value = b.reorder(node, value, View.of(value.view.shape, (0, 1, 2)), channels)
    edge = _row_reduce(b, node, value, n, (op, 1.0 / rows if mean else 1.0))
    view = View.of((n, channels), (0, 1)).reshape(shape_of(node))
    return Value(edge, n, channels, view, value.dtype)


def _innermost(b: Builder, node: fx.Node, axes: set[int], op: str, *, mean: bool) -> Value:
    """Over axes that are put innermost: one element after the other."""
    value = b.value(node.args[0])
    shape = value.view.shape
    kept = [axis for axis in range(len(shape)) if axis not in axes]
    window = math.prod(shape[axis] for axis in axes)
    value = b.reorder(node, value, View.of(shape, (*kept, *sorted(axes))), window)
    rows = value.view.numel // window
    layer = RowReduce(
        **b.facts(node),
        inputs=(Use(value.edge, value.view.numel, 1, value.dtype),),
        rows=rows,
        channels=1,
        window=window,
        op=op,
        scale=1.0 / window if mean else 1.0,
    )
    left = tuple(shape[axis] for axis in kept)
    view = View.of(left, tuple(range(len(left)))).reshape(shape_of(node))
    return Value(b.add(layer), rows, 1, view, value.dtype)


def _row_reduce(b: Builder, node: fx.Node, value: Value, n: int, what: tuple[str, float]) -> str:
    channels = value.view.shape[1] if len(value.view.shape) == 4 else value.view.shape[-1]
    op, scale = what
    layer = RowReduce(
        **b.facts(node),
        inputs=(value.use(channels),),
        rows=n,
        channels=channels,
        window=value.view.numel // channels // n,
        op=op,
        scale=scale if op == "sum" else 1.0,
    )
    return b.add(layer)
