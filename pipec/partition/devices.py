"""What stages run on: devices, and what crossing a boundary between two of them takes."""

from dataclasses import dataclass
from math import inf

import numpy as np

from pipec.cluster.cluster import Link
from pipec.errors import PartitionError
from pipec.partition.costgraph import FloatArray


@dataclass(frozen=True)
class Device:
    """One place for a stage.

    Attributes:
        kind: Device class, a row of ``CostGraph.work``.
        memory_bytes: What a stage on this device may hold.
        pays: Whether communication adds to its load. The host CPU of the published
            device-placement model (Tarnawski et al., NeurIPS'20) does not pay.
    """

    kind: str
    memory_bytes: float = inf
    pays: bool = True

    def __post_init__(self) -> None:
        if not self.memory_bytes >= 0:
            raise PartitionError("a memory limit must be >= 0 bytes", got=self.memory_bytes)


def cut_seconds(cut: FloatArray, link: Link | None, *, priced: bool) -> FloatArray:
    """Transfer time of boundaries, both directions one after the other, [cuts].

    Args:
        cut: What crosses, [kinds, cuts]: seconds, or bytes forward and back.
        link: What carries the bytes.
        priced: Values are priced in seconds.
    """
    if priced:
        seconds: FloatArray = cut[0]
        return seconds
    if link is None:
        return np.zeros(cut.shape[1])
    both: FloatArray = link.seconds(cut).sum(axis=0)
    return both


def cut_peak(cut: FloatArray, link: Link) -> FloatArray:
    """Transfer time of boundaries, both directions at once, [cuts]."""
    slower: FloatArray = link.seconds(cut).max(axis=0)
    return slower
