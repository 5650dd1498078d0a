"""Ops that move values around at compile time and never become a node of the graph.

They work on known and traced values alike: shapes are static, sequences and optionals are Python
lists and None, and control flow on known conditions and counts is run while tracing.
"""

import math
from collections.abc import Callable

import numpy as np
import onnx
import torch
from torch import Tensor

from pipec.frontends.onnx.context import Context, Result, scalar
from pipec.frontends.onnx.refusals import Refused
from pipec.frontends.onnx.values import (
    LARGEST_CONSTANT,
    Value,
    array_of,
    ints,
    is_known,
    proto_array,
)
from pipec.graph.arrays import Array

Structural = Callable[..., Result]
STRUCTURAL: dict[str, Structural] = {}
"""Op type (standard domain) to what runs it."""


def structural(*names: str) -> Callable[[Structural], Structural]:
    """Register a function as the meaning of structural ops."""

    def register(function: Structural) -> Structural:
        STRUCTURAL.update(dict.fromkeys(names, function))
        return function

    return register


def dims(value: Value) -> tuple[int, ...]:
    """The shape of a known or traced tensor.

    Raises:
        Refused: It is no tensor.
    """
    return tuple((value if isinstance(value, Tensor) else array_of(value)).shape)


_CONSTANTS: dict[str, type] = {
    "value_int": np.int64,
    "value_float": np.float32,
    "value_string": object,
    "value_ints": np.int64,
    "value_floats": np.float32,
    "value_strings": object,
}
"""Attributes of plain values to the element type of their arrays."""


@structural("Constant")
def constant(ctx: Context) -> Result:
    """The tensor in the node's attribute, in any of its forms."""
    for a in ctx.node.attribute:
        if a.name in _CONSTANTS:
            return np.array(ctx.attr(a.name), _CONSTANTS[a.name])
        if a.name == "value":
            return proto_array(a.t)
        if a.name == "sparse_value":
            return _dense(a.sparse_tensor)
    raise Refused("it has no value attribute")


def _dense(sparse: onnx.SparseTensorProto) -> Array:
    values, indices = proto_array(sparse.values), proto_array(sparse.indices)
    if math.prod(sparse.dims) > LARGEST_CONSTANT:
        raise Refused(f"a sparse constant of {math.prod(sparse.dims)} elements")
    dense = np.zeros(tuple(sparse.dims), values.dtype)
    where = indices if indices.ndim == 1 else np.ravel_multi_index(tuple(indices.T), dense.shape)
    dense.reshape(-1)[where] = values
    return dense


@structural("ConstantOfShape")
def constant_of_shape(ctx: Context, shape: Value) -> Result:
    """One value everywhere; takes no memory until a node wants it as a tensor."""
    sizes = tuple(ints(shape))
    if math.prod(sizes) > LARGEST_CONSTANT or any(s < 0 for s in sizes):
        raise Refused(f"a constant of shape {list(sizes)}")
    value = np.zeros(1, np.float32)
    if ctx.has("value"):
        value = proto_array(ctx.attr("value")).reshape(-1)[:1]
    return np.broadcast_to(value, sizes) if sizes else value.reshape(())


@structural("Identity", "Optional")
def identity(_: Context, x: Value = None) -> Result:
    """The value itself, None for an empty optional; the graph gets no node for it."""
    return x


@structural("Shape")
def shape_of(ctx: Context, x: Value) -> Result:
    """The static shape, or a part of it."""
    sizes = dims(x)
    return np.array(sizes[ctx.attr("start", 0) : ctx.attr("end", len(sizes))], np.int64)


@structural("Size")
def size_of(_: Context, x: Value) -> Result:
    """The number of elements."""
    return np.array(math.prod(dims(x)), np.int64)


@structural("SequenceConstruct", "SequenceEmpty")
def sequence_construct(_: Context, *items: Value) -> Result:
    """A list of its inputs."""
    return list(items)


def _items(sequence: Value, *, filled: bool = False) -> list[Value]:
    if not isinstance(sequence, list):
        raise Refused("a tensor where a sequence is wanted")
    if filled and not sequence:
        raise Refused("the sequence is empty")
    return sequence


