"""Ops that move values around at compile time and never become a node of the graph.

They work on known and traced values alike: shapes are static, sequences are Python lists, and
control flow on known conditions and counts is run while tracing.
"""

import math
from collections.abc import Callable

import numpy as np
import onnx
from torch import Tensor

from pipec.frontends.onnx.context import Context, Result
from pipec.frontends.onnx.refusals import Refused
from pipec.frontends.onnx.values import LARGEST_CONSTANT, Value, array_of, ints, proto_array
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
    if isinstance(value, Tensor | np.ndarray):
        return tuple(value.shape)
    return tuple(array_of(value).shape)


_CONSTANTS: dict[str, Callable[[onnx.AttributeProto], Array]] = {
    "value": lambda a: proto_array(a.t),
    "value_int": lambda a: np.array(a.i, np.int64),
    "value_ints": lambda a: np.array(a.ints, np.int64),
    "value_float": lambda a: np.array(a.f, np.float32),
    "value_floats": lambda a: np.array(a.floats, np.float32),
    "value_string": lambda a: np.array(a.s.decode("utf-8", "replace"), object),
    "value_strings": lambda a: np.array(
        [s.decode("utf-8", "replace") for s in a.strings], dtype=object
    ),
}


@structural("Constant")
def constant(ctx: Context) -> Result:
    """The tensor in the node's attribute, in any of its forms."""
    for a in ctx.node.attribute:
        if a.name in _CONSTANTS:
            return _CONSTANTS[a.name](a)
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


@structural("Identity")
def identity(_: Context, x: Value) -> Result:
    """The value itself; the graph gets no node for it."""
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
