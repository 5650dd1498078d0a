"""Values that F saves for B: where they wait, and the kernel in which they wait on chip.

```text
F ── out_saved_x ──► in_saved_x ─ KEEP ─► FIFO ─► out_saved_x ──► in_saved_x ── B
```

A value of b bytes per microbatch, n microbatches in flight, takes n*b bytes: on chip one FIFO, in
DDR a ring, where it also moves 2*b bytes per interval, in and out. Every byte kept on chip saves
the same traffic, so the room is filled with the largest values first. The FIFOs are a kernel of
their own, started once for all microbatches of a step, so that it takes tokens while B is not
running; where one is full, F waits.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pipec.backends.fpga.cpp import identifier
from pipec.backends.fpga.design import StageDesign, Stream
from pipec.backends.fpga.engines.base import Engine, busy_cycles
from pipec.backends.fpga.engines.parts import Memory, Resources
from pipec.backends.fpga.engines.route import Fork
from pipec.backends.fpga.fifo import MIN_DEPTH, timed
from pipec.backends.fpga.memory import Item, placed


@dataclass(frozen=True)
class Feature:
    """One saved value.

    Attributes:
        value: Its name.
        stream: In which it leaves F.
        sets: Microbatches in flight.
        memory: ``uram``, ``bram`` or ``ddr``.
    """

    value: str
    stream: Stream
    sets: int
    memory: Memory = Memory.DDR

    @property
    def on_chip(self) -> bool:
        """Whether it waits on chip."""
        return self.memory is not Memory.DDR

    @property
    def traffic(self) -> int:
        """Bytes that move to and from DDR per microbatch."""
        return 0 if self.on_chip else 2 * self.stream.nbytes

    @property
    def keep(self) -> Engine:
        """The engine in front of its FIFO."""
        name, ends = identifier(f"keep_{self.value}"), ("arriving", "waiting")
        read, written = (f"{self.value}_{end}" for end in ends)
        return Engine(
            name, Fork(self.stream.tokens, 1), (read,), (written,), depth=1,
            dtype=self.stream.dtype, origin=f"{self.value} on chip",
        )  # fmt: skip

    @property
    def streams(self) -> tuple[Stream, Stream]:
        """What leads into its FIFO, and the FIFO of all microbatches in flight."""
        keep, depth = self.keep, self.sets * self.stream.tokens
        arriving = dataclasses.replace(
            self.stream, name=keep.inputs[0], depth=MIN_DEPTH, producer=None, consumer=keep.name
        )
        waiting = dataclasses.replace(
            self.stream, name=keep.outputs[0], depth=depth, producer=keep.name, consumer=None,
            memory=self.memory,
        )  # fmt: skip
        return arriving, waiting

    @property
    def item(self) -> Item:
        """The memory of that FIFO."""
        fifo = self.streams[1]
        return Item(fifo.name, "fifo", fifo.token_bits, fifo.depth)


def in_flight(stage: int, stages: int) -> int:
    """Most microbatches whose features stage k of n holds: FBP-AS, ``2(n-k)`` from the front.

    Counted from 0; 1F1B-AS holds ``n-k``. BaPipe (Zhao et al. 2020), section 3.
    """
    return 2 * (stages - stage)


def placed_features(
    streams: Mapping[str, Stream], sets: int, room: Resources
) -> tuple[Feature, ...]:
    """A place for every saved value.

    Args:
        streams: Value to the stream in which it leaves F.
        sets: Microbatches in flight.
        room: What F and B leave of the board's memories.
    """
    left = {Memory.URAM: room.uram, Memory.BRAM: room.bram36}
    found = {v: Feature(v, stream, sets) for v, stream in streams.items()}
    for value in sorted(streams, key=lambda v: (-streams[v].nbytes, v)):
        _, bram, uram = found[value].item.costs
        cost = {Memory.URAM: uram, Memory.BRAM: bram}
        kind = next((k for k in left if cost[k] <= left[k]), Memory.DDR)
        if kind is not Memory.DDR:
            left[kind] -= cost[kind]
        found[value] = dataclasses.replace(found[value], memory=kind)
    return tuple(found.values())


def saved_kernel(
    forward: StageDesign, features: Iterable[Feature], name: str
) -> StageDesign | None:
    """The FIFOs of the values that stay on chip; None if there are none.

    Args:
        forward: F on its board, whose ports the values leave.
        features: Saved values and their places.
        name: Of the kernel.
    """
    kept = {f.value: f for f in features if f.on_chip}
    if not kept:
        return None
    leaving = {p.value: p for p in forward.outputs if p.value in kept}
    engines = {value: feature.keep for value, feature in kept.items()}
    design = StageDesign(
        name,
        tuple(engines.values()),
        {s.name: s for f in kept.values() for s in f.streams},
        tuple(dataclasses.replace(leaving[v], stream=e.inputs[0]) for v, e in engines.items()),
        tuple(dataclasses.replace(leaving[v], stream=e.outputs[0]) for v, e in engines.items()),
        device=forward.device,
        part=forward.part,
        clock_mhz=forward.clock_mhz,
        limits=forward.limits,
        interval=max(map(busy_cycles, engines.values())),
    )
    return timed(placed(design, [f.memory for f in kept.values()], [f.item for f in kept.values()]))
