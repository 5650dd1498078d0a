"""How numbers of every element type lie in files, how far apart they are, what rounding does.

8-bit integers stand for multiples of a scale: a format says what a raw number stands for, ``scale *
(raw - zero)``, the scale a float32 (Jacob et al., "Quantization and Training of Neural Networks for
Efficient Integer-Arithmetic-Only Inference", CVPR 2018). In the name of an element type the scale
is ``mantissa * 2**exponent``, so that nothing is lost in text: ``int8<8388608,-30,-128>``. Plain
``int8`` has no scale: weights, or a plan without calibration.
"""

import math
import re
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipec.errors import BackendError

LOWEST, HIGHEST = -128, 127
WIDEST = 255
"""Magnitude of a weight less its zero point: 9 bits, which a table holds as ``int16``."""
MULTIPLIER_BITS = 17
"""Bits of a multiplier without its sign: with it, the narrow operand of a 27x18 multiplier."""
_LARGEST_SHIFT = 46
_SMALLEST_RANGE = 2.0**-100
"""A range below it is nothing: its scale could be no float32."""


@dataclass(frozen=True)
class Int8:
    """One format.

    Attributes:
        mantissa: Mantissa of the scale, below 2**24.
        exponent: Exponent of the scale, to base 2.
        zero: The raw number that stands for 0.
    """

    mantissa: int
    exponent: int
    zero: int

    @classmethod
    def of(cls, scale: float, zero: int) -> "Int8":
        """The format of that scale, rounded to float32.

        Example:
            >>> Int8.of(0.5, 3)
            Int8(mantissa=8388608, exponent=-24, zero=3)
        """
        fraction, exponent = math.frexp(float(np.float32(scale)))
        return cls(int(fraction * (1 << 24)), exponent - 24, zero)

    @property
    def scale(self) -> float:
        """The size of one step."""
        return math.ldexp(self.mantissa, self.exponent)

    @property
    def dtype(self) -> str:
        """Name of the element type."""
        return f"int8<{self.mantissa},{self.exponent},{self.zero}>"

    @property
    def range(self) -> tuple[float, float]:
        """The least and the largest number."""
        return (LOWEST - self.zero) * self.scale, (HIGHEST - self.zero) * self.scale

    def quantise(self, values: NDArray[Any]) -> NDArray[np.int8]:
        """Numbers rounded to the format, half to even, saturated; computed in float32."""
        with np.errstate(over="ignore"):
            steps = np.rint(np.asarray(values, dtype=np.float32) / np.float32(self.scale))
        raw = np.clip(steps + np.float32(self.zero), LOWEST, HIGHEST)
        return np.asarray(raw, dtype=np.int8)

    def dequantise(self, raw: NDArray[Any]) -> NDArray[np.float32]:
        """The real numbers of raw ones."""
        steps = (np.asarray(raw).astype(np.int32) - self.zero).astype(np.float32)
        return np.asarray(steps * np.float32(self.scale), dtype=np.float32)


def int8_format(dtype: str) -> Int8 | None:
    """The format that an element type names; None for other types and for plain ``int8``.

    Example:
        >>> int8_format("int8<8388608,-24,3>"), int8_format("int8")
        (Int8(mantissa=8388608, exponent=-24, zero=3), None)
    """
    found = re.fullmatch(r"int8<(\d+),(-?\d+),(-?\d+)>", dtype)
    return Int8(*map(int, found.groups())) if found else None


def kind_of(dtype: str) -> str:
    """The element type without its scale: what costs depend on."""
    return "int8" if dtype.startswith("int8<") else dtype


def fit_int8(low: float, high: float, *, symmetric: bool = False) -> Int8:
    """The format of the finest scale that holds 0 and all numbers from ``low`` to ``high``.

    In a symmetric one 0 is the raw number 0.

    Example:
        >>> fit_int8(0.0, 255.0), fit_int8(-1.0, 0.5, symmetric=True).zero
        (Int8(mantissa=8388608, exponent=-23, zero=-128), 0)
    """
    low, high = min(low, 0.0), max(high, 0.0)
    if high - low < _SMALLEST_RANGE:
        return Int8.of(1.0, 0)
    if symmetric:
        return Int8.of(max(-low, high) / HIGHEST, 0)
    scale = (high - low) / (HIGHEST - LOWEST)
    return Int8.of(scale, int(np.clip(round(LOWEST - low / scale), LOWEST, HIGHEST)))


def multipliers(ratios: NDArray[Any]) -> tuple[NDArray[np.int64], int]:
    """Integers ``m`` and one shift such that ``m / 2**shift`` are the finite ratios, to 17 bits.

    One shift for all keeps a shifter per lane out of the fabric; a channel of smaller ratio loses
    bits of its multiplier, but as its results are smaller too, none of its results.

    Example:
        >>> multipliers(np.array([0.75, -0.001]))
        (array([98304,  -131]), 17)
    """
    largest = float(np.abs(ratios).max(initial=0.0))
    if largest == 0.0:
        return np.zeros(np.shape(ratios), dtype=np.int64), 0
    shift = MULTIPLIER_BITS - math.frexp(largest)[1]
    shift = max(0, min(shift, _LARGEST_SHIFT))
    found = np.rint(np.asarray(ratios, dtype=np.float64) * 2.0**shift)
    top = (1 << MULTIPLIER_BITS) - 1
    return np.clip(found, -top, top).astype(np.int64), shift


