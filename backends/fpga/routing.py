"""Loop nests of the engines that move data: fork, join, select, convert, reorder, fetch.

Words and conventions are those of `pipec.backends.fpga.nests`.
"""

import math
from dataclasses import dataclass

from pipec.backends.fpga.nests import (
    Map,
    Matmul,
    Mvu,
    Norm,
    Reduce,
    Swg,
    Vvu,
    ceil_div,
)
from pipec.backends.fpga.training.nests import GradientNest


@dataclass(frozen=True)
class Fork:
    """Copies every token to all outputs in one firing: ``tokens`` firings."""

    tokens: int
    outputs: int


@dataclass(frozen=True)
class Concat:
    """Joins inputs along one axis: ``for o in outer: for k in inputs: for i in sizes[k]: copy``.

    Attributes:
        outer: Repetitions per frame.
        sizes: Tokens that input k contributes to each repetition.
    """

    outer: int
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Slice:
    """Keeps part of one axis: ``for o in outer: for j in size: for i in inner: read; maybe write``.

    Writes where ``start <= j < stop`` and ``(j-start) % step == 0``; counts are in tokens, and
    read and write are the same firing.
    """

    outer: int
    size: int
    start: int
    stop: int
    step: int = 1
    inner: int = 1

    @property
    def kept(self) -> int:
        """Positions of the axis that are written."""
        return len(range(self.start, self.stop, self.step))


@dataclass(frozen=True)
class Dwc:
    """Width converter: regroups the same elements into other tokens, dropping and making padding.

    ```text
    for r in repeat:                                   # elements = rows_in * channels_in
      have = done = 0
      while done < all tokens of the repetition:       # one firing per round
        want = valid elements of the next output token
        if have < want: have += valid elements of (read in0)
        if have >= want: write; have -= want; done += 1
    ```

    ``rows_in*channels_in == rows_out*channels_out`` are those of one repetition, which is the
    smallest number of elements that ends a row on both sides.
    """

    repeat: int
    rows_in: int
    channels_in: int
    lanes_in: int
    rows_out: int
    channels_out: int
    lanes_out: int


@dataclass(frozen=True)
class Perm:
    """Reorders elements through one bank: reads a whole block, then writes it in another order.

    ```text
    for b in blocks:
      read all tokens of the block: elements in the order of `sizes` (row-major)
      write all tokens: the same block with its axes in the order `order` (as numpy.transpose)
    ```

    Attributes:
        blocks: Leading axes that stay; each is one block.
        sizes: Axes of a block in input order; the last one holds ``channels_in``.
        order: Output axis i is input axis ``order[i]``.
        channels_in: Channels of an input row (``lanes_in`` per token); ``channels_out`` likewise.
    """

    blocks: int
    sizes: tuple[int, ...]
    order: tuple[int, ...]
    channels_in: int
    lanes_in: int
    channels_out: int
    lanes_out: int

    @property
    def elements(self) -> int:
        """Elements of a block."""
        return math.prod(self.sizes)

    @property
    def reads(self) -> int:
        """Input tokens of a block."""
        return self.elements // self.channels_in * ceil_div(self.channels_in, self.lanes_in)

    @property
    def writes(self) -> int:
        """Output tokens of a block."""
        return self.elements // self.channels_out * ceil_div(self.channels_out, self.lanes_out)

    @property
    def turns(self) -> bool:
        """Whether it transposes matrices, rows in and columns out, as many lanes on both sides."""
        sizes = self.channels_out, self.channels_in
        return self.lanes_in == self.lanes_out and is_transposition(self.sizes, self.order, sizes)


def is_transposition(
    sizes: tuple[int, ...], order: tuple[int, ...], matrix: tuple[int, int]
) -> bool:
    """Whether a reordering turns blocks of this matrix, read row by row and written so."""
    return (sizes, order) == (matrix, (1, 0))


@dataclass(frozen=True)
class Repeat:
    """Repeats blocks: ``for o in outer: read and keep `inner` tokens; write them `times` times``.

    The first pass reads and writes in one firing; used where a small operand is broadcast over
    rows (one value per channel against a map).
    """

    outer: int
    inner: int
    times: int


@dataclass(frozen=True)
class Gather:
    """Row lookup (embedding): ``for v in n: i = read in0; for c in cf: write table[i][c]``.

    The index token has one lane of an integer type. Table: role ``table``
    ``[entries][cf][lanes]``, on chip or in DDR (the engine then has a DDR port of its own).
    """

    n: int
    entries: int
    channels: int
    lanes: int = 1

    @property
    def cf(self) -> int:
        """Tokens per row."""
        return ceil_div(self.channels, self.lanes)


@dataclass(frozen=True)
class Load:
    """Reads weights from DDR in bursts: ``for r in repeat: for i in words: write word``.

    A word has ``lanes`` elements (PE*SIMD of its reader); role ``weight``
    ``[words][lanes]`` is the reader's weight array as it lies in memory.
    """

    words: int
    lanes: int
    repeat: int = 1


@dataclass(frozen=True)
class Const:
    """Writes a constant every frame: role ``table`` ``[tokens][lanes]``."""

    rows: int
    channels: int
    lanes: int = 1

    @property
    def tokens(self) -> int:
        """Tokens per frame."""
        return self.rows * ceil_div(self.channels, self.lanes)


Nest = (
    Swg | Mvu | Vvu | Reduce | Map | Norm | Matmul
    | Fork | Concat | Slice | Dwc | Perm | Repeat | Gather | Load | Const
    | GradientNest
)  # fmt: skip
"""Any loop nest."""
