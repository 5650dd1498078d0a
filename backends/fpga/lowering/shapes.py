"""Ops that move or rename elements: views are free, joins and cuts are engines of their own."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import fx

from pipec.backends.fpga.engines.constants import shape_of
from pipec.backends.fpga.engines.memory import Gather
from pipec.backends.fpga.engines.network import (
    Builder,
    Padding,
    UnsupportedError,
    Value,
    lowers,
    row_channels,
)
from pipec.backends.fpga.engines.route import Concat, Const, Slice
from pipec.backends.fpga.engines.steps import MapStep
from pipec.backends.fpga.engines.view import View, merge, standard_order, strides_of
from pipec.backends.fpga.lowering.dense import constant
from pipec.backends.fpga.lowering.maps import pad_around
from pipec.backends.fpga.lowering.types import append_round, format_after, forms_of
from pipec.graph.arguments import bind
from pipec.graph.ir import tensor

_SAME = ("reshape", "view", "_unsafe_view", "squeeze", "unsqueeze", "clone", "alias", "detach",
         "lift_fresh_copy", "_to_copy")  # fmt: skip


@lowers(*(f"aten.{op}.default" for op in _SAME), "aten.squeeze.dim", "aten.squeeze.dims",
        "aten.to.dtype")  # fmt: skip
def reshape(b: Builder, node: fx.Node) -> Value:
    """The same elements in the same order under another shape."""
    source, shape = cast("fx.Node", node.args[0]), shape_of(node)
    before = b.values.get(source)
    maps_stay = len(shape) >= 3 and shape[-2:] == shape_of(source)[-2:]
    if before is not None and before.padding is not None and maps_stay:  # it lies around the maps
        return before.reshape((*shape[:-2], *before.view.shape[-2:]))
    value = b.value(source)
    if node.kwargs.get("memory_format") is torch.channels_last:
        value = b.to_standard(node, value)
    if b.stream_type(node) != value.dtype:
        raise UnsupportedError(f"a conversion from {value.dtype} to {b.stream_type(node)}")
    if tensor(node).dtype is torch.bool is not tensor(source).dtype:
        value = b.put_map(node, value, [MapStep("abs")])
    return value.reshape(shape)


@lowers("aten.expand.default")
def expand(b: Builder, node: fx.Node) -> Value:
    """Repeated along axes of size 1."""
    value, shape = b.value(node.args[0]), shape_of(node)
    if value.view.numel == math.prod(shape):
        return value.reshape(shape)
    return b.broadcast(node, input_value("", shape, standard_order(shape), ""), value)


@lowers("aten.native_dropout.default")
def dropout(b: Builder, node: fx.Node) -> Value:
    """Nothing at inference."""
    if bind(node)["train"]:
        raise UnsupportedError("dropout in training mode", "export the model in eval mode")
    return b.value(node.args[0])


@lowers("aten.permute.default", "aten.transpose.int", "aten.t.default")
def permute(b: Builder, node: fx.Node) -> Value:
    """Another axis order: free unless the stream's axes are mixed."""
    value, op = b.value(node.args[0]), cast("Any", node.target)
    unlike = torch.empty([2 + axis for axis in range(len(value.view.shape))], device="meta")
    order = [size - 2 for size in op(unlike, *node.args[1:]).shape]
    view = value.view.permute(order)
    if view is None:
        value = b.to_standard(node, value)
        view = value.view.permute(order)
        assert view is not None
    return dataclasses.replace(value, view=view)


