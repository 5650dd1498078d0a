"""How far rounding takes a stage's values from those of the model in float32.

Every value has two error bounds per channel, carried through the layers together:

- **worst**: no rounding can do more; absolute errors through the absolute sums of the weights
  (interval analysis, first order in the products of two errors apart). It grows with every layer by
  what the weights could do at worst, and says little after a dozen of them.
- **variance**: the sum of the squares instead. Roundings are taken as independent with mean zero,
  as in Higham and Mary, "A New Approach to Probabilistic Rounding Error Analysis", SIAM J. Sci.
  Comput. 41(5), 2019; a rounding to multiples of 2u is uniform, of variance u^2/3 (Widrow 1956),
  and such sums are sub-Gaussian: more than `DEVIATIONS` standard deviations have a probability
  below 1e-8. Errors that meet again along rows (pooling) are taken as equal, not independent.

A value's bound is the smaller of the two. Values beyond a format's range are cut off: what is cut
off of the values seen is part of both, the most of it of the first, its mean square of the second.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipec.backends.fpga.int8 import int8_format
from pipec.backends.fpga.numbers import fixed_point, roundoff
from pipec.backends.fpga.quantise.calibrate import Seen

Numbers = NDArray[np.float64]
DEVIATIONS = 6.0
"""Standard deviations that are allowed."""


@dataclass(frozen=True)
class Error:
    """Bounds on the errors of one edge, per channel.

    Attributes:
        worst: Largest magnitude.
        variance: Variance.
    """

    worst: Numbers
    variance: Numbers

    @classmethod
    def none(cls, channels: int) -> "Error":
        """Exact values."""
        return cls(np.zeros(channels), np.zeros(channels))

    @property
    def channels(self) -> int:
        """Length of a row."""
        return len(self.worst)

    def rows(self, channels: int) -> "Error":
        """The same seen in rows of another length."""
        if channels == self.channels:
            return self
        if channels % self.channels == 0:
            repeats = channels // self.channels
            return Error(np.tile(self.worst, repeats), np.tile(self.variance, repeats))
        return Error(*(np.full(channels, a.max(initial=0.0)) for a in (self.worst, self.variance)))

    def scaled(self, factor: Numbers | float) -> "Error":
        """Of values times a factor (per channel, or one)."""
        with np.errstate(invalid="ignore"):
            size = np.abs(factor)
            return Error(_times(self.worst, size), _times(self.variance, size * size))

    def plus(self, other: "Error") -> "Error":
        """Of the sum of two values, their errors independent."""
        return Error(self.worst + other.worst, self.variance + other.variance)

    def added(self, worst: Numbers | float, variance: Numbers | float) -> "Error":
        """With a further error."""
        return Error(self.worst + worst, self.variance + variance)


def _times(error: Numbers, factor: Numbers | float) -> Numbers:
    """The product, nothing times infinity being nothing."""
    return np.where(error == 0.0, 0.0, error * factor)


def unit(dtype: str, seen: Seen) -> tuple[float, float]:
    """Largest error and variance of rounding values to a type.

    Args:
        dtype: Element type, of 8-bit integers with its format.
        seen: The values.
    """
    form = int8_format(dtype)
    if form is not None:
        half = form.scale / 2
        return half, half * half / 3
    u = roundoff(dtype)
    if fixed_point(dtype) is not None:
        return u, u * u / 3
    return u * seen.largest, u * u * seen.square / 3


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


@dataclass(frozen=True)
class Numerics:
    """What is known of the edges of one stage.

    Attributes:
        types: Edge to its element type.
        seen: Edge to what was seen of its values.
        precision: Element type of tables, ``int8`` with scales of their own.
    """

    types: Mapping[str, str]
    seen: Mapping[str, Seen]
    precision: str

    def of(self, edge: str) -> Seen:
        """What was seen of an edge; of one that nothing is known of, that it is unlimited."""
        return self.seen.get(edge, Seen(-np.inf, np.inf, np.inf, 1.0))

    def rounded(self, edge: str, error: Error) -> Error:
        """An error after the values were rounded to the type of their edge."""
        dtype = self.types.get(edge, self.precision)
        if dtype == "int32":
            return error
        seen = self.of(edge)
        worst, variance = unit(dtype, seen)
        return error.added(worst + self.cut_off(edge), variance + seen.cut)

    def cut_off(self, edge: str) -> float:
        """How far values that were seen lie outside of the range of their edge."""
        low, high = range_of(self.types.get(edge, self.precision))
        seen = self.seen.get(edge)
        return 0.0 if seen is None else max(0.0, low - seen.low, seen.high - high)
