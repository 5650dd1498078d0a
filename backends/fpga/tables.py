"""What a kernel reads and writes in memory; tables as words in files, in memory, on the chip."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipec.backends.fpga.cpp import cpp_type, identifier
from pipec.backends.fpga.design import DdrPort, Port, StageDesign
from pipec.backends.fpga.engines.base import Engine
from pipec.backends.fpga.engines.memory import Load
from pipec.backends.fpga.engines.mover import Mover
from pipec.backends.fpga.engines.parts import PORT_BITS, Memory, Weight
from pipec.backends.fpga.engines.tiles import ceil_div
from pipec.backends.fpga.numbers import bits_of, encode

BEAT_BYTES = PORT_BITS // 8
"""Bytes of the widest beat of a memory port, and of what tables are aligned to."""
TABLES = "gmem_tables"
"""Bundle of the pointers to images of tables."""
WIDEST_WORD_BITS = 4096
"""Bits of the widest word that is one aggregate."""


def table_name(engine: Engine, role: str) -> str:
    """The C++ name of a table, without its namespace."""
    return identifier(engine.name) + "_" + role


@dataclass(frozen=True)
class OnChip:
    """One table that is filled from memory before the first frame.

    Attributes:
        name: C++ name in namespace ``table`` and name of its ``.bin`` file.
        weight: The table.
        first_beat: Its first beat in the memory image of its element type.
    """

    name: str
    weight: Weight
    first_beat: int

    @property
    def beats(self) -> int:
        """Beats that it takes in memory."""
        return ceil_div(self.weight.bits // 8, BEAT_BYTES)

    @property
    def ram(self) -> str:
        """Where it lies, in the words of ``BIND_STORAGE``."""
        return "lutram" if self.weight.memory is Memory.LUT else self.weight.memory.value

    @property
    def is_wide(self) -> bool:
        """Whether it is kept as one memory per lane instead of one aggregate."""
        return self.weight.word_bits > WIDEST_WORD_BITS


@dataclass(frozen=True)
class Pointer:
    """A memory pointer of the top function.

    Attributes:
        name: Name of the argument.
        word: C++ type of what it points at.
        words: Number of words that lie there.
        port: Its memory port; images of tables have one together.
        table: File of the table that is read through it, if it is one.
        mover: The engine that moves values through it, if one does.
    """

    name: str
    word: str
    words: int
    port: DdrPort | None = None
    table: str = ""
    mover: Mover | None = None

    @property
    def bundle(self) -> str:
        """Its AXI bundle: images of tables share one, all others have their own."""
        return TABLES if self.port is None else self.name

    @property
    def writes(self) -> bool:
        """Whether the kernel writes there."""
        return self.mover is not None and self.mover.writes

    @property
    def crosses(self) -> bool:
        """Whether what moves there goes to another kernel, and not back to this one."""
        return self.mover is not None and bool(self.mover.counts)


def pointers(design: StageDesign) -> list[Pointer]:
    """The memory pointers of a kernel: images of tables, tables that stay in memory, values."""
    beats: dict[str, int] = {}
    for own in on_chip(design):
        beats[own.weight.dtype] = own.first_beat + own.beats
    found = [
        Pointer(f"tables_{identifier(dtype)}", cpp_type(dtype), count * PORT_BITS // bits_of(dtype))
        for dtype, count in beats.items()
    ]
    for port, engine, weight in off_chip(design):
        assert isinstance(engine.nest, Load)
        lanes, table = engine.nest.beat, table_name(engine, weight.role)
        words = ceil_div(weight.bits, lanes * bits_of(weight.dtype))
        word = f"vec<{cpp_type(weight.dtype)}, {lanes}>"
        found.append(Pointer(identifier(port.name), word, words, port, table))
    return found + [_pointer(design, port, port.carries) for port in design.ddr if port.carries]


def scalars(design: StageDesign) -> tuple[str, ...]:
    """The scalar arguments of a kernel: the number of its first microbatch, frames, and so on."""
    counts = max((p.mover.counts for p in pointers(design) if p.mover), key=len, default=())
    return (*counts, "frames", "load_tables")


def _pointer(design: StageDesign, port: DdrPort, carried: Port) -> Pointer:
    """Where values move through memory."""
    stream, nest = design.streams[carried.stream], design.engine(port.engine).nest
    assert isinstance(nest, Mover)
    word = f"vec<{cpp_type(nest.stored or stream.dtype)}, {stream.lanes}>"
    return Pointer(identifier(port.name), word, math.prod(nest.ring), port, mover=nest)


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


def off_chip(design: StageDesign) -> list[tuple[DdrPort, Engine, Weight]]:
    """The tables that stay in memory: port, engine, table."""
    return [
        (port, engine, weight)
        for port in design.ddr
        for engine in [design.engine(port.engine)]
        for weight in engine.weights
        if weight.memory is Memory.DDR
    ]


def table_of(weight: Weight) -> NDArray[np.generic]:
    """The table as it is stored: little endian, dense, row-major.

    Raises:
        BackendError: The model has no weights.
    """
    return np.ascontiguousarray(encode(weight.values(), weight.dtype)).reshape(weight.shape)
