"""Readers of memory: rows of a table by index, weights in bursts."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from pipec.backends.fpga.arithmetic import ADDRESS, MEMORY, PICK
from pipec.backends.fpga.engines.base import Adapters, Folded, Layer, Nest, Rows, Tables
from pipec.backends.fpga.engines.gear import regrouping
from pipec.backends.fpga.engines.parts import PORT_BITS
from pipec.backends.fpga.engines.route import rows_table
from pipec.backends.fpga.numbers import bits_of
from pipec.backends.fpga.runs import Loop, Run, Runs


@dataclass(frozen=True)
class Gather(Rows):
    """Row lookup (embedding): ``for v in rows: i = read in0; for c in cf: write table[i][c]``.

    The index token has one lane of an integer type. Role ``table``: ``[entries][cf][lanes]``.
    """

    constants = "N=rows CF LANES ENTRIES"
    tables = ("table",)

    entries: int = 1

    def fold(self, layer: Layer, target: int, dtype: str, block: int = 0) -> Folded:
        nest = dataclasses.replace(self, lanes=layer.row_lanes(target))
        table = rows_table(layer, (nest.entries, nest.cf), nest.lanes, dtype)
        return Folded(nest, nest.lanes, 2 * PICK + ADDRESS + MEMORY + 1, table)

    def runs(self, ii: int, inputs: int) -> Runs:
        return (Loop(self.rows, (Run(1, ii, 1, 1), Run(self.cf - 1, ii, 0, 1))),)

    def compute(self, layer: Layer, reads: Sequence[Tensor], table: Tables) -> Tensor:
        return table(layer.tables["table"])[reads[0].reshape(-1)]


@dataclass(frozen=True)
class Load(Nest):
    """Reads weights from DDR in bursts: ``for r in repeat: for i in words: write word``.

    A word has ``lanes`` elements (PE*SIMD of its reader); role ``weight``
    ``[words][lanes]`` is the reader's weight array as it lies in memory, read in beats of so many.
    """

    words: int
    lanes: int
    repeat: int
    beat: int

    def runs(self, ii: int, inputs: int) -> Runs:
        return (Run(self.words * self.repeat, ii, 0, 1),)

    def adapters(self, dtype: str) -> Adapters:
        return ((self.beat * bits_of(dtype), True),)

    def logic(self, dtype: str) -> tuple[float, float]:
        whole = self.lanes % self.beat == 0
        return (0.0, 0.0 if whole else regrouping(self.beat, self.lanes, dtype))


def beat_lanes(lanes: int, dtype: str) -> int:
    """Elements of a beat: those of a word, as far as its bits are a power of two from 32 to 512."""
    bits = bits_of(dtype)
    return min(max(1 << (lanes - 1).bit_length(), 32 // bits), PORT_BITS // bits)
