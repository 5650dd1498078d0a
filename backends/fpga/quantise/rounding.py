"""What holding a value in a type does to it: what is cut off, and the largest rounding error."""

import numpy as np
import torch
from torch import Tensor

from pipec.backends.fpga.int8 import int8_format
from pipec.backends.fpga.numbers import decoded, encoded, fixed_point, roundoff

_MULTIPLIERS = 1 / 32
"""Of a step: what multipliers of 17 bits and one shift add to the half of a rounding."""


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
