"""Where the values wait that F saves and B reads: on chip as far as there is room, else in DDR.

A value of b bytes per microbatch, n microbatches in flight, takes n*b bytes: on chip it waits in a
FIFO of a kernel between F and B (`training.saved`), in DDR in a ring, where it also moves 2*b bytes
per interval, in and out. Every byte kept on chip saves the same traffic, so the room is filled with
the largest values first.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pipec.backends.fpga.design import Stream
from pipec.backends.fpga.engines.parts import Memory, Resources
from pipec.backends.fpga.memory import Item


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
    memory: Memory

    @property
    def traffic(self) -> int:
        """Bytes that move to and from DDR per microbatch."""
        return 2 * self.stream.nbytes if self.memory is Memory.DDR else 0


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
    found = {v: Feature(v, stream, sets, Memory.DDR) for v, stream in streams.items()}
    for value in sorted(streams, key=lambda v: (-streams[v].nbytes, v)):
        _, bram, uram = _item(found[value]).costs
        cost = {Memory.URAM: uram, Memory.BRAM: bram}
        kind = next((k for k in left if cost[k] <= left[k]), Memory.DDR)
        if kind is not Memory.DDR:
            left[kind] -= cost[kind]
        found[value] = dataclasses.replace(found[value], memory=kind)
    return tuple(found.values())


def _item(feature: Feature) -> Item:
    """The FIFO of all microbatches in flight."""
    stream = feature.stream
    return Item(feature.value, "fifo", stream.token_bits, feature.sets * stream.tokens)


def memories_of(features: Iterable[Feature]) -> list[Item]:
    """The memories of the values that stay on chip."""
    return [_item(f) for f in features if f.memory is not Memory.DDR]


def in_ddr(features: Iterable[Feature]) -> list[Feature]:
    """The values that wait in DDR."""
    return [f for f in features if f.memory is Memory.DDR]
