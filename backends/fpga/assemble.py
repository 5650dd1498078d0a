"""From folded layers to engines and streams.

Each layer becomes one to three engines; where an edge has several readers a FORK is put behind
its writer, and where a reader wants other tokens than the writer makes a width converter in front
of it.
"""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from pipec.backends.fpga.build import Built, build
from pipec.backends.fpga.design import Port, Stream
from pipec.backends.fpga.engines.base import Engine, Folded, Layer
from pipec.backends.fpga.engines.gear import Dwc
from pipec.backends.fpga.engines.route import Fork
from pipec.backends.fpga.lowering.network import NetPort, Network
from pipec.backends.fpga.numbers import bits_of

WIRE_BITS = 512
"""Width of an AXI4-Stream port of a stage."""


def wire_lanes(channels: int, dtype: str) -> int:
    """Lanes of a stage's input or output: as many elements as its port is wide, at most a row.

    Both ends of a link compute it from the tensor alone, so that they agree.

    Example:
        >>> wire_lanes(3, "float32"), wire_lanes(64, "float32")
        (3, 16)
    """
    return min(channels, WIRE_BITS // bits_of(dtype))


@dataclass(frozen=True)
class _Reader:
    """Who reads an edge, and as which tokens."""

    consumer: str | None
    port: int
    rows: int
    channels: int
    lanes: int
    stream: str


@dataclass
class Assembly:
    """Engines and streams under construction.

    Attributes:
        engines: By name, in topological order.
        streams: By name.
    """

    engines: dict[str, Engine] = field(default_factory=dict)
    streams: dict[str, Stream] = field(default_factory=dict)

    def wire(self, stream: Stream) -> None:
        """Add a stream."""
        self.streams[stream.name] = stream

    def connect(self, source: Stream, readers: list[_Reader], facts: tuple[str, str]) -> None:
        """Lead a written stream to its readers, through a FORK and width converters as needed.

        Args:
            source: The stream as its producer writes it, not yet added.
            readers: At least one.
            facts: Node and origin, for the engines added here.
        """
        branches = [source] * len(readers)
        if len(readers) > 1:
            trunk = source.producer or source.name
            fork = f"{trunk}_fork"
            branches = [
                dataclasses.replace(source, name=f"{fork}_{k}", producer=fork)
                for k in range(len(readers))
            ]
            self.wire(dataclasses.replace(source, consumer=fork))
            self.engines[fork] = Engine(
                fork,
                Fork(source.tokens, len(readers)),
                (source.name,),
                tuple(s.name for s in branches),
                depth=1,
                dtype=source.dtype,
                node=facts[0],
                origin=facts[1],
            )
        for branch, reader in zip(branches, readers, strict=True):
            self._lead(branch, reader, facts)

    def _lead(self, stream: Stream, reader: _Reader, facts: tuple[str, str]) -> None:
        final = Stream(
            reader.stream, reader.rows, reader.channels, reader.lanes, stream.dtype,
            producer=stream.producer, consumer=reader.consumer,
        )  # fmt: skip
        if _same_tokens(stream, final):
            self._renamed(stream.name, final)
            return
        name = f"{reader.stream}_dwc"
        self.wire(dataclasses.replace(stream, consumer=name))
        self.wire(dataclasses.replace(final, producer=name))
        self.engines[name] = Engine(
            name,
            converter(stream, final),
            (stream.name,),
            (final.name,),
            depth=2,
            dtype=stream.dtype,
            node=facts[0],
            origin=facts[1],
        )

    def _renamed(self, old: str, final: Stream) -> None:
        """A producer's output takes the name under which its reader knows it."""
        self.wire(final)
        if final.producer is not None:
            producer = self.engines[final.producer]
            outputs = tuple(final.name if o == old else o for o in producer.outputs)
            self.engines[final.producer] = dataclasses.replace(producer, outputs=outputs)


def _same_tokens(have: Stream, want: Stream) -> bool:
    if have.lanes != want.lanes:
        return False
    return have.channels == want.channels or not (
        have.channels % have.lanes or want.channels % want.lanes
    )


def converter(have: Stream, want: Stream) -> Dwc:
    """The width converter between two streams of the same elements."""
    both = math.lcm(have.channels, want.channels)
    return Dwc(
        repeat=have.rows * have.channels // both,
        rows_in=both // have.channels,
        channels_in=have.channels,
        lanes_in=have.lanes,
        rows_out=both // want.channels,
        channels_out=want.channels,
        lanes_out=want.lanes,
    )


def assemble(
    network: Network,
    folded: Mapping[str, Folded],
    dtype: str,
    known: dict[tuple[str, Folded], Built] | None = None,
) -> tuple[Assembly, tuple[Port, ...], tuple[Port, ...]]:
    """Engines and streams of a network whose layers are folded.

    Args:
        network: What is computed.
        folded: Layer name to what folding makes of it.
        dtype: Type of the data streams.
        known: Engines of layers as they were folded before; added to.

    Returns:
        The assembly (FIFO depths not yet chosen), and the stage's input and output ports.
    """
    made = Assembly()
    known = {} if known is None else known
    built = {}
    for layer in network.layers:
        key = (layer.name, folded[layer.name])
        if key not in known:
            known[key] = build(layer, folded[layer.name], dtype)
        built[layer.name] = known[key]
    readers = _readers(network, built, folded)
    inputs = []
    for port in network.inputs:
        name = f"{port.use.edge}_axis"
        lanes = wire_lanes(port.use.channels, port.use.dtype)
        wire = Stream(name, port.use.rows, port.use.channels, lanes, port.use.dtype)
        found = readers[port.use.edge]
        inputs.append(_port(port, name if found else ""))
        if not found:
            continue
        if len(found) == 1 and _same_tokens(wire, _as_stream(found[0])):
            inputs[-1] = _port(port, found[0].stream)
        made.connect(wire, found, (port.node, f"input {port.value}"))
    for layer in network.layers:
        _add(made, layer, built[layer.name], readers[layer.name])
    outputs = tuple(_port(p, f"out_{k}_{p.node}") for k, p in enumerate(network.outputs))
    return made, tuple(inputs), outputs


def _as_stream(reader: _Reader) -> Stream:
    return Stream(reader.stream, reader.rows, reader.channels, reader.lanes)


def _port(port: NetPort, stream: str) -> Port:
    return Port(port.value, port.node, stream, port.shape, port.order, port.dtype)


def _readers(
    network: Network, built: Mapping[str, Built], folded: Mapping[str, Folded]
) -> dict[str, list[_Reader]]:
    found: dict[str, list[_Reader]] = defaultdict(list)
    for layer in network.layers:
        wide = layer.lanes_of(folded[layer.name])
        for k, (use, lanes) in enumerate(zip(layer.inputs, wide, strict=True)):
            stream = f"{layer.name}_in{k}"
            consumer = next(e.name for e in built[layer.name].engines if stream in e.inputs)
            reader = _Reader(consumer, k, use.rows, use.channels, lanes, stream)
            found[use.edge].append(reader)
    for k, port in enumerate(network.outputs):
        use = port.use
        lanes = wire_lanes(use.channels, use.dtype)
        found[use.edge].append(
            _Reader(None, 0, use.rows, use.channels, lanes, f"out_{k}_{port.node}")
        )
    return found


def _add(made: Assembly, layer: Layer, built: Built, readers: list[_Reader]) -> None:
    for engine in built.engines:
        made.engines[engine.name] = engine
    for stream in built.streams:
        made.wire(stream)
    if readers:
        made.connect(built.output, readers, (layer.node, layer.origin))
