"""What a name stands for while a model is interpreted, and how numpy, torch and ONNX agree on it.

A value is **known** (a numpy array: shapes, constants, whatever follows from them) or **traced**
(a torch tensor, fake or proxied). Sequences are Python lists of values and an absent optional is
None; neither ever reaches the graph.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper
from torch import Tensor

from pipec.frontends.onnx.refusals import NeedKnown, Refused
from pipec.graph.arrays import ONNX_TYPES, Array, has_torch_type, to_tensor

Value: TypeAlias = "Tensor | Array | list[Value] | None"

TORCH_OF_ONNX = {number: dtype for dtype, number in ONNX_TYPES.items()}
"""Every ONNX element type that has a torch dtype: no strings, no 2-bit and 4-bit numbers."""

FLOAT8 = frozenset(d for d in ONNX_TYPES if str(d).startswith("torch.float8"))
"""The 8-bit floating-point types."""

LARGEST_CONSTANT = 2**31
"""Elements that one constant may have; more is a mistake or an attack."""


@dataclass(frozen=True)
class Type:
    """Element type and static shape of a traced value.

    Attributes:
        dtype: ONNX element type (a `TensorProto.DataType` number).
        shape: Dimensions, all known.
    """

    dtype: int
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{dtype_name(self.dtype)}[{','.join(map(str, self.shape))}]"


def dtype_name(number: int) -> str:
    """Name of an ONNX element type, lower case; ``type 99`` for a number that ONNX lacks.

    Example:
        >>> dtype_name(1)
        'float'
    """
    known = number in TensorProto.DataType.values()
    return TensorProto.DataType.Name(number).lower() if known else f"type {number}"


def torch_dtype(number: int) -> torch.dtype:
    """The torch dtype of an ONNX element type.

    Raises:
        Refused: Torch has no such type.
    """
    if number not in TORCH_OF_ONNX:
        instead = "s; let the model yield numbers" if number == TensorProto.STRING else ""
        raise Refused(f"torch has no tensor type for {dtype_name(number)}{instead}")
    return TORCH_OF_ONNX[number]


def numpy_dtype(number: int) -> np.dtype[Any]:
    """The numpy dtype (of ``ml_dtypes`` where numpy has none) of an ONNX element type."""
    return np.dtype(helper.tensor_dtype_to_np_dtype(number))


def type_of(value: Tensor | Array) -> Type:
    """ONNX element type and shape of a known or traced tensor."""
    if isinstance(value, Tensor):
        return Type(ONNX_TYPES[value.dtype], tuple(value.shape))
    if value.dtype.kind in "OUST":
        return Type(TensorProto.STRING, value.shape)
    return Type(int(helper.np_dtype_to_tensor_dtype(value.dtype)), value.shape)


def constant_tensor(array: Array) -> Tensor:
    """A torch tensor with the contents of ``array``; memory of its own.

    Raises:
        Refused: Torch has no such element type, or the array is larger than `LARGEST_CONSTANT`.
    """
    if array.size > LARGEST_CONSTANT:
        raise Refused(f"a constant of {array.size} elements; at most {LARGEST_CONSTANT}")
    if not has_torch_type(array):
        kind = "strings" if array.dtype.kind in "OUST" else str(array.dtype)
        raise Refused(f"torch has no tensor type for {kind}")
    return to_tensor(array)


def is_known(value: Value) -> bool:
    """Whether the value is a number, not a traced tensor; a list is when all its items are."""
    if isinstance(value, list):
        return all(map(is_known, value))
    return not isinstance(value, Tensor)


def leaves(value: Value) -> Iterator[Tensor | Array]:
    """The tensors and arrays inside a value."""
    if isinstance(value, list):
        for item in value:
            yield from leaves(item)
    elif value is not None:
        yield value


def array_of(value: Value) -> Array:
    """The number behind a value.

    Raises:
        NeedKnown: The value is traced.
        Refused: It is not a tensor at all.
    """
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, Tensor):
        raise NeedKnown(value)
    kind = "a sequence" if isinstance(value, list) else "an absent value"
    raise Refused(f"{kind} where a tensor is wanted")


def ints(value: Value) -> list[int]:
    """A known integer tensor as a flat list.

    Raises:
        NeedKnown: The value is traced.
    """
    return [int(i) for i in array_of(value).reshape(-1)]


def proto_array(proto: onnx.TensorProto) -> Array:
    """The contents of a tensor proto, data inline.

    Raises:
        Refused: The data do not fit the tensor's type and shape.
    """
    try:
        array: Array = np.asarray(onnx.numpy_helper.to_array(proto))
    except (ValueError, TypeError, KeyError, OverflowError, OSError) as error:
        raise Refused(f"tensor {proto.name!r} cannot be read: {error}") from error
    return array
