"""Torch tensors and numpy arrays of the same bits, bfloat16 and 8-bit floats included.

numpy has no such types; the ``ml_dtypes`` package, which ONNX uses too, adds them, and torch reads
them only as raw integers. This is the one place that knows the pairs.
"""

from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import torch
from onnx import TensorProto
from torch import Tensor

Array: TypeAlias = np.ndarray[Any, Any]

_VIEWED: dict[np.dtype[Any], torch.dtype] = {
    np.dtype(ml_dtypes.bfloat16): torch.bfloat16,
    np.dtype(ml_dtypes.float8_e4m3fn): torch.float8_e4m3fn,
    np.dtype(ml_dtypes.float8_e4m3fnuz): torch.float8_e4m3fnuz,
    np.dtype(ml_dtypes.float8_e5m2): torch.float8_e5m2,
    np.dtype(ml_dtypes.float8_e5m2fnuz): torch.float8_e5m2fnuz,
    np.dtype(ml_dtypes.float8_e8m0fnu): torch.float8_e8m0fnu,
}

ONNX_TYPES: dict[torch.dtype, int] = {
    torch.float32: TensorProto.FLOAT,
    torch.float64: TensorProto.DOUBLE,
    torch.float16: TensorProto.FLOAT16,
    torch.bfloat16: TensorProto.BFLOAT16,
    torch.int8: TensorProto.INT8,
    torch.int16: TensorProto.INT16,
    torch.int32: TensorProto.INT32,
    torch.int64: TensorProto.INT64,
    torch.uint8: TensorProto.UINT8,
    torch.uint16: TensorProto.UINT16,
    torch.uint32: TensorProto.UINT32,
    torch.uint64: TensorProto.UINT64,
    torch.bool: TensorProto.BOOL,
    torch.complex64: TensorProto.COMPLEX64,
    torch.complex128: TensorProto.COMPLEX128,
    torch.float8_e4m3fn: TensorProto.FLOAT8E4M3FN,
    torch.float8_e4m3fnuz: TensorProto.FLOAT8E4M3FNUZ,
    torch.float8_e5m2: TensorProto.FLOAT8E5M2,
    torch.float8_e5m2fnuz: TensorProto.FLOAT8E5M2FNUZ,
    torch.float8_e8m0fnu: TensorProto.FLOAT8E8M0,
}
"""Torch dtype to ONNX element type (a `TensorProto.DataType` number)."""

_ARRAY_OF = {dtype: array for array, dtype in _VIEWED.items()}


def is_viewed(dtype: torch.dtype) -> bool:
    """Whether numpy itself lacks the type, so that arrays of it are ``ml_dtypes`` arrays."""
    return dtype in _ARRAY_OF


def has_torch_type(array: Array) -> bool:
    """Whether torch has a tensor type for the array's elements (not for strings and int4)."""
    return array.dtype in _VIEWED or array.dtype.kind in "biufc"


def to_tensor(array: Array) -> Tensor:
    """A torch tensor with the contents of ``array``; contiguous, with memory of its own.

    A broadcast array (all strides zero) is filled and not copied element by element.

    Raises:
        TypeError: `has_torch_type` is false.

    Example:
        >>> to_tensor(np.array([1.5, 2], ml_dtypes.bfloat16))
        tensor([1.5000, 2.0000], dtype=torch.bfloat16)
    """
    if not has_torch_type(array):
        raise TypeError(f"torch has no tensor type for {array.dtype}")
    if array.size > 1 and not any(array.strides):
        one = to_tensor(array[(slice(0, 1),) * array.ndim].copy())
        return one.expand(array.shape).contiguous()
    plain = array.dtype if array.dtype in _VIEWED else np.dtype(array.dtype.str)  # no `ulonglong`
    own = np.array(array, dtype=plain, order="C", copy=True)
    if array.dtype not in _VIEWED:
        return torch.from_numpy(own)
    raw = own.view(_raw(own.dtype.itemsize)).reshape(array.shape)
    return torch.from_numpy(raw).view(_VIEWED[array.dtype])


def to_array(tensor: Tensor) -> Array:
    """A numpy array with the contents of ``tensor`` and memory of its own.

    Example:
        >>> to_array(torch.ones(1, dtype=torch.bfloat16)).dtype
        dtype(bfloat16)
    """
    return raw_array(tensor).view(array_dtype(tensor.dtype)).copy()


def raw_array(tensor: Tensor) -> Array:
    """The tensor's numbers as numpy sees them: bfloat16 and 8-bit floats as unsigned integers."""
    t = tensor.detach().contiguous()
    if is_viewed(t.dtype):
        t = t.view(torch.uint16 if t.element_size() == 2 else torch.uint8)
    array: Array = t.numpy()
    return array


def array_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """The numpy (or ``ml_dtypes``) type with the bits of a torch type."""
    if dtype in _ARRAY_OF:
        return _ARRAY_OF[dtype]
    found: np.dtype[Any] = torch.empty(0, dtype=dtype).numpy().dtype
    return found


def _raw(itemsize: int) -> type[np.generic]:
    return np.uint16 if itemsize == 2 else np.uint8
