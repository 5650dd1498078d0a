"""Values that move through DDR: streams whose ends are engines that write it and read it.

```text
F ──► STORE ──► ring of microbatches in DDR ──► FETCH ──► B
B ──► ACCUMULATE ◄──► sum in DDR ──► FETCH ──► update ──► STORE ──► weights, momentum

producer ──► SPILL ──► ring of chunks in DDR ──► REFILL ──► consumer      a FIFO of one kernel
                └─────── a token per chunk ───────┘
```

Which microbatch a frame belongs to is an argument of the kernels. Batch normalisation in training
keeps a map until its statistics are known, and a skip connection past it for as long. Such a FIFO
holds most of a frame before it is read at all, so that what comes through memory, a chunk later,
comes early enough.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipec.backends.fpga.cpp import identifier
from pipec.backends.fpga.design import DdrPort, Port, StageDesign, Stream
from pipec.backends.fpga.engines.base import Engine
from pipec.backends.fpga.engines.mover import Accumulate, Fetch, Mover, Refill, Spill, Store
from pipec.backends.fpga.engines.parts import Memory
from pipec.backends.fpga.engines.tiles import divisors
from pipec.backends.fpga.fifo import MIN_DEPTH

SUMS = "sums"
"""Group of the gradient sums of a stage: one buffer, which the update reads."""
_LEAST_BITS = 1 << 18
"""FIFOs smaller than about an UltraRAM stay on chip."""
_PARTS = 64
"""Chunks that a FIFO holds, at least."""
_OPEN = 3
"""Chunks of a ring besides those that are counted: being written, being read, on the way."""
_Streams = tuple[tuple[str, ...], tuple[str, ...]]
"""Read by an engine, and written."""


@dataclass(frozen=True)
class Place:
    """Where a value lies in DDR.

    Attributes:
        name: Name of the buffer, and of the pointers to it.
        slots: Frames of the ring; 0 for a sum.
        group: Buffers of one group lie in one bank.
    """

    name: str
    slots: int
    group: str


def ring(value: str, slots: int) -> Place:
    """The place of a value that F stores and B reads."""
    return Place(f"ring_{value}", slots, f"ring_{value}")


def gradient_sum(parameter: str) -> Place:
    """The place of the gradient of a parameter, summed over microbatches."""
    return Place(f"sum_{parameter}", 0, SUMS)


def with_movers(
    design: StageDesign, places: Mapping[str, Place], prefixes: Sequence[str] = ("",)
) -> StageDesign:
    """The design with movers in place of the ports of some values.

    A value that has a place may be an output and an input. Of several kernels in one, the node of
    each port has one of the prefixes.
    """
    found = design
    for is_input, ports in ((True, design.inputs), (False, design.outputs)):
        for port in ports:
            if port.value in places and port.stream:
                prefix = next(p for p in prefixes if port.node.startswith(p))
                found = _mover(found, port, places[port.value], prefix, is_input=is_input)
    return found


def _mover(
    design: StageDesign, port: Port, place: Place, prefix: str, *, is_input: bool
) -> StageDesign:
    stream = design.streams[port.stream]
    kind = Fetch if is_input else Store if place.slots else Accumulate
    nest = kind(stream.tokens, stream.lanes, max(place.slots, 1))
    name = identifier(f"{prefix}{nest.kind()}_{port.value}")
    producer, consumer = (name, stream.consumer) if is_input else (stream.producer, name)
    joined = dataclasses.replace(stream, producer=producer, consumer=consumer)
    streams: _Streams = ((), (port.stream,)) if is_input else ((port.stream,), ())
    engine = _engine(name, nest, streams, port.node, stream.dtype, port.value)
    return dataclasses.replace(
        design,
        engines=(engine, *design.engines) if is_input else (*design.engines, engine),
        streams={**design.streams, stream.name: joined},
        inputs=tuple(p for p in design.inputs if not (is_input and p == port)),
        outputs=tuple(p for p in design.outputs if is_input or p != port),
        ddr=(*design.ddr, _port(place.name, engine, stream, port, place.group)),
    )


def _engine(name: str, nest: Mover, streams: _Streams, node: str, dtype: str, moved: str) -> Engine:
    (read, written), way = streams, "to" if nest.writes else "from"
    origin = f"{moved} {way} memory"
    return Engine(name, nest, read, written, depth=2, dtype=dtype, node=node, origin=origin)


def _port(name: str, engine: Engine, stream: Stream, carried: Port, group: str) -> DdrPort:
    bits = sum(bits for bits, _ in engine.nest.adapters(stream.dtype))
    nbytes = stream.tokens * bits // 8
    return DdrPort(name, engine.name, bits, nbytes, 0.0, carries=carried, group=group)


def may_wait(stream: Stream) -> bool:
    """Whether a FIFO may lie in DDR: large, and half a frame is in it before it is read."""
    large = stream.depth * stream.token_bits >= _LEAST_BITS
    inside = stream.producer is not None and stream.consumer is not None
    return large and inside and not stream.initial and 2 * stream.depth >= stream.tokens


def with_fifos(design: StageDesign, prefixes: Sequence[str]) -> StageDesign:
    """The kernels with engines and memory ports for every FIFO that lies in DDR.

    Both ends of it are in them; the names of each kernel's streams have a prefix.
    """
    for stream in design.streams.values():
        if stream.memory is Memory.DDR:
            prefix = next(p for p in prefixes if stream.name.startswith(p))
            design = _through_memory(design, stream, prefix)
    return design


def _through_memory(design: StageDesign, stream: Stream, prefix: str) -> StageDesign:
    name = identifier(stream.name.removeprefix(prefix))
    spill, refill = f"{prefix}spill_{name}", f"{prefix}refill_{name}"
    arriving = dataclasses.replace(
        stream, name=f"{stream.name}_arriving", depth=MIN_DEPTH, consumer=spill, memory=None
    )
    leaving = dataclasses.replace(stream, depth=MIN_DEPTH, producer=refill, memory=None)
    chunk = max(d for d in divisors(stream.tokens) if d <= max(stream.depth // _PARTS, 1))
    chunks = stream.tokens // chunk
    full = Stream(f"{stream.name}_full", chunks, 1, 1, "int32", MIN_DEPTH, spill, refill)
    engines, shape = list(design.engines), (stream.tokens, stream.lanes, 0, chunk)
    at = next(k for k, e in enumerate(engines) if e.name == stream.producer)
    producer = engines[at]
    outputs = tuple(arriving.name if s == stream.name else s for s in producer.outputs)
    facts = producer.node, producer.dtype, producer.origin or producer.name
    ends = [
        _engine(spill, Spill(*shape), ((arriving.name,), (full.name,)), *facts),
        _engine(refill, Refill(*shape), ((full.name,), (stream.name,)), *facts),
    ]
    engines[at : at + 1] = [dataclasses.replace(producer, outputs=outputs), *ends]
    ports = []
    for e, s in zip(ends, (arriving, leaving), strict=True):
        carried = Port(s.name, e.name, s.name, (s.rows, s.channels), (0, 1), s.dtype)
        ports.append(_port(e.name, e, s, carried, f"fifo_{prefix}{name}"))
    streams = {**design.streams, stream.name: leaving, arriving.name: arriving, full.name: full}
    return dataclasses.replace(
        design, engines=tuple(engines), streams=streams, ddr=(*design.ddr, *ports)
    )


def with_rings(design: StageDesign) -> StageDesign:
    """The design, FIFOs sized and memory ports in their slots, with rings that are long enough.

    They hold the chunks that the stream of counts can hold (tokens in flight own their places), and
    a whole frame: simulations that run one engine after the other write all of it first.
    """
    slots, engines = dict[str, int](), list[Engine]()
    for engine in design.engines:
        nest = engine.nest
        if isinstance(nest, Spill):
            counted = engine.outputs[0]
            ahead = design.streams[counted].depth + engine.depth
            slots[counted] = max(ahead, nest.tokens // nest.chunk) + _OPEN
            nest = dataclasses.replace(nest, slots=slots[counted])
        elif isinstance(nest, Refill):
            nest = dataclasses.replace(nest, slots=slots[engine.inputs[0]])
        engines.append(dataclasses.replace(engine, nest=nest))
    return dataclasses.replace(design, engines=tuple(engines))
