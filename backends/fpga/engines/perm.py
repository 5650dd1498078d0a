"""Reorders the elements of a block, held in registers or turned in banks."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from pipec.backends.fpga.arithmetic import MEMORY, place_depth
from pipec.backends.fpga.cpp import digits
from pipec.backends.fpga.engines.base import Engine, Folded, Layer, Nest, Tables, Unit
from pipec.backends.fpga.engines.tiles import ceil_div, divisor_for, lanes_for
from pipec.backends.fpga.runs import Loop, Run, Runs


@dataclass(frozen=True)
class Perm(Nest):
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
        backwards: Input axes that are written from their end; never the last one.
    """

    additions = 8
    moves = True

    blocks: int
    sizes: tuple[int, ...]
    order: tuple[int, ...]
    channels_in: int
    lanes_in: int
    channels_out: int
    lanes_out: int
    backwards: tuple[int, ...] = ()

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
        matrix = (self.channels_out, self.channels_in), (1, 0)
        return self.lanes_in == self.lanes_out and (self.sizes, self.order) == matrix

    def _lanes(self, layer: Layer, target: int) -> tuple[int, int]:
        """Elements of a token that it reads, and that it writes."""
        use = layer.inputs[0]
        if self.order[-1] == len(self.order) - 1:
            allowed = math.gcd(self.sizes[-1], use.channels, layer.channels)
            return (divisor_for(allowed, use.channels, 2 * use.rows, target),) * 2
        if self.elements > SMALL_BLOCK:
            fewer, rows = min(use.channels, layer.channels), 2 * max(use.rows, layer.rows)
            return (lanes_for(fewer, rows, target) if self.turns else 1,) * 2
        first = lanes_for(use.channels, 2 * use.rows, target)
        return first, lanes_for(layer.channels, 2 * layer.rows, target)

    def fold(self, layer: Layer, target: int, dtype: str, block: int = 0) -> Folded:
        first, lanes = self._lanes(layer, target)
        nest = dataclasses.replace(self, lanes_in=first, lanes_out=lanes)
        return Folded(nest, lanes, nest.depth, reads=(first,), dtype=layer.inputs[0].dtype)

    @property
    def depth(self) -> int:
        """Pipeline depth: the place of an element; in registers, of any lane, and a choice."""
        tokens = ceil_div(self.channels_out, self.lanes_out)
        if self._banked:
            return place_depth((tokens, self.lanes_in))
        sizes, among = [self.sizes[axis] for axis in self.order], 2 * MEMORY
        if self._whole:
            tokens, among = self.lanes_in, 0
        axes = ((math.prod(sizes[k + 1 :]), size * (k > 0)) for k, size in enumerate(sizes))
        return among + place_depth(*((tokens, *divisors) for divisors in axes))

    def runs(self, ii: int, inputs: int) -> Runs:
        return (Loop(self.blocks, (Run(self.reads, ii, 1), Run(self.writes, ii, 0, 1))),)

    def buffer(self, bits: int, sums: int) -> tuple[int, int]:
        lanes = max(self.lanes_in, self.lanes_out)
        return (lanes * bits, self.reads if self.turns else ceil_div(self.elements, lanes))

    def header(self) -> str:
        return "transpose.h" if self._banked else "perm.h"

    @property
    def _banked(self) -> bool:
        """Whether it is turned in banks, not in registers or one element at a time."""
        return self.turns and self.lanes_in > 1 and self.elements > SMALL_BLOCK

    @property
    def _whole(self) -> bool:
        """Whether whole tokens change places."""
        lanes, last = self.lanes_in, len(self.order) - 1
        apart = self.sizes[-1] % lanes or self.channels_in % lanes or self.channels_out % lanes
        kept = self.order[-1] == last and not apart
        return lanes == self.lanes_out and (lanes == 1 or kept)

    def unit(self, engine: Engine) -> Unit:
        if self._banked:
            return Unit(
                "transpose", self.look_up("BLOCKS ROWS=channels_out C=channels_in LANES=lanes_in")
            )
        ends = "C_IN=channels_in LANES_IN READS C_OUT=channels_out LANES_OUT WRITES"
        source = {"int from(int i)": index_lines(self.sizes, self.order, self.backwards)}
        function = "perm_words" if self._whole else "perm"
        return Unit(function, self.look_up(f"BLOCKS ELEMENTS {ends}"), source)

    def compute(self, layer: Layer, reads: Sequence[Tensor], table: Tables) -> Tensor:
        x = reads[0].reshape(self.blocks, *self.sizes)
        x = x.flip([axis + 1 for axis in self.backwards])
        return x.permute(0, *(axis + 1 for axis in self.order))


SMALL_BLOCK = 4096
"""Elements up to which a reordered block is held in registers, any lane in any cycle; above it only
matrices are turned several lanes at a time (``transpose.h``)."""


def index_lines(
    sizes: tuple[int, ...], order: tuple[int, ...], backwards: tuple[int, ...] = ()
) -> list[str]:
    """Lines that take an index of the transposed block to one of the block."""
    steps = [math.prod(sizes[axis + 1 :]) for axis in order]
    digit = [f"({sizes[a] - 1} - i{k})" if a in backwards else f"i{k}" for k, a in enumerate(order)]
    terms = [f"{i} * {step}" if step > 1 else i for i, step in zip(digit, steps, strict=True)]
    return [*digits("i", [sizes[axis] for axis in order]), f"return {' + '.join(terms)};"]
