"""FIFOs that lie in DDR: where whole maps wait, and the chip has no room for them.

```text
producer ──► SPILL ──► ring of chunks in DDR ──► REFILL ──► consumer
                └─────── a token per chunk ───────┘
```

Batch normalisation in training keeps a map until its statistics are known, and a skip connection
past it for as long. Such a FIFO holds most of a frame before it is read at all, so that what comes
through memory, a chunk later, comes early enough.
"""

import dataclasses
from collections.abc import Sequence

from pipec.backends.fpga.cpp import identifier
from pipec.backends.fpga.design import DdrPort, Port, StageDesign, Stream
from pipec.backends.fpga.engines.base import Engine
from pipec.backends.fpga.engines.mover import Refill, Spill
from pipec.backends.fpga.engines.parts import Memory
from pipec.backends.fpga.engines.tiles import divisors
from pipec.backends.fpga.fifo import MIN_DEPTH

_LEAST_BITS = 1 << 18
"""FIFOs smaller than about an UltraRAM stay on chip."""
_PARTS = 64
"""Chunks that a FIFO holds, at least."""
_OPEN = 3
"""Chunks of a ring besides those that are counted: being written, being read, on the way."""


def may_wait(stream: Stream) -> bool:
    """Whether a FIFO may lie in DDR: large, and half a frame is in it before it is read."""
    large = stream.depth * stream.token_bits >= _LEAST_BITS
    inside = stream.producer is not None and stream.consumer is not None
    return large and inside and not stream.initial and 2 * stream.depth >= stream.tokens


def with_fifos(design: StageDesign, prefixes: Sequence[str]) -> StageDesign:
    """The design with engines and memory ports for every FIFO that lies in DDR.

    Args:
        design: Kernels; FIFOs that are in ``Memory.DDR`` have both ends in them.
        prefixes: Of the names of each kernel's streams.
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
    engines = list[Engine]()
    for engine in design.engines:
        if engine.name != stream.producer:
            engines.append(engine)
            continue
        shape = (stream.tokens, stream.lanes, chunk, 0)
        outputs = tuple(arriving.name if s == stream.name else s for s in engine.outputs)
        engines += [
            dataclasses.replace(engine, outputs=outputs),
            _end(spill, Spill(*shape), arriving.name, full.name, engine),
            _end(refill, Refill(*shape), full.name, stream.name, engine),
        ]
    streams = {**design.streams, stream.name: leaving, arriving.name: arriving, full.name: full}
    ports = [_port(end, at, prefix + name) for end, at in ((spill, arriving), (refill, leaving))]
    return dataclasses.replace(
        design, engines=tuple(engines), streams=streams, ddr=(*design.ddr, *ports)
    )


def _end(name: str, nest: Spill | Refill, read: str, written: str, producer: Engine) -> Engine:
    """An engine at one end of a FIFO in memory."""
    way = "to" if isinstance(nest, Spill) else "from"
    return Engine(
        name, nest, (read,), (written,), depth=2, dtype=producer.dtype, node=producer.node,
        origin=f"{producer.origin or producer.name} {way} memory",
    )  # fmt: skip


def _port(engine: str, stream: Stream, fifo: str) -> DdrPort:
    shape = (stream.rows, stream.channels)
    carried = Port(stream.name, engine, stream.name, shape, (0, 1), stream.dtype)
    group, bits = f"fifo_{fifo}", stream.token_bits
    return DdrPort(engine, engine, bits, stream.nbytes, 0.0, carries=carried, group=group)


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
