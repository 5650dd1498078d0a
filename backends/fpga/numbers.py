"""How numbers of every element type lie in files, how far apart they are, what rounding does."""

import re
from typing import Any

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipec.backends.fpga.int8 import int8_format, kind_of
from pipec.errors import BackendError

_PLAIN: dict[str, np.dtype[Any]] = {
    "float32": np.dtype("<f4"),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype("<f2"),
    "int32": np.dtype("<i4"),
    "int8": np.dtype("<i1"),
    "rescale": np.dtype("<i8"),
}


def fixed_point(dtype: str) -> tuple[int, int] | None:
    """Width and integer bits (sign included) of ``ap_fixed<W,I>``; None for other types.

    Example:
        >>> fixed_point("ap_fixed<16, 6>"), fixed_point("float32")
        ((16, 6), None)
    """
    found = re.fullmatch(r"ap_fixed<\s*(\d+)\s*,\s*(\d+)\s*>", dtype)
    return (int(found[1]), int(found[2])) if found else None


def file_type(dtype: str) -> np.dtype[Any]:
    """How one number lies in a ``.bin`` file: itself, or the integer that stands for it."""
    fixed = fixed_point(dtype)
    if fixed is not None:
        return np.dtype("<i1" if fixed[0] <= 8 else "<i2" if fixed[0] <= 16 else "<i4")
    return _PLAIN[kind_of(dtype)]


def encoded(values: NDArray[Any], dtype: str) -> NDArray[np.generic]:
    """Numbers as they lie in a file: rounded half to even, out of range saturated.

    Example:
        >>> encoded(np.array([0.3, 100.0]), "ap_fixed<8,4>").tolist()
        [5, 127]

    Raises:
        BackendError: A whole number needs more than the type's bits.
    """
    fixed, scaled8 = fixed_point(dtype), int8_format(dtype)
    if scaled8 is not None:
        return scaled8.raw(values)
    if fixed is None:
        found = np.asarray(values).astype(file_type(dtype), copy=False)
        if dtype == "int32" and not np.array_equal(found, values):
            raise BackendError(
                "a whole number does not fit the 32 bits of streams",
                got=f"{np.min(values)} to {np.max(values)}",
            )
        return found
    top = 1 << (fixed[0] - 1)
    scaled = np.rint(np.asarray(values, dtype=np.float64) * 2.0 ** (fixed[0] - fixed[1]))
    return np.clip(scaled, -top, top - 1).astype(file_type(dtype))


def decoded(stored: NDArray[Any], dtype: str) -> NDArray[np.generic]:
    """The inverse of `encoded`: floating point comes back as float32."""
    fixed, scaled8 = fixed_point(dtype), int8_format(dtype)
    if scaled8 is not None:
        return scaled8.real(stored)
    if fixed is not None:
        return np.asarray(stored.astype(np.float32) * np.float32(2.0 ** (fixed[1] - fixed[0])))
    return stored if dtype.startswith("int") else stored.astype(np.float32)


MINIMUM = 1e-4
"""Relative error that is allowed in any type: sums in another order, other libraries."""
_MULTIPLIERS = 1 / 32
"""Of a step of 8-bit integers: what multipliers of 17 bits and one shift add to the half of a
rounding."""


def roundoff(dtype: str) -> float:
    """Largest error of one rounding: relative for floating point, absolute for fixed point.

    Example:
        >>> roundoff("bfloat16"), roundoff("ap_fixed<16,6>")
        (0.00390625, 0.00048828125)
    """
    fixed = fixed_point(dtype)
    if fixed is not None:
        return float(2.0 ** (fixed[1] - fixed[0] - 1))
    bits = {"float32": 24, "bfloat16": 8, "float16": 11}
    return float(2.0 ** -bits[dtype]) if dtype in bits else 0.0


def bits_of(dtype: str) -> int:
    """Bits that one element takes in streams and memories: whole bytes.

    Example:
        >>> bits_of("float32"), bits_of("ap_fixed<12,6>")
        (32, 16)
    """
    return 8 * file_type(dtype).itemsize


def sum_bits(dtype: str) -> int:
    """Bits in which sums of an element type wait in a memory (`sum_t` and `term_t` in C++).

    Example:
        >>> sum_bits("int8"), sum_bits("bfloat16"), sum_bits("ap_fixed<16,6>")
        (32, 32, 64)
    """
    return 32 if fixed_point(dtype) is None else 64


def range_of(dtype: str) -> tuple[float, float]:
    """The least and the largest number of a type that saturates; others are unlimited.

    Example:
        >>> range_of("ap_fixed<8,4>"), range_of("float32")
        ((-8.0, 7.9375), (-inf, inf))
    """
    form, fixed = int8_format(dtype), fixed_point(dtype)
    if form is not None:
        return form.range
    if fixed is not None:
        top = 2.0 ** (fixed[1] - 1)
        return -top, top - 2.0 ** (fixed[1] - fixed[0])
    return -np.inf, np.inf


def held(x: Tensor, dtype: str) -> Tensor:
    """Numbers as a type holds them: rounded half to even, saturated; float32."""
    with np.errstate(over="ignore", invalid="ignore"):
        return torch.from_numpy(np.array(decoded(encoded(x.numpy(), dtype), dtype)))


def cut(x: Tensor, dtype: str) -> Tensor:
    """Numbers without what lies outside of the type's range, not rounded."""
    low, high = range_of(dtype)
    return x if low == -np.inf else x.clamp(low, high)


def unit(x: Tensor, dtype: str) -> Tensor:
    """The largest error of rounding each of these numbers to a type.

    Half a step; of 8-bit integers also what their multipliers are off by.
    """
    form = int8_format(dtype)
    if form is not None:
        return torch.full_like(x, form.scale * (0.5 + _MULTIPLIERS))
    if fixed_point(dtype) is not None:
        return torch.full_like(x, roundoff(dtype))
    return x.abs() * roundoff(dtype)
