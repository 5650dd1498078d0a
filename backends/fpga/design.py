"""What one board holds: engines, the streams between them, and the facts about both.

```text
 axis in ──► s0 ──► [SWG] ──► s1 ──► [MVU] ──► s2 ──► [MAP] ──► s3 ──► axis out
                                       ▲
                              m_axi ─ [LOAD]                 (weights that do not fit on chip)
```

A `StageDesign` is made by lowering and folding, and read by four: the cycle simulator, the
resource estimate, ``stage.json``, and the C++ emitter. It holds no torch object; weights are
closures that yield the final array when asked for.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pipec.backends.fpga.arithmetic import CLOCK
from pipec.backends.fpga.engines.base import Engine
from pipec.backends.fpga.engines.parts import Memory, Resources
from pipec.backends.fpga.engines.tiles import ceil_div
from pipec.backends.fpga.numbers import bits_of


@dataclass(frozen=True)
class Stream:
    """A FIFO of tokens with one writer and one reader.

    Attributes:
        name: C identifier, unique in the stage.
        rows: Rows per frame (pixels, window positions, sequence positions).
        channels: Elements of one row; the last token of a row is padded with zeros.
        lanes: Elements of one token, P.
        dtype: Element type (`bits_of`).
        depth: Declared FIFO depth N (``STREAM depth``), at least 2.
        producer: Engine that writes it; None if it is an input of the stage.
        consumer: Engine that reads it; None if it is an output of the stage.
        initial: Tokens of zeros that it holds at reset: the state of a feedback loop.
        memory: Where it lies, if that is not left to the tools.
    """

    name: str
    rows: int
    channels: int
    lanes: int
    dtype: str = "float32"
    depth: int = 2
    producer: str | None = None
    consumer: str | None = None
    initial: int = 0
    memory: Memory | None = None

    @property
    def tokens_per_row(self) -> int:
        """CF, ``ceil(channels/lanes)``."""
        return ceil_div(self.channels, self.lanes)

    @property
    def tokens(self) -> int:
        """Tokens per frame."""
        return self.rows * self.tokens_per_row

    @property
    def token_bits(self) -> int:
        """Bits of one token."""
        return self.lanes * bits_of(self.dtype)

    @property
    def nbytes(self) -> int:
        """Bytes per frame, padding included."""
        return self.tokens * self.token_bits // 8


@dataclass(frozen=True)
class Port:
    """An input or output of the stage: AXI4-Stream.

    The stream carries the tensor's elements row-major in the axis order ``order``:
    ``tensor.permute(order).reshape(stream.rows, stream.channels)``, row by row, each row's last
    token padded.

    Attributes:
        value: Name of the graph's input or output (what crosses the cut).
        node: Graph node that stands for it.
        stream: Name of the stream.
        shape: Shape of the tensor in the model.
        order: Axis order on the wire; ``(0, 2, 3, 1)`` is NHWC.
        dtype: Element type in the model (``float32``, ``int64``).
    """

    value: str
    node: str
    stream: str
    shape: tuple[int, ...]
    order: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class DdrPort:
    """One m_axi port.

    Attributes:
        name: Bundle name (``gmem0``).
        engine: Engine that owns it.
        word_bits: Bits per beat as the engine reads it.
        bytes_per_frame: Traffic of one frame.
        bytes_per_second: Traffic while the engine runs at its initiation interval: what it needs
            of the board's bandwidth.
        bank: Memory port of the board that it goes to (``DDR[0]``, ``HBM[5]``); empty if unknown.
        slots: Time slots of a round of ``period`` cycles that are this engine's
            (`pipec.backends.fpga.banks`); 0 if the port is its own.
        carries: The value that moves through it, as on its stream; None for tables.
        group: Ports of one group lead to one bank: they reach the same memory.
    """

    name: str
    engine: str
    word_bits: int
    bytes_per_frame: int
    bytes_per_second: float
    bank: str = ""
    slots: int = 0
    period: int = 0
    carries: Port | None = None
    group: str = ""


@dataclass(frozen=True)
class StageDesign:
    """Everything about one stage on one board.

    Attributes:
        name: Stage name (``stage0``), also a C identifier.
        engines: In topological order.
        streams: By name.
        inputs: Stage inputs, in the order of the stage graph.
        outputs: Stage outputs, likewise.
        ddr: m_axi ports.
        device: Name of the board (``vcu118``); ``part`` is the chip.
        clock_mhz: Clock of the kernel.
        precision: Element type of the data streams.
        resources: Sum over engines and the board's fixed shell.
        limits: What may be used of the board.
        interval: Cycles from frame to frame: the busiest engine's (FIFOs are sized so that it is
            reached), or simulated where ``simulated`` is true.
        latency: Cycles from the first token in to the last token out of one frame.
    """

    name: str
    engines: tuple[Engine, ...]
    streams: Mapping[str, Stream]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    ddr: tuple[DdrPort, ...] = ()
    device: str = ""
    part: str = ""
    clock_mhz: float = CLOCK
    precision: str = "float32"
    resources: Resources = field(default_factory=Resources)
    limits: Resources = field(default_factory=Resources)
    interval: int = 0
    latency: int = 0
    simulated: bool = False

    def engine(self, name: str) -> Engine:
        """The engine called ``name`` (KeyError if there is none)."""
        return {e.name: e for e in self.engines}[name]

    @property
    def interval_seconds(self) -> float:
        """Seconds from frame to frame."""
        return self.interval / (self.clock_mhz * 1e6)
