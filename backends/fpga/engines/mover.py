"""Movers between a stream and DDR; they stand for no layer, but at ports and in FIFOs."""

from dataclasses import dataclass
from typing import ClassVar

from pipec.backends.fpga.arithmetic import step_cost
from pipec.backends.fpga.engines.base import Adapters, Engine, Nest, Unit
from pipec.backends.fpga.numbers import bits_of
from pipec.backends.fpga.runs import Loop, Run, Runs

MICROBATCH, MICROBATCHES = "microbatch", "microbatches"
"""Arguments of a kernel with movers: number of the first frame, frames of an update."""


@dataclass(frozen=True)
class Mover(Nest):
    """An engine between a stream and DDR.

    Attributes:
        counts: Its arguments that number microbatches; none if what it moves stays in a kernel.
        writes: Whether it writes to memory.
        stored: Type of the numbers that lie there, if not that of its stream.
        tokens: Per frame; ``lanes`` elements of each.
        slots: Frames, or chunks, that lie in memory.
    """

    counts: ClassVar[tuple[str, ...]] = (MICROBATCH,)
    writes: ClassVar[bool]
    stored: ClassVar[str] = ""

    tokens: int
    lanes: int
    slots: int = 1

    @property
    def ring(self) -> tuple[int, int]:
        """Tokens in memory of a frame, or of a chunk of it, and how many of these lie there."""
        return self.tokens, self.slots

    def runs(self, ii: int, inputs: int) -> Runs:
        return (Run(self.tokens, ii, *((1, 0) if self.writes else (0, 1))),)

    def adapters(self, dtype: str) -> Adapters:
        return ((self.lanes * bits_of(dtype), not self.writes),)

    def unit(self, engine: Engine) -> Unit:
        return Unit(self.kind(), self.look_up(self.constants), arguments=self.counts)


@dataclass(frozen=True)
class Store(Mover):
    """Writes frames into a ring in DDR: ``for i in tokens: memory[n % slots][i] = read in0``.

    Of microbatch n. `Fetch` reads the ring in the same way, in another kernel.
    """

    writes = True


@dataclass(frozen=True)
class Fetch(Mover):
    """Reads frames from a ring in DDR: ``for i in tokens: write memory[n % slots][i]``."""

    writes = False


@dataclass(frozen=True)
class Accumulate(Mover):
    """Adds frames in DDR, in float32, anew for every update of so many microbatches.

    ```text
    for i in firings: if i < tokens: memory[i] = (n % microbatches == 0 ? 0 : memory[i]) + read in0
    ```

    Attributes:
        least: Firings of a frame, at least: those that pass until a word is written, since the next
            frame reads it.
    """

    constants = "TOKENS LANES FIRINGS"
    counts = (MICROBATCH, MICROBATCHES)
    writes = True
    stored = "float32"
    updates = True

    least: int = 0

    def buffer(self, bits: int, sums: int) -> tuple[int, int]:
        return (self.lanes * sums, 0)  # no word lies on chip

    @property
    def firings(self) -> int:
        """Firings of a frame; those behind its last token read nothing."""
        return max(self.tokens, self.least)

    def runs(self, ii: int, inputs: int) -> Runs:
        silent = self.firings - self.tokens  # of the frame before
        return (Run(1, (silent + 1) * ii, 1), Run(self.tokens - 1, ii, 1))

    def logic(self, dtype: str) -> tuple[float, float]:
        dsp, lut = step_cost("add", self.stored)
        return (self.lanes * dsp, self.lanes * lut)

    def adapters(self, dtype: str) -> Adapters:
        bits = self.lanes * bits_of(self.stored)
        return ((bits, True), (bits, False))


@dataclass(frozen=True)
class Chunks(Mover):
    """One end of a FIFO in DDR: a ring of chunks, and a token for every chunk that lies there.

    Attributes:
        chunk: Tokens that are counted together, a divisor of those of a frame.
    """

    counts = ()

    chunk: int = 1

    @property
    def ring(self) -> tuple[int, int]:
        return self.chunk, self.slots

    def runs(self, ii: int, inputs: int) -> Runs:
        both, one = Run(1, ii, 1, 1), Run(self.chunk - 1, ii, *((1, 0) if self.writes else (0, 1)))
        return (Loop(self.tokens // self.chunk, (one, both) if self.writes else (both, one)),)


@dataclass(frozen=True)
class Spill(Chunks):
    """The way into a FIFO in DDR.

    ```text
    for i in tokens: memory[ring][i % chunk] = read in0; if chunk is full: write out0; next of ring
    ```
    """

    writes = True


@dataclass(frozen=True)
class Refill(Chunks):
    """The way out of a FIFO in DDR.

    ```text
    for i in tokens: if chunk begins: read in0; write memory[ring][i % chunk]
    ```
    """

    writes = False
