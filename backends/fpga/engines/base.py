"""What every kind of engine says of itself, and what all of them are made of.

A *nest* fixes an engine's arithmetic, the order of its firings and what every firing reads and
writes. A **firing** is one iteration of the innermost pipelined loop; it reads at most one token
per input stream and writes at most one token per output stream. Loops are written outer to inner.

Words used throughout:

- A **token** is ``lanes`` (P) consecutive elements of one **row** (one pixel, window position or
  sequence position; channels innermost). A row of C channels has ``CF = ceil(C/P)`` tokens. The
  elements of the last token beyond C are *padding*: every engine writes them as zero.
- A **frame** is one call of the stage: one microbatch. The batch is folded into the rows. Every
  engine repeats its nest once per frame, for ever.
- Sizes are those of one frame; cycles assume an initiation interval of 1 unless said otherwise.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import ClassVar, Self

from torch import Tensor, nn

from pipec.backends.fpga.arithmetic import CLOCK
from pipec.backends.fpga.engines.parts import UNCLAMPED, Memory, Narrowing, Resources, Table, Weight
from pipec.backends.fpga.engines.steps import MapStep
from pipec.backends.fpga.engines.tiles import ceil_div, lanes_for
from pipec.backends.fpga.engines.window import Window
from pipec.backends.fpga.numbers import kind_of
from pipec.backends.fpga.runs import Run, Runs, clean, cycles

Tables = Callable[[Table], Tensor]
"""Tables as tensors."""
Adapters = tuple[tuple[int, bool], ...]
"""Of every m_axi adapter its bits, and whether it reads."""


@dataclass(frozen=True)
class Nest(ABC):
    """A kind of engine: its loop nest as integers, and all that follows from it.

    A kind is one subclass in ``engines/<file>.py``, its C++ in ``hls/engines/<file>.h``, its
    reference in ``benchmarks/rtl/sv/<kind>.sv``. Nothing else names it if its file lowers the ops
    that it takes (`network.lowers`). Its fields are what ``stage.json`` says of it; a field
    ``lanes`` is 1 until the layer is folded.

    Attributes:
        label: What its engines are called, if not as the class; ``function`` its C++ function.
        constants: Constants of its C++ struct (`look_up`).
        tables: Roles of the tables that its C++ function takes (`Unit`).
        additions: Integer additions of its counters and addresses.
        updates: Whether one loop both reads and writes its working memory.
        sample: A small model that takes it, and the shape of its input: all suites run it.
    """

    label: ClassVar[str] = ""
    function: ClassVar[str] = ""
    constants: ClassVar[str] = "*"
    tables: ClassVar[tuple[str, ...]] = ()
    additions: ClassVar[int] = 3
    updates: ClassVar[bool] = False
    sample: ClassVar[tuple[type[nn.Module], tuple[int, ...]] | None] = None

    KINDS: ClassVar[dict[str, type["Nest"]]] = {}

    def __init_subclass__(cls) -> None:
        cls.KINDS[cls.kind()] = cls

    @classmethod
    def kind(cls) -> str:
        """Its name in ``stage.json``: the class in lower case (``swg``, ``mvu``, ...)."""
        return cls.__name__.lower()

    @property
    def outside(self) -> float:
        """The number that windows in front of it hold outside of the maps."""
        return 0.0

    @property
    def moves(self) -> bool:
        """Whether it writes numbers that it reads, or zeros: then in their type and format."""
        return False

    @abstractmethod
    def runs(self, ii: int, inputs: int) -> Runs:
        """The firings of one frame with so many input streams; may hold empty runs."""

    def busy(self, ii: int, inputs: int) -> int:
        """Cycles per frame when nothing makes it wait."""
        return cycles(nest_table(self, ii, inputs))

    def fold(self, layer: "Layer", target: int, dtype: str, block: int = 0) -> "Folded":
        """The cheapest form in which a layer takes at most ``target`` cycles per frame.

        A `Mvu` streams its weights with ``block`` vectors per pass; 0 keeps them on chip.
        """
        raise TypeError(f"{self.kind()} stands for no layer")

    @property
    def macs(self) -> int:
        """Multiply-accumulates per frame, overhang not counted."""
        return 0

    @property
    def units(self) -> int:
        """Multiply-accumulates that start in one cycle."""
        return 0

    @property
    def common(self) -> int:
        """Products that have one operand in common, however it is folded."""
        return 1

    def buffer(self, bits: int, sums: int) -> tuple[int, int]:
        """Word width and words of its working memory, at so many bits per element and per sum."""
        return (0, 0)

    def logic(self, dtype: str) -> tuple[float, float]:
        """DSPs and LUTs of its data path."""
        return (0.0, 0.0)

    def adapters(self, dtype: str) -> Adapters:
        """Its m_axi adapters."""
        return ()

    def unit(self, engine: "Engine") -> "Unit":
        """How it is written in C++."""
        function = self.function or self.label or self.kind()
        return Unit(function, self.look_up(self.constants), tables=self.tables)

    def header(self) -> str:
        """Its C++ header, in ``hls/engines``."""
        return self.__module__.rpartition(".")[2] + ".h"

    def look_up(self, names: str) -> dict[str, int]:
        """C++ constants from its fields: of their names in lower case, or as ``C=channels`` says.

        ``*`` stands for all fields in order.
        """
        every = [field.name.upper() for field in fields(self)]
        words = [w for n in names.split() for w in (every if n == "*" else [n])]
        pairs = [name.partition("=") for name in words]
        return {name: getattr(self, of or name.lower()) for name, _, of in pairs}

    def rtl(self) -> dict[str, int | tuple[int, ...]]:
        """Parameters of its SystemVerilog module, constants rounded; empty where it has none."""
        return {}

    def compute(self, layer: "Layer", reads: Sequence[Tensor], table: Tables) -> Tensor:
        """The results of a layer of inference in real numbers, elements in stream order.

        ``reads`` are its inputs, in the rows in which it reads them.
        """
        raise TypeError(f"{self.kind()} computes nothing in inference")


@dataclass(frozen=True)
class Rows(Nest):
    """What goes through ``rows`` of ``channels`` elements, token by token."""

    rows: int
    channels: int
    lanes: int = 1

    @property
    def cf(self) -> int:
        """Tokens per row."""
        return ceil_div(self.channels, self.lanes)

    @property
    def tokens(self) -> int:
        """Tokens per frame."""
        return self.rows * self.cf

    def runs(self, ii: int, inputs: int) -> Runs:
        """A token of every input, and one written, in each firing."""
        return (Run(self.tokens, ii, (1 << inputs) - 1, 1),)

    def depth(self, dtype: str, clock_mhz: float) -> int:
        """Pipeline depth of its data path at a clock, the register of its result included."""
        return 2

    def fold(self, layer: "Layer", target: int, dtype: str, block: int = 0) -> "Folded":
        nest = dataclasses.replace(self, lanes=layer.row_lanes(target))
        return Folded(nest, nest.lanes, nest.depth(dtype, layer.clock_mhz))


@lru_cache(maxsize=4096)
def nest_table(nest: Nest, ii: int, inputs: int) -> Runs:
    """The run table of a nest, without empty runs; see `Nest.runs`."""
    return clean(nest.runs(ii, inputs))


@dataclass(frozen=True)
class Folded:
    """A layer of more than one lane.

    Attributes:
        nest: Its nest with lanes.
        lanes: Elements of a token that it writes.
        depth: Pipeline depth.
        weights: Its tables.
        reads: Elements of a token of every input; as many as it writes if not said, at most a row.
        kp: Kernel positions of a token of its windows.
        ii: Initiation interval.
        dtype: Element type, if not that of the whole network.
        merged: Rows of the layer that are written as one.
    """

    nest: Nest
    lanes: int
    depth: int
    weights: tuple[Weight, ...] = ()
    reads: tuple[int, ...] = ()
    kp: int = 1
    ii: int = 1
    dtype: str = ""
    merged: int = 1


@dataclass(frozen=True)
class Use:
    """How a consumer sees an edge: ``rows x channels`` elements of type ``dtype``."""

    edge: str
    rows: int
    channels: int
    dtype: str = "float32"


@dataclass(frozen=True)
class Layer:
    """A loop nest at one lane: a token is an element, one multiplier, tables on chip.

    Attributes:
        name: C identifier; also the name of the edge that it writes.
        node: Graph node that it came from.
        origin: That node in the user's words.
        inputs: Edges read, in port order.
        rows: Rows written per frame; ``channels`` elements each.
        nest: What it computes; folding widens it, and says which tables there are.
        window: The window generator in front of it, at one lane too; None where it needs none.
        tables: Role to table. ``weight`` is ``[groups][rows][taps][channels]`` of a `Mvu`
            and ``[channels][taps]`` of a `Vvu`, ``bias`` has its leading axes; ``scale`` of a
            pooling is ``[oh*ow]``, ``scale`` and ``shift`` of row units ``[taps*channels]``, and
            ``table`` has the rows that are looked up, or written.
        dtype: Element type written, if not that of the whole network.
        clamp: What its results are limited to before they are rounded (8-bit integers only).
        rescale: How its sums become 8-bit integers, where it computes in integers; role
            ``rescale`` where every result has a multiplier of its own.
        used: Share of the weights that are not zero by construction.
        steps: Chain of a `Map`, on one or two edges.
        clock_mhz: Clock of its board.
    """

    name: str
    node: str
    origin: str
    inputs: tuple[Use, ...]
    rows: int
    channels: int
    nest: Nest
    window: Window | None = None
    tables: Mapping[str, Table] = field(default_factory=dict, hash=False)
    dtype: str = ""
    clamp: tuple[float, float] = UNCLAMPED
    rescale: Narrowing | None = None
    used: float = 1.0
    steps: tuple[MapStep, ...] = ()
    clock_mhz: float = CLOCK

    @property
    def moves(self) -> bool:
        """Whether it writes numbers that it reads, or zeros around them."""
        return self.nest.moves and not self.steps

    def row_lanes(self, target: int) -> int:
        """Fewest lanes with which it takes at most ``target`` cycles, going row by row."""
        return lanes_for(self.channels, self.rows, target)

    def lanes_of(self, folded: Folded) -> tuple[int, ...]:
        """Elements of a token of every input under a folding."""
        return folded.reads or tuple(min(folded.lanes, use.channels) for use in self.inputs)

    def arithmetic(self, precision: str) -> str:
        """The element type in which it computes, in a network of some precision."""
        return kind_of(self.dtype) if self.dtype else precision

    def with_tables(self, **tables: Table) -> Self:
        """The layer with other tables in some roles."""
        return dataclasses.replace(self, tables={**self.tables, **tables})


@dataclass(frozen=True)
class Engine:
    """One process of the dataflow: a nest, its timing, its tables and its streams.

    Attributes:
        name: C identifier, made of the graph node's name; unique in the stage.
        nest: The loop nest; its class is the engine's kind.
        inputs: Names of the streams read, by port number: in0, in1, ...
        outputs: Names of the streams written: out0, out1, ...
        ii: Initiation interval: cycles from one firing to the next, at least.
        depth: Pipeline depth D: a token written by a firing at cycle t is visible at t + D.
        weights: Tables, by role.
        dtype: Element type of what it reads and writes.
        second: Type of its second input, ``result`` of its output, where they differ from it.
        narrowing: How its sums become 8-bit integers, if they do.
        node: The graph node it came from.
        origin: That node in the user's words (``Conv conv1 (model.py:8)``).
        memory: Where its working buffer lies (line buffer, row, block, operand).
        buffer_bits: Size of that buffer.
        resources: Estimate, tables and buffer included, the FIFOs of its outputs too.
    """

    name: str
    nest: Nest
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    ii: int = 1
    depth: int = 4
    weights: tuple[Weight, ...] = ()
    dtype: str = "float32"
    second: str = ""
    result: str = ""
    narrowing: Narrowing | None = None
    node: str = ""
    origin: str = ""
    memory: Memory = Memory.LUT
    buffer_bits: int = 0
    resources: Resources = field(default_factory=Resources)

    @property
    def kind(self) -> str:
        """Kind of engine: the nest's class in lower case (``swg``, ``mvu``, ...)."""
        return self.nest.kind()

    def weight(self, role: str) -> Weight | None:
        """The table of that role, if any."""
        return next((w for w in self.weights if w.role == role), None)


@dataclass(frozen=True)
class Unit:
    """How an engine is written in C++.

    Attributes:
        function: Its function in namespace ``engine``.
        constants: Constants of its configuration struct, besides ``II`` and ``DEPTH``.
        functions: Static functions of the struct, signature to lines.
        tables: Roles of the tables it takes, in order; ``role?stand_in`` where it may be missing.
        arguments: Further arguments, as C++.
        leading: Inputs before the outputs; the others follow them.
    """

    function: str
    constants: Mapping[str, int]
    functions: Mapping[str, Iterable[str]] = field(default_factory=dict)
    tables: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    leading: int = 2


def run_table(engine: Engine) -> Runs:
    """The run table of an engine."""
    return nest_table(engine.nest, engine.ii, len(engine.inputs))


@lru_cache(maxsize=1 << 16)
def _busy(nest: Nest, ii: int, inputs: int) -> int:
    return nest.busy(ii, inputs)


def busy_cycles(engine: Engine) -> int:
    """Cycles of an engine per frame when nothing makes it wait."""
    return _busy(engine.nest, engine.ii, len(engine.inputs))