def _position(sequence: list[Value], value: Value, last: int) -> int:
    position = int(scalar(array_of(value)))
    if not -len(sequence) <= position <= last:
        raise Refused(f"position {position} is outside a sequence of {len(sequence)}")
    return position + len(sequence) if position < 0 else position


@structural("SequenceAt")
def sequence_at(_: Context, sequence: Value, position: Value) -> Result:
    """One item of a sequence."""
    items = _items(sequence, filled=True)
    return items[_position(items, position, len(items) - 1)]


@structural("SequenceInsert")
def sequence_insert(_: Context, sequence: Value, item: Value, position: Value = None) -> Result:
    """A longer sequence; the item goes to the end where no position is given."""
    items = list(_items(sequence))
    end = len(items)
    items.insert(end if position is None else _position(items, position, end), item)
    return items


@structural("SequenceErase")
def sequence_erase(_: Context, sequence: Value, position: Value = None) -> Result:
    """A shorter sequence; the last item goes where no position is given."""
    items = list(_items(sequence, filled=True))
    del items[-1 if position is None else _position(items, position, len(items) - 1)]
    return items


@structural("SequenceLength")
def sequence_length(_: Context, sequence: Value) -> Result:
    """The number of items."""
    return np.array(len(_items(sequence)), np.int64)


@structural("OptionalHasElement")
def optional_has_element(_: Context, x: Value = None) -> Result:
    """Whether there is a value."""
    return np.array(x is not None)


@structural("OptionalGetElement")
def optional_get_element(_: Context, x: Value) -> Result:
    """The value of an optional that has one."""
    if x is None:
        raise Refused("the optional is empty")
    return x


@structural("SplitToSequence")
def split_to_sequence(ctx: Context, x: Value, split: Value = None) -> Result:
    """Parts along an axis: of one size, of given sizes, or single slices."""
    axis = ctx.attr("axis", 0)
    total = dims(x)[axis]
    sizes = [1] * total
    if split is not None:
        given = array_of(split)
        sizes = ints(given)
        if given.ndim == 0:
            whole, rest = divmod(total, sizes[0])
            sizes = [sizes[0]] * whole + [rest] * (rest > 0)
    ends = np.cumsum(sizes).tolist()
    parts = [part(x, axis, end - n, n) for end, n in zip(ends, sizes, strict=True)]
    if split is None and not ctx.attr("keepdims", 1):
        return [(p if isinstance(p, Tensor) else array_of(p)).squeeze(axis) for p in parts]
    return parts


def part(x: Value, axis: int, start: int, length: int) -> Value:
    """Some positions of a value along an axis."""
    at = range(start, start + length)
    return x.narrow(axis, start, length) if isinstance(x, Tensor) else array_of(x).take(at, axis)


@structural("ConcatFromSequence")
def concat_from_sequence(ctx: Context, sequence: Value) -> Result:
    """The items joined along an axis, an existing one or a new one."""
    items, new = _items(sequence, filled=True), bool(ctx.attr("new_axis", 0))
    return join(ctx, items, ctx.attr("axis"), new=new)


def join(ctx: Context, items: list[Value], axis: int, *, new: bool = True) -> Value:
    """Values side by side along an axis, a new one or an existing one."""
    if all(map(is_known, items)):
        arrays = [array_of(v) for v in items]
        return np.stack(arrays, axis) if new else np.concatenate(arrays, axis)
    tensors = [ctx.tensor(v) for v in items]
    return torch.stack(tensors, axis) if new else torch.cat(tensors, axis)


@structural("SequenceMap")
def sequence_map(ctx: Context, sequence: Value, *others: Value) -> Result:
    """The body once per item; other sequences are walked along, tensors are given each time."""
    body: onnx.GraphProto = ctx.attr("body")
    rows = []
    for k, item in enumerate(_items(sequence)):
        rest = [v[k] if isinstance(v, list) else v for v in others]
        rows.append(ctx.runner.subgraph(ctx, body, [item, *rest], str(k)))
    return tuple([row[j] for row in rows] for j in range(len(body.output)))
