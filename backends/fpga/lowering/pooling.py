"""Pooling, and reductions over pixels."""

import dataclasses
import math
from typing import Any, cast

import numpy as np
import torch
from torch import fx

from pipec.backends.fpga.engines.constants import shape_of
from pipec.backends.fpga.engines.network import Builder, UnsupportedError, Value, integers, lowers
from pipec.backends.fpga.engines.parts import Array, Table
from pipec.backends.fpga.engines.reduce import Reduce
from pipec.backends.fpga.engines.swg import Swg
from pipec.backends.fpga.engines.view import View
from pipec.backends.fpga.lowering.maps import Maps, as_maps, like_maps, put_maps, window_of
from pipec.graph.arguments import bind


@lowers("aten.max_pool2d.default")
def max_pool_value(b: Builder, node: fx.Node) -> Value:
    """The maxima of ``max_pool2d(x, kernel, stride, padding, dilation, ceil_mode)``."""
    return pool(b, node, *max_window(b, node), "max")


def max_window(b: Builder, node: fx.Node) -> tuple[Maps, Swg]:
    """The maps of a max pooling, and its window."""
    return _lower_window(b, node, -math.inf, integers(bind(node)["dilation"], 2))


def _lower_window(
    b: Builder, node: fx.Node, border: float, dilation: tuple[int, ...]
) -> tuple[Maps, Swg]:
    maps = as_maps(b, node, node.args[0], spatial=2, around=border)
    kernel = integers(node.args[1], 2)
    stride = integers(bind(node)["stride"] or kernel, 2)
    padding = integers(bind(node)["padding"], 2)
    return maps, window_of(maps, kernel, stride, dilation, padding, shape_of(node)[-2:])


def pool(
    b: Builder, node: fx.Node, maps: Maps, window: Swg, op: str, scale: float = 1.0,
    scales: Table | None = None,
) -> Value:  # fmt: skip
    """A POOL layer behind a window."""
    shape = (window.batch, maps.channels, window.oh, window.ow)
    nest = Reduce(math.prod(shape), window.taps, 1, op=op, scale=scale)
    tables = {"scale": scales}
    found = put_maps(b, node, nest, maps, shape, window=window, tables=tables)
    return found.reshape(shape_of(node))


@lowers("aten.avg_pool2d.default")
def avg_pool(b: Builder, node: fx.Node) -> Value:
    """``avg_pool2d(x, kernel, stride, padding, ceil_mode, count_include_pad, divisor)``."""
    maps, window = _lower_window(b, node, 0.0, (1, 1))
    counts = _counts(node, maps)
    if (counts == counts[0]).all():
        return pool(b, node, maps, window, "sum", 1.0 / float(counts[0]))
    return pool(b, node, maps, window, "sum", 1.0, Table(lambda: np.asarray(1.0 / counts)))


def _counts(node: fx.Node, maps: Maps) -> Array:
    """The divisor of the sum of each window: ``[oh*ow]``, pooled by torch from ones."""
    around, (_, *numbers), op = maps.padding, bind(node).values(), cast("Any", node.target)
    h, w = maps.h + around.top + around.bottom, maps.w + around.left + around.right
    ones = torch.ones(1, 1, h, w, dtype=torch.float64)
    sums = op(ones, *numbers[:-1], 1)
    return np.asarray((sums / op(ones, *numbers)).round().reshape(-1).numpy())


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
    axes, op = bind(node)["dim"], "max" if "amax" in str(node.target) else "sum"
    if axes is None or axes == []:
        if op == "sum":
            whole = reduce_all(b, node)
            return whole.reshape(shape_of(node))
        axes = list(range(rank))
    found = {int(a) % rank for a in (axes if isinstance(axes, list) else [axes])}
    mean = "mean" in str(node.target)
    value = b.value(node.args[0])
    shape = value.view.shape
    if rank == 4 and found == {2, 3}:
        return _global(b, node, op, mean=mean)
    if found == set(range(rank)) - {1 if rank == 4 else rank - 1}:
        value = b.to_standard(node, value)
        channels = value.channels if rank != 4 else shape[1]
        return _append_reduce(b, node, value, View.of((channels,), (0,)), channels, op, mean=mean)
    if rank == 3 and found == {1}:
        value = b.permute(node, value, (0, 1, 2))
        view = View.of((shape[0], shape[2]), (0, 1))
        return _append_reduce(b, node, value, view, shape[2], op, mean=mean)
    kept = [axis for axis in range(rank) if axis not in found]
    window = math.prod(shape[axis] for axis in found)
    value = b.reorder(node, value, View.of(shape, (*kept, *sorted(found))), window)
    view = View.of([shape[axis] for axis in kept], range(len(kept)))
    return _append_reduce(b, node, value, view, 1, op, mean=mean)


@lowers("aten.mean.default", "aten.sum.default")
def reduce_all(b: Builder, node: fx.Node) -> Value:
    """One number of a whole tensor: sums per channel, then over the channels."""
    value, mean = b.value(node.args[0]), "mean" in str(node.target)
    channels, count = value.channels, value.view.numel
    nest, view = Reduce(1, value.rows, channels, op="sum"), View.of((channels,), (0,))
    sums = b.put(nest, node, (value.use(),), view, channels, suffix="_sums")
    nest = Reduce(1, channels, 1, op="sum", scale=1.0 / count if mean else 1.0)
    return b.put(nest, node, (sums.use(1),), View((), ()), 1)


def _global(b: Builder, node: fx.Node, op: str, *, mean: bool = True) -> Value:
    """Over the pixels of maps."""
    maps = as_maps(b, node, node.args[0], spatial=2)
    shape = (maps.batch, maps.channels, 1, 1)
    return _append_reduce(b, node, maps.value, like_maps(maps, shape), maps.channels, op, mean=mean)


def _append_reduce(
    b: Builder, node: fx.Node, value: Value, view: View, channels: int, op: str, *, mean: bool
) -> Value:
    """Over so many rows of ``channels``, one after the other, that ``view`` is left."""
    window = value.view.numel // view.numel
    scale = 1.0 / window if mean else 1.0
    nest = Reduce(view.numel // channels, window, channels, op=op, scale=scale)
    found = b.put(nest, node, (value.use(channels),), view, channels)
    return dataclasses.replace(found, view=view.reshape(shape_of(node)))
