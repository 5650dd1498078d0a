"""Engines that copy tokens: fork, join, select, repeat, constants."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from pipec.backends.fpga.engines.base import Engine, Folded, Layer, Nest, Rows, Tables, Unit, Use
from pipec.backends.fpga.engines.parts import Weight, in_tokens, weight
from pipec.backends.fpga.engines.tiles import ceil_div, divisor_for, lanes_for
from pipec.backends.fpga.runs import Loop, Run, Runs


@dataclass(frozen=True)
class Fork(Nest):
    """Copies every token to all outputs in one firing: ``tokens`` firings."""

    constants = "TOKENS"
    additions = 1

    tokens: int
    outputs: int

    def runs(self, ii: int, inputs: int) -> Runs:
        return (Run(self.tokens, ii, 1, (1 << self.outputs) - 1),)


@dataclass(frozen=True)
class Concat(Nest):
    """Joins inputs along one axis: ``for o in outer: for k in inputs: for i in sizes[k]: copy``.

    Attributes:
        outer: Repetitions per frame.
        sizes: Tokens that input k contributes to each repetition.
    """

    moves = True

    outer: int
    sizes: tuple[int, ...]

    def fold(self, layer: Layer, target: int, dtype: str, block: int = 0) -> Folded:
        lanes = layer.row_lanes(target)
        if any(u.channels != layer.channels for u in layer.inputs):
            lanes = divisor_for(math.gcd(*self.sizes), layer.channels, layer.rows, target)
        reads = (lanes,) * len(layer.inputs)
        sizes = tuple(
            s // u.channels * ceil_div(u.channels, lanes)
            for s, u in zip(self.sizes, layer.inputs, strict=True)
        )
        nest, depth = Concat(self.outer, sizes), 1 + (len(sizes) > 4)  # at 300 MHz
        return Folded(nest, lanes, depth, reads=reads, dtype=layer.inputs[0].dtype)

    def runs(self, ii: int, inputs: int) -> Runs:
        body = tuple(Run(size, ii, 1 << k, 1) for k, size in enumerate(self.sizes))
        return (Loop(self.outer, body),)

    def unit(self, engine: Engine) -> Unit:
        ends = ", ".join(map(str, accumulate(self.sizes)))
        body = [f"constexpr int ends[] = {{{ends}}};", "return ends[port];"]
        constants = {"OUTER": self.outer, "TOKENS": sum(self.sizes)}
        return Unit("concat", constants, {"int end(int port)": body}, leading=0)

    def compute(self, layer: Layer, reads: Sequence[Tensor], table: Tables) -> Tensor:
        parts = zip(reads, self.sizes, strict=True)
        return torch.cat([x.reshape(self.outer, size) for x, size in parts], 1)


@dataclass(frozen=True)
class Slice(Nest):
    """Keeps part of one axis: ``for o in outer: for j in size: for i in inner: read; maybe write``.

    Writes where ``start <= j < stop`` and ``(j-start) % step == 0``; counts are in tokens, and
    read and write are the same firing.
    """

    moves = True
    constants = "OUTER SIZE START STOP STEP INNER"

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

    def _lanes(self, use: Use, target: int) -> int:
        if self.inner % use.channels == 0:
            return lanes_for(use.channels, use.rows, target)
        unit = self.inner
        if self.step == 1:
            unit *= math.gcd(self.size, self.start, self.stop)
        return divisor_for(unit, use.channels, use.rows, target)

    def fold(self, layer: Layer, target: int, dtype: str, block: int = 0) -> Folded:
        lanes, channels = self._lanes(layer.inputs[0], target), layer.inputs[0].channels
        if self.inner % channels == 0:
            inner = self.inner // channels * ceil_div(channels, lanes)
            nest = dataclasses.replace(self, inner=inner)
        elif self.step == 1:
            bounds = (n * self.inner // lanes for n in (self.size, self.start, self.stop))
            nest = Slice(self.outer, *bounds)
        else:
            nest = dataclasses.replace(self, inner=self.inner // lanes)
        return Folded(nest, lanes, 1, reads=(lanes,), dtype=layer.inputs[0].dtype)

    def runs(self, ii: int, inputs: int) -> Runs:
        inner, kept = self.inner, self.kept
        tail = self.size - self.start - (kept - 1) * self.step - 1
        skipped = Run((self.step - 1) * inner, ii, 1)
        body = (
            Run(self.start * inner, ii, 1),
            Loop(kept - 1, (Run(inner, ii, 1, 1), skipped)),
            Run(inner, ii, 1, 1),
            Run(tail * inner, ii, 1),
        )
        return (Loop(self.outer, body),)

    def compute(self, layer: Layer, reads: Sequence[Tensor], table: Tables) -> Tensor:
        x = reads[0].reshape(self.outer, self.size, self.inner)
        return x[:, self.start : self.stop : self.step]


@dataclass(frozen=True)
class Repeat(Nest):
    """Repeats blocks: ``for o in outer: read and keep `inner` tokens; write them `times` times``.

    The first pass reads and writes in one firing; used where a small operand is broadcast over
    rows (one value per channel against a map).
    """

    moves = True

    outer: int
    inner: int
    times: int

    def fold(self, layer: Layer, target: int, dtype: str, block: int = 0) -> Folded:
        lanes = layer.row_lanes(target)
        inner = self.inner // layer.channels * ceil_div(layer.channels, lanes)
        nest = dataclasses.replace(self, inner=inner)
        return Folded(nest, lanes, 2, dtype=layer.inputs[0].dtype)

    def runs(self, ii: int, inputs: int) -> Runs:
        body = (Run(self.inner, ii, 1, 1), Run(self.inner * (self.times - 1), ii, 0, 1))
        return (Loop(self.outer, body),)

    def buffer(self, bits: int, sums: int) -> tuple[int, int]:
        return (bits, self.inner)

    def compute(self, layer: Layer, reads: Sequence[Tensor], table: Tables) -> Tensor:
        x = reads[0].reshape(self.outer, 1, -1)
        return x.expand(self.outer, self.times, x.shape[-1])


def rows_table(layer: Layer, tokens: tuple[int, ...], lanes: int, dtype: str) -> tuple[Weight]:
    """The table whose rows are looked up or written, ``[*tokens][lanes]``."""
    table, shape = layer.tables["table"], (*tokens, lanes)
    return (weight("table", shape, table, layer.dtype or dtype, lambda a: in_tokens(a, lanes)),)


@dataclass(frozen=True)
class Const(Rows):
    """Writes a constant every frame: role ``table`` ``[tokens][lanes]``."""

    function = "source"
    constants = "LANES TOKENS"
    tables = ("table",)

    def fold(self, layer: Layer, target: int, dtype: str, block: int = 0) -> Folded:
        nest = dataclasses.replace(self, lanes=layer.row_lanes(target))
        return Folded(nest, nest.lanes, 2, rows_table(layer, (nest.tokens,), nest.lanes, dtype))

    def compute(self, layer: Layer, reads: Sequence[Tensor], table: Tables) -> Tensor:
        return table(layer.tables["table"])