def pad_axes(b: Builder, node: fx.Node, number: object) -> Value:
    """Padding of the last two axes with a number: made by the next window generator if it can.

    Less than none cuts off.
    """
    sizes = [int(v) for v in cast("list[int]", node.args[1])]
    wanted = float(cast("float", number or 0.0))
    value = b.value(node.args[0], None if min(sizes, default=0) < 0 else wanted)
    for k, (first, last) in enumerate(zip(sizes[::2], sizes[1::2], strict=True), 1):
        axis = len(value.view.shape) - k
        if min(first, last) < 0:
            kept = range(max(-first, 0), value.view.shape[axis] - max(-last, 0))
            value = cut(b, node, value, axis, kept, f"_cut{k}")
    sizes = [max(size, 0) for size in sizes]
    if not any(sizes):
        return value
    if any(sizes[4:]) or len(value.view.shape) < 2:
        raise UnsupportedError("padding of other axes than the last two")
    left, right, top, bottom = (*sizes, 0, 0, 0, 0)[:4]
    old = value.padding or Padding(0, 0, 0, 0, wanted)
    padding = Padding(
        old.top + top, old.left + left, old.bottom + bottom, old.right + right, wanted
    )
    value = dataclasses.replace(value, padding=padding)
    rows = len(value.view.shape) < 4 and (top or bottom)  # which a reader takes for something else
    return pad_around(b, node, value) if rows or len(value.view.shape) < 3 else value


@lowers("aten.cat.default", "aten.concat.default")
def cat(b: Builder, node: fx.Node) -> Value:
    """Concatenation along one axis; each part is in the format of the whole."""
    args = [a for a in cast("list[fx.Node]", node.args[0]) if math.prod(shape_of(a))]
    shape = shape_of(node)
    axis = bind(node)["dim"] % len(shape)
    streams = [b.value(a) for a in args if b.is_stream(a)]
    order = streams[0].view.axis_order() or standard_order(shape)
    own = set().union(*(forms_of(v.edge, b.layers, b.named) for v in streams))
    form = format_after(node, b) or max(own, key=lambda f: f.scale, default=None)
    values = list[Value]()
    for k, a in enumerate(args):
        if not b.is_stream(a):
            values.append(constant_stream(b, a, order))
            continue
        value = b.permute(node, b.value(a), order)
        if form and forms_of(b.value(a).edge, b.layers, b.named) - {form}:
            value = append_round(b, node, value, form, f"_{k}")
        values.append(value)
    return join(b, node, values, axis, order)


