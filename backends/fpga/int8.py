"""8-bit integers that stand for multiples of a scale: formats, and integer arithmetic on them.

A format says what a raw number stands for: ``scale * (raw - zero)``, the scale a float32 (Jacob et
al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference",
CVPR 2018). In the name of an element type the scale is ``mantissa * 2**exponent``, so that nothing
is lost in text: ``int8<8388608,-30,-128>``. Plain ``int8`` has no scale: weights, or a plan
without calibration.
"""

import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

LOWEST, HIGHEST = -128, 127
MULTIPLIER_BITS = 17
"""Bits of a multiplier without its sign: with it, the narrow operand of a 27x18 multiplier."""
_LARGEST_SHIFT = 46
_SMALLEST_RANGE = 2.0**-100
"""A range below it is nothing: its scale could be no float32."""


@dataclass(frozen=True)
class Int8:
    """One format.

    Attributes:
        mantissa: Of the scale, below 2**24.
        exponent: Of the scale, to base 2.
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
        """What one step stands for."""
        return math.ldexp(self.mantissa, self.exponent)

    @property
    def dtype(self) -> str:
        """Name of the element type."""
        return f"int8<{self.mantissa},{self.exponent},{self.zero}>"

    @property
    def range(self) -> tuple[float, float]:
        """The least and the largest number."""
        return (LOWEST - self.zero) * self.scale, (HIGHEST - self.zero) * self.scale

    def raw(self, values: NDArray[Any]) -> NDArray[np.int8]:
        """Numbers rounded to the format, half to even, saturated; computed in float32."""
        with np.errstate(over="ignore"):
            steps = np.rint(np.asarray(values, dtype=np.float32) / np.float32(self.scale))
        raw = np.clip(steps + np.float32(self.zero), LOWEST, HIGHEST)
        return np.asarray(raw, dtype=np.int8)

    def real(self, raw: NDArray[Any]) -> NDArray[np.float32]:
        """What raw numbers stand for."""
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
    """The element type without its scale: what costs depend on.

    Example:
        >>> kind_of("int8<8388608,-24,3>"), kind_of("ap_fixed<16,6>")
        ('int8', 'ap_fixed<16,6>')
    """
    return "int8" if dtype.startswith("int8<") else dtype


def covering(low: float, high: float, *, symmetric: bool = False) -> Int8:
    """The format of the finest scale that holds 0 and all numbers from ``low`` to ``high``.

    Args:
        low: The least number.
        high: The largest.
        symmetric: Whether 0 must be the raw number 0.

    Example:
        >>> covering(0.0, 255.0), covering(-1.0, 0.5, symmetric=True).zero
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
    """Integers ``m`` and one shift such that ``m / 2**shift`` are the ratios, to 17 bits.

    One shift for all keeps a shifter per lane out of the fabric; a channel of smaller ratio loses
    bits of its multiplier, but as its results are smaller too, none of its results.

    Args:
        ratios: Finite numbers.

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


def packed(bias: NDArray[Any], multiplier: NDArray[Any]) -> NDArray[np.int64]:
    """Words of a table of type ``rescale``: two 32-bit integers, the bias in the lower half."""
    limited = np.clip(np.asarray(bias), -(2**31), 2**31 - 1).astype(np.int64)
    return np.asarray((limited & 0xFFFFFFFF) | (np.asarray(multiplier).astype(np.int64) << 32))


def unpacked(words: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Biases and multipliers of such words.

    Example:
        >>> unpacked(packed(np.array([-3]), np.array([-7])))
        (array([-3]), array([-7]))
    """
    whole = np.asarray(words, dtype=np.int64)
    return (whole & 0xFFFFFFFF).astype(np.uint32).astype(np.int32).astype(np.int64), whole >> 32
