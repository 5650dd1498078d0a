"""Values that move through DDR: ports of kernels replaced by engines that read and write it.

```text
F ──► STORE ──► ring of microbatches in DDR ──► FETCH ──► B
B ──► ACCUMULATE ◄──► sum in DDR ──► FETCH ──► update ──► STORE ──► weights, momentum
```

Which microbatch a frame belongs to is an argument of the kernels.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipec.backends.fpga.cpp import identifier
from pipec.backends.fpga.design import DdrPort, Port, StageDesign
from pipec.backends.fpga.engines.base import Engine
from pipec.backends.fpga.engines.mover import Accumulate, Fetch, Mover, Store

SUMS = "sums"
"""Group of the gradient sums of a stage: one buffer, which the update reads."""


@dataclass(frozen=True)
class Place:
    """Where a value lies in DDR.

    Attributes:
        name: Of the buffer, and of the pointers to it.
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

    Args:
        design: A kernel, or several with prefixes to the names of their engines.
        places: Value of a port to its place; a value may be an output and an input.
        prefixes: Of which each port's node has one.
    """
    found = design
    for is_input, ports in ((True, design.inputs), (False, design.outputs)):
        for port in ports:
            if port.value in places and port.stream:
                prefix = next(p for p in prefixes if port.node.startswith(p))
                found = _moved(found, port, places[port.value], prefix, is_input=is_input)
    return found


def _moved(
    design: StageDesign, port: Port, place: Place, prefix: str, *, is_input: bool
) -> StageDesign:
    stream = design.streams[port.stream]
    nest: Mover
    if is_input:
        nest = Fetch(stream.tokens, stream.lanes, place.slots)
    elif place.slots:
        nest = Store(stream.tokens, stream.lanes, place.slots)
    else:
        nest = Accumulate(stream.tokens, stream.lanes)
    name = identifier(f"{prefix}{type(nest).__name__.lower()}_{port.value}")
    producer, consumer = (name, stream.consumer) if is_input else (stream.producer, name)
    joined = dataclasses.replace(stream, producer=producer, consumer=consumer)
    engine = Engine(
        name,
        nest,
        () if is_input else (port.stream,),
        (port.stream,) if is_input else (),
        depth=2,
        dtype=stream.dtype,
        node=port.node,
        origin=f"{port.value} {'from' if is_input else 'to'} memory",
    )
    bits = 2 * 32 * stream.lanes if isinstance(nest, Accumulate) else stream.token_bits
    moved = DdrPort(
        place.name, name, bits, nest.tokens * bits // 8, 0.0, carries=port, group=place.group
    )
    return dataclasses.replace(
        design,
        engines=(engine, *design.engines) if is_input else (*design.engines, engine),
        streams={**design.streams, stream.name: joined},
        inputs=tuple(p for p in design.inputs if not (is_input and p == port)),
        outputs=tuple(p for p in design.outputs if is_input or p != port),
        ddr=(*design.ddr, moved),
    )
