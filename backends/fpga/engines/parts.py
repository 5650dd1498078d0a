"""What layers and engines hold besides their nest: tables, memories, formats, resources."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from operator import add
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipec.backends.fpga.engines.tiles import ceil_div
from pipec.backends.fpga.numbers import bits_of

Array = NDArray[Any]
PORT_BITS = 512
"""Bits per cycle of one memory port: of a DDR controller or an HBM channel, as a kernel sees it."""
BURST = 64
"""Beats of the longest burst that a kernel asks for: 4,096 bytes, which no AXI burst may cross."""
OUTSTANDING = 8
"""Bursts that a kernel asks for ahead; its adapter has room for all of them."""


@dataclass(frozen=True)
class Table:
    """A constant: how to compute it, and the model's weights that it comes from.

    Attributes:
        values: Computes it.
        sources: Names of the weights.
        dtype: Element type, if not the one in which its layer computes.
    """

    values: Callable[[], Array] = field(compare=False, repr=False)
    sources: tuple[str, ...] = ()
    dtype: str = ""

    def apply(self, function: Callable[..., Array], *others: "Table") -> "Table":
        """The table of a function of its values and those of others."""
        tables = (self, *others)
        sources = dict.fromkeys(name for table in tables for name in table.sources)

        def values() -> Array:
            return np.asarray(function(*(np.asarray(table.values()) for table in tables)))

        return Table(values, tuple(sources))


UNCLAMPED = (-math.inf, math.inf)


class Memory(StrEnum):
    """Where a table or buffer lies."""

    LUT = "lut"
    BRAM = "bram"
    URAM = "uram"
    DDR = "ddr"


@dataclass(frozen=True)
class Weight:
    """A table of an engine: weights, bias, scales, constants.

    Attributes:
        role: What the nest's docstring calls it: ``weight``, ``bias``, ``scale``, ``shift``,
            ``table``, ``table0`` ...
        shape: Shape of the final array.
        dtype: Element type.
        memory: Memory that it lies in.
        sources: Names of the model's weights that it is computed from.
        values: Computes the final array (float64 or integers; cast to ``dtype`` when stored).
            Raises BackendError where the model has no weights (built without data).
    """

    role: str
    shape: tuple[int, ...]
    dtype: str
    memory: Memory
    sources: tuple[str, ...]
    values: Callable[[], NDArray[Any]] = field(compare=False, repr=False)

    @property
    def bits(self) -> int:
        """Bits of the whole table."""
        return math.prod(self.shape) * bits_of(self.dtype)

    @property
    def words(self) -> int:
        """How many there are of what one firing reads: rows of the last axis, or of a matrix."""
        inside = 2 if self.role == "weight" else 1
        return math.prod(self.shape[:-inside]) if len(self.shape) > 1 else self.shape[0]

    @property
    def lanes(self) -> int:
        """Elements of such a word."""
        return math.prod(self.shape) // self.words

    @property
    def word_bits(self) -> int:
        """Bits of such a word."""
        return self.bits // self.words


@dataclass(frozen=True)
class Resources:
    """Resources that are used, or that a board has. `ddr` is in bytes per second."""

    dsp: float = 0.0
    bram36: float = 0.0
    uram: float = 0.0
    lut: float = 0.0
    ff: float = 0.0
    ddr: float = 0.0

    def __add__(self, other: "Resources") -> "Resources":
        return Resources(*map(add, vars(self).values(), vars(other).values()))

    def __mul__(self, times: float) -> "Resources":
        return Resources(*(times * a for a in vars(self).values()))

    def __sub__(self, other: "Resources") -> "Resources":
        return self + other * -1.0


@dataclass(frozen=True)
class Narrowing:
    """How exact sums become 8 bits: ``clip((sum * multiplier >> shift) + zero, low, high)``.

    Attributes:
        shift: Rounded half to even.
        low: Least raw number, above -128 where a ReLU is part of the engine; ``high`` the largest.
        multiplier: One for all results; None where a table of type ``rescale`` has one for each.
    """

    shift: int
    low: int
    high: int
    multiplier: int | None = None


def in_tokens(array: Array, lanes: int) -> Array:
    """Rows cut into tokens, zeros behind: ``[rows][channels]`` to ``[rows*CF][lanes]``."""
    channels = array.shape[1]
    width = ceil_div(channels, lanes) * lanes
    return np.asarray(np.pad(array, ((0, 0), (0, width - channels))).reshape(-1, lanes))


def weight(
    role: str, shape: tuple[int, ...], table: Table, dtype: str, cut: Callable[[Array], Array]
) -> Weight:
    """A table of an engine, cut into tiles when its values are asked for."""

    def values() -> Array:
        return np.asarray(cut(np.asarray(table.values())).reshape(shape))

    return Weight(role, shape, table.dtype or dtype, Memory.BRAM, table.sources, values)


def lut_ram(width: int, depth: int) -> int:
    """LUTs of a distributed memory."""
    return width * ceil_div(depth, 64)
