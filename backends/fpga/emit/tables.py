"""Tables as words: how an engine's weights lie in ``.bin`` files, in memory and on the chip."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipec.backends.fpga.cpp import cpp_type
from pipec.backends.fpga.design import StageDesign
from pipec.backends.fpga.emit.engines import table_name
from pipec.backends.fpga.engines.base import Engine
from pipec.backends.fpga.engines.parts import Memory, Weight
from pipec.backends.fpga.engines.tiles import ceil_div
from pipec.backends.fpga.numbers import encoded

BEAT_BYTES = 64
"""Bytes of one beat of a memory port: 512 bits."""
BURST = 64
"""Beats of the longest burst that a kernel asks for: 4,096 bytes, which no AXI burst may cross."""
WIDEST_WORD_BITS = 4096
"""Wider words are kept as one memory per lane instead of one aggregate."""


@dataclass(frozen=True)
class OnChip:
    """One table that is filled from memory before the first frame.

    Attributes:
        name: C++ name in namespace ``table`` and name of its ``.bin`` file.
        weight: The table.
        first_beat: Where it starts in the memory image of its element type.
    """

    name: str
    weight: Weight
    first_beat: int

    @property
    def element(self) -> str:
        """C++ type of an element."""
        return cpp_type(self.weight.dtype)

    @property
    def beats(self) -> int:
        """Beats that it takes in memory."""
        return beats_of(self.weight)

    @property
    def word_bits(self) -> int:
        """Bits of a word."""
        return self.weight.bits // self.weight.words

    @property
    def lanes(self) -> int:
        """Elements of a word."""
        return math.prod(self.weight.shape) // self.weight.words

    @property
    def storage(self) -> str:
        """What ``BIND_STORAGE`` says of it."""
        names = {Memory.LUT: "lutram", Memory.BRAM: "bram", Memory.URAM: "uram"}
        return names[self.weight.memory]


def beats_of(weight: Weight) -> int:
    """Beats that a table takes in memory."""
    return ceil_div(weight.bits // 8, BEAT_BYTES)


def on_chip(design: StageDesign) -> list[OnChip]:
    """The tables that live on the chip, in the order in which they lie in memory."""
    found: list[OnChip] = []
    beats: dict[str, int] = {}
    for engine in design.engines:
        for weight in engine.weights:
            if weight.memory is Memory.DDR:
                continue
            first = beats.get(weight.dtype, 0)
            table = OnChip(table_name(engine, weight.role), weight, first)
            found.append(table)
            beats[weight.dtype] = first + table.beats
    return found


def off_chip(design: StageDesign) -> list[tuple[str, Engine, Weight]]:
    """The tables that stay in memory: name of the port, engine, table."""
    return [
        (port.name, engine, weight)
        for port in design.ddr
        for engine in [design.engine(port.engine)]
        for weight in engine.weights
        if weight.memory is Memory.DDR
    ]


def stored(weight: Weight) -> NDArray[np.generic]:
    """The table as it is stored: little endian, dense, row-major.

    Raises:
        BackendError: The model has no weights.
    """
    return np.ascontiguousarray(encoded(weight.values(), weight.dtype)).reshape(weight.shape)