def pack(bias: NDArray[Any], multiplier: NDArray[Any]) -> NDArray[np.int64]:
    """Words of a table of type ``rescale``: two 32-bit integers, the bias in the lower half."""
    limited = np.clip(np.asarray(bias), -(2**31), 2**31 - 1).astype(np.int64)
    return np.asarray((limited & 0xFFFFFFFF) | (np.asarray(multiplier).astype(np.int64) << 32))


def unpack(words: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Biases and multipliers of such words.

    Example:
        >>> unpack(pack(np.array([-3]), np.array([-7])))
        (array([-3]), array([-7]))
    """
    whole = np.asarray(words, dtype=np.int64)
    return (whole & 0xFFFFFFFF).astype(np.uint32).astype(np.int32).astype(np.int64), whole >> 32


_PLAIN: dict[str, np.dtype[Any]] = {
    "bfloat16": np.dtype(ml_dtypes.bfloat16), "float16": np.dtype("<f2"),
    "float32": np.dtype("<f4"), "int32": np.dtype("<i4"), "int16": np.dtype("<i2"),
    "int8": np.dtype("<i1"), "rescale": np.dtype("<i8"),
}  # fmt: skip


def parse_fixed(dtype: str) -> tuple[int, int] | None:
    """Width and integer bits (sign included) of ``ap_fixed<W,I>``; None for other types.

    Example:
        >>> parse_fixed("ap_fixed<16, 6>"), parse_fixed("float32")
        ((16, 6), None)
    """
    found = re.fullmatch(r"ap_fixed<\s*(\d+)\s*,\s*(\d+)\s*>", dtype)
    return (int(found[1]), int(found[2])) if found else None


def file_type(dtype: str) -> np.dtype[Any]:
    """How one number lies in a ``.bin`` file: itself, or the integer that stands for it."""
    fixed = parse_fixed(dtype)
    if fixed is not None:
        return np.dtype("<i1" if fixed[0] <= 8 else "<i2" if fixed[0] <= 16 else "<i4")
    return _PLAIN[kind_of(dtype)]


def encode(values: NDArray[Any], dtype: str) -> NDArray[np.generic]:
    """Numbers as they lie in a file: rounded half to even, out of range saturated.

    Example:
        >>> encode(np.array([0.3, 100.0]), "ap_fixed<8,4>").tolist()
        [5, 127]

    Raises:
        BackendError: A whole number needs more than the type's bits.
    """
    fixed, scaled8 = parse_fixed(dtype), int8_format(dtype)
    if scaled8 is not None:
        return scaled8.quantise(values)
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


def decode(stored: NDArray[Any], dtype: str) -> NDArray[np.generic]:
    """The inverse of `encode`: floating point comes back as float32."""
    fixed, scaled8 = parse_fixed(dtype), int8_format(dtype)
    if scaled8 is not None:
        return scaled8.dequantise(stored)
    if fixed is not None:
        return np.asarray(stored.astype(np.float32) * np.float32(2.0 ** (fixed[1] - fixed[0])))
    return stored if dtype.startswith("int") else stored.astype(np.float32)


MINIMUM = 1e-4
"""Relative error that is allowed in any type: sums in another order, other libraries."""
_MULTIPLIERS = 1 / 32
"""Of a step of 8-bit integers: what multipliers of 17 bits and one shift add to the half of a
rounding."""


def roundoff(dtype: str) -> float:
    """Largest error of one rounding: relative for floating point, absolute for fixed point."""
    fixed = parse_fixed(dtype)
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
    return 32 if parse_fixed(dtype) is None else 64


def range_of(dtype: str) -> tuple[float, float]:
    """The least and the largest number of a type that saturates; others are unlimited."""
    form, fixed = int8_format(dtype), parse_fixed(dtype)
    if form is not None:
        return form.range
    if fixed is not None:
        top = 2.0 ** (fixed[1] - 1)
        return -top, top - 2.0 ** (fixed[1] - fixed[0])
    return -np.inf, np.inf


def round_to(x: Tensor, dtype: str) -> Tensor:
    """Numbers as a type holds them: rounded half to even, saturated; float32."""
    with np.errstate(over="ignore", invalid="ignore"):
        return torch.from_numpy(np.array(decode(encode(x.numpy(), dtype), dtype)))


def saturate(x: Tensor, dtype: str) -> Tensor:
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
    if parse_fixed(dtype) is not None:
        return torch.full_like(x, roundoff(dtype))
    return x.abs() * roundoff(dtype)