def join(
    b: Builder, node: fx.Node, values: Sequence[Value], axis: int,
    order: tuple[int, ...] | None = None,
) -> Value:  # fmt: skip
    """Streams joined along one axis, in an order of axes, that of the first one if None."""
    order = order or values[0].view.axis_order() or standard_order(values[0].view.shape)
    values = [b.permute(node, v, order) for v in values]
    length = sum(v.view.shape[axis] for v in values)
    shape = tuple(length if d == axis else n for d, n in enumerate(values[0].view.shape))
    place = order.index(axis)
    outer = math.prod(shape[d] for d in order[:place])
    sizes = tuple(v.view.numel // outer for v in values)
    channels = values[0].channels
    whole = all(v.channels == channels for v in values) and not any(s % channels for s in sizes)
    out = channels if whole else sum(sizes)
    uses = tuple(v.use(out if whole else s) for v, s in zip(values, sizes, strict=True))
    return b.put(Concat(outer, sizes), node, uses, View.of(shape, order), out)


def constant_stream(b: Builder, arg: fx.Node, order: tuple[int, ...]) -> Value:
    """A constant node as a stream in the given axis order."""
    shape = shape_of(arg)
    channels = row_channels(shape, order)
    table = b.constants.table(arg, shape, order)
    rows = math.prod(shape) // channels
    flat = table.apply(lambda w: w.reshape(rows, channels))
    return b.put(
        Const(rows, channels), arg, (), View.of(shape, order), channels, suffix="_const",
        dtype=b.stream_type(arg), tables={"table": flat},
    )  # fmt: skip


def axis_alone(
    b: Builder, node: fx.Node, value: Value, axis: int, count: int
) -> tuple[Value, int, int, View]:
    """The value with ``axis`` in one piece, reordered if it is not.

    Also how many elements there are outside of the axis and inside, and the view of as many values
    with ``count`` positions on it.
    """
    pieces = value.view.by_axis()
    if pieces is None or [a for a, _, _ in pieces].count(axis) != 1:
        value = b.to_standard(node, value)
        pieces = value.view.by_axis()
        assert pieces is not None
    if value.view.shape[axis] == 1:  # which has no piece, so it gets one where it would stand
        order = standard_order(value.view.shape)
        before = order[: order.index(axis)]
        pieces.insert(sum(a in before for a, _, _ in pieces), (axis, 1, 1))
    place = [a for a, _, _ in pieces].index(axis)
    outer, inner = (math.prod(n for _, n, _ in p) for p in (pieces[:place], pieces[place + 1 :]))
    shape = tuple(count if d == axis else n for d, n in enumerate(value.view.shape))
    strides = strides_of(shape)
    atoms = [(count if a == axis else n, step * strides[a]) for a, n, step in pieces]
    return value, outer, inner, View(shape, merge(atoms))


def cut(b: Builder, node: fx.Node, value: Value, axis: int, part: range, suffix: str = "") -> Value:
    """Positions ``part`` of one axis."""
    size = value.view.shape[axis]
    if len(part) == size:
        return value
    if not part:
        raise UnsupportedError("a part of an axis without a position")
    value, outer, inner, view = axis_alone(b, node, value, axis, len(part))
    rows_stay = inner % value.channels == 0
    channels = value.channels if rows_stay else len(part) * inner
    inputs = (value.use(None if rows_stay else size * inner),)
    nest = Slice(outer, size, part.start, part.stop, part.step, inner)
    return b.put(nest, node, inputs, view, channels, suffix=suffix)


@lowers("aten.slice.Tensor")
def slice_(b: Builder, node: fx.Node) -> Value:
    """``x[start:stop:step]`` along one axis."""
    value, arguments = b.value(node.args[0]), bind(node)
    axis = arguments["dim"] % len(value.view.shape)
    bounds = slice(arguments["start"], arguments["end"], arguments["step"])
    return cut(b, node, value, axis, range(*bounds.indices(value.view.shape[axis])))


@lowers("aten.embedding.default")
def embedding(b: Builder, node: fx.Node) -> Value:
    """``embedding(weight, indices)``, or ``weight[indices]``."""
    weight, index = constant(b, node.args[0], "table"), node.args[1]
    if isinstance(index, list):
        if len(index) > 1 or len(shape_of(weight)) != 2 or not b.is_stream(index[0]):
            raise UnsupportedError("positions other than of the rows of a table")
        (index,) = index
    value = b.to_standard(node, b.value(index))
    if len(value.view.shape) == 4:
        raise UnsupportedError("an embedding of a rank 4 index")
    (entries, channels), shape = shape_of(weight), shape_of(node)
    table = b.constants.table(weight, (entries, channels), (0, 1))
    nest = Gather(math.prod(shape) // channels, channels, entries=entries)
    return b.put(
        nest, node, (value.use(1),), View.of(shape, range(len(shape))), channels,
        dtype=b.stream_type(node), tables={"table": table},
    )  # fmt: skip


def input_value(edge: str, shape: tuple[int, ...], order: tuple[int, ...], dtype: str) -> Value:
    """The value of a stage input that arrives in the given axis order."""
    channels, view = row_channels(shape, order), View.of(shape, order)
    return Value(edge, view.numel // channels, channels, view, dtype)


def output_value(b: Builder, node: fx.Node, value: Value) -> tuple[Value, tuple[int, ...]]:
    """A stage output as a plain permutation of the tensor's axes, and that axis order.

    Its rows are the last axis of that order, whatever rows the last engine writes: the stage that
    reads it (`input_value`) knows the tensor and the order only.
    """
    order = value.view.axis_order()
    if order is None:
        value = b.to_standard(node, value)
        order = standard_order(value.view.shape)
    like = input_value(value.edge, value.view.shape, order, value.dtype)
    return dataclasses.replace(value, rows=like.rows, channels=like.channels), order
