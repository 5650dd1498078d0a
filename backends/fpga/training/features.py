"""Where the values wait that F saves and B reads: on chip as far as there is room, else in DDR.

A value of b bytes per microbatch, n microbatches in flight, takes n*b bytes: on chip it waits in a
FIFO between the two kernels, in DDR in a ring, where it also moves 2*b bytes per interval, in and
out. Every byte kept on chip saves the same traffic, so the room is filled with the largest values
first.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pipec.backends.fpga.design import Memory, Resources
from pipec.backends.fpga.memory import Item

WORD = 512
"""Bits of a word of the store: a beat of a port."""


@dataclass(frozen=True)
class Feature:
    """One saved value.

    Attributes:
        value: Its name.
        nbytes: Of one microbatch.
        sets: Microbatches in flight.
        memory: ``uram``, ``bram`` or ``ddr``.
    """

    value: str
    nbytes: int
    sets: int
    memory: Memory

    @property
    def held_bytes(self) -> int:
        """Bytes that all microbatches in flight take."""
        return self.nbytes * self.sets

    @property
    def traffic(self) -> int:
        """Bytes that move to and from DDR per microbatch."""
        return 2 * self.nbytes if self.memory is Memory.DDR else 0


def in_flight(stage: int, stages: int) -> int:
    """Most microbatches whose features stage k of n holds: FBP-AS, ``2(n-k)`` from the front.

    Counted from 0; 1F1B-AS holds ``n-k``. BaPipe (Zhao et al. 2020), section 3.
    """
    return 2 * (stages - stage)


def placed_features(sizes: Mapping[str, int], sets: int, room: Resources) -> tuple[Feature, ...]:
    """A place for every saved value.

    Args:
        sizes: Value to bytes of one microbatch.
        sets: Microbatches in flight.
        room: What F and B leave of the board's memories.
    """
    left = {Memory.URAM: room.uram, Memory.BRAM: room.bram36}
    found = {}
    for value in sorted(sizes, key=lambda v: (-sizes[v], v)):
        _, bram, uram = _item(value, sizes[value] * sets).costs
        cost = {Memory.URAM: uram, Memory.BRAM: bram}
        kind = next((k for k in left if cost[k] <= left[k]), Memory.DDR)
        if kind is not Memory.DDR:
            left[kind] -= cost[kind]
        found[value] = Feature(value, sizes[value], sets, kind)
    return tuple(found[v] for v in sizes)


def _item(value: str, nbytes: int) -> Item:
    return Item(value, "fifo", WORD, -(-8 * nbytes // WORD))


def memories_of(features: Iterable[Feature]) -> list[Item]:
    """The memories of the values that stay on chip."""
    return [_item(f.value, f.held_bytes) for f in features if f.memory is not Memory.DDR]


def in_ddr(features: Iterable[Feature]) -> list[Feature]:
    """The values that wait in DDR."""
    return [f for f in features if f.memory is Memory.DDR]
