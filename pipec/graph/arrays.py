"""Torch tensors and numpy arrays of the same bits, bfloat16 and 8-bit floats included.

numpy has no such types; the ``ml_dtypes`` package, which ONNX uses too, adds them, and torch reads
them only as raw integers. This is the one place that knows the pairs.
"""

from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import torch
from onnx.helper import np_dtype_to_tensor_dtype
from torch import Tensor

Array: TypeAlias = np.ndarray[Any, Any]

_ADDED = ("bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
          "float8_e8m0fnu")  # fmt: skip
_OWN = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16",
        "uint32", "uint64", "bool", "complex64", "complex128")  # fmt: skip
_VIEWED = {np.dtype(getattr(ml_dtypes, name)): getattr(torch, name) for name in _ADDED}
_ARRAY_OF: dict[torch.dtype, np.dtype[Any]] = {dtype: array for array, dtype in _VIEWED.items()}
"""Types that numpy itself lacks: arrays of them are ``ml_dtypes`` arrays."""
ONNX_TYPES: dict[torch.dtype, int] = {
    getattr(torch, np.dtype(a).name): int(np_dtype_to_tensor_dtype(np.dtype(a)))
    for a in (*_OWN, *_VIEWED)
}
"""Torch dtype to ONNX element type (a `TensorProto.DataType` number)."""


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
    raw = own.view(np.uint16 if own.itemsize == 2 else np.uint8).reshape(array.shape)
    return torch.from_numpy(raw).view(_VIEWED[array.dtype])


def to_array(tensor: Tensor) -> Array:
    """A numpy array with the contents of ``tensor`` and memory of its own.

    Example:
        >>> to_array(torch.ones(1, dtype=torch.bfloat16)).dtype
        dtype(bfloat16)
    """
    return as_array(tensor).copy()


def as_array(tensor: Tensor) -> Array:
    """A numpy array of the tensor's own memory where it is contiguous, else with a copy of it."""
    return raw_array(tensor).view(array_dtype(tensor.dtype))


def raw_array(tensor: Tensor) -> Array:
    """The tensor's numbers as numpy sees them: bfloat16 and 8-bit floats as unsigned integers."""
    t = tensor.detach().contiguous()
    if t.dtype in _ARRAY_OF:
        t = t.view(torch.uint16 if t.element_size() == 2 else torch.uint8)
    array: Array = t.numpy()
    return array


def array_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """The numpy (or ``ml_dtypes``) type with the bits of a torch type."""
    if dtype in _ARRAY_OF:
        return _ARRAY_OF[dtype]
    found: np.dtype[Any] = torch.empty(0, dtype=dtype).numpy().dtype
    return found
