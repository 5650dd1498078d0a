"""Designs put together by hand: engines by nest and stream names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pipec.backends.fpga.design import StageDesign, Stream
from pipec.backends.fpga.engines.base import Engine, Nest, run_table
from pipec.backends.fpga.engines.gear import Dwc
from pipec.backends.fpga.engines.map import Map
from pipec.backends.fpga.engines.matmul import Matmul
from pipec.backends.fpga.engines.memory import Gather, Load
from pipec.backends.fpga.engines.mvu import Mvu
from pipec.backends.fpga.engines.norm import Norm
from pipec.backends.fpga.engines.perm import Perm
from pipec.backends.fpga.engines.reduce import Reduce
from pipec.backends.fpga.engines.route import Const
from pipec.backends.fpga.engines.swg import Swg
from pipec.backends.fpga.engines.vvu import Vvu
from pipec.backends.fpga.runs import tokens

Part = tuple[str, Nest, tuple[str, ...], tuple[str, ...]]


@dataclass(frozen=True)
class Net:
    """A network.

    Attributes:
        parts: Name, nest, streams read, streams written of every engine.
        ii: Initiation interval by engine; 1 where absent.
        latency: Pipeline depth by engine; ``latencies`` for all others by kind.
        depth: FIFO depth by stream; ``depths`` for all others.
        initial: Tokens at reset by stream.
    """

    parts: Sequence[Part]
    ii: Mapping[str, int] = field(default_factory=dict)
    latency: Mapping[str, int] = field(default_factory=dict)
    depth: Mapping[str, int] = field(default_factory=dict)
    depths: int = 8
    initial: Mapping[str, int] = field(default_factory=dict)

    def design(self, name: str) -> StageDesign:
        """The network as a stage."""
        engines = [
            Engine(
                part, nest, ins, outs,
                self.ii.get(part, 1), self.latency.get(part, natural_latency(nest)), dtype="int8",
            )
            for part, nest, ins, outs in self.parts
        ]  # fmt: skip
        writer = {s: e for e in engines for s in e.outputs}
        reader = {s: e for e in engines for s in e.inputs}
        streams = {}
        for s in dict.fromkeys([*writer, *reader]):
            lanes = lanes_of(s, writer, reader)
            streams[s] = Stream(
                s, count(s, writer.get(s), reader.get(s)), lanes, lanes, "int8",
                self.depth.get(s, self.depths),
                writer[s].name if s in writer else None,
                reader[s].name if s in reader else None,
                self.initial.get(s, 0),
            )  # fmt: skip
        return StageDesign(name, tuple(engines), streams, (), ())


def natural_latency(nest: Nest) -> int:
    """Registers of an engine: multiplier, adder tree, accumulator, FIFO; 2 where there are none.

    Example:
        >>> natural_latency(Mvu(1, 1, 1, 8, 1, 8))
        6
    """
    if isinstance(nest, Mvu | Matmul | Vvu):
        terms = nest.kp if isinstance(nest, Vvu) else nest.simd
        return (terms - 1).bit_length() + 3
    return 2


def count(stream: str, writer: Engine | None, reader: Engine | None) -> int:
    """Tokens of a stream per frame."""
    if writer is not None:
        return tokens(run_table(writer), writer.outputs.index(stream), written=True)
    assert reader is not None
    return tokens(run_table(reader), reader.inputs.index(stream), written=False)


def lanes_of(stream: str, writer: Mapping[str, Engine], reader: Mapping[str, Engine]) -> int:
    """Elements per token: what the reader wants, else what the writer makes or passes on."""
    found = _reads(reader[stream], stream) if stream in reader else None
    if found is None and stream in writer:
        found = _writes(writer[stream])
        if found is None:
            return lanes_of(writer[stream].inputs[0], writer, reader)
    return found or 1


def _reads(engine: Engine, stream: str) -> int | None:
    nest = engine.nest
    second = engine.inputs.index(stream) == 1
    if isinstance(nest, Mvu):
        return nest.pe * nest.simd if second else nest.simd
    if isinstance(nest, Matmul):
        return nest.b_lanes if second else nest.simd
    if isinstance(nest, Vvu | Reduce):
        return nest.kp * nest.lanes
    if isinstance(nest, Dwc | Perm):
        return nest.lanes_in
    if isinstance(nest, Swg | Map | Norm):
        return nest.lanes
    return None


def _writes(engine: Engine) -> int | None:
    nest = engine.nest
    if isinstance(nest, Mvu | Matmul):
        return nest.pe
    if isinstance(nest, Swg):
        return nest.kp * nest.lanes
    if isinstance(nest, Dwc | Perm):
        return nest.lanes_out
    if isinstance(nest, Vvu | Reduce | Map | Norm | Gather | Load | Const):
        return nest.lanes
    return None
