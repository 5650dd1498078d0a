"""What stages run on: devices, the links between neighbours, and how memory counts by position."""

from dataclasses import dataclass
from math import inf

import numpy as np

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


@dataclass(frozen=True)
class Link:
    """What joins a stage to the next one; both directions have the same speed.

    Attributes:
        bytes_per_second: Bandwidth of each direction.
        latency_seconds: Paid once per direction that is used.
    """

    bytes_per_second: float
    latency_seconds: float = 0.0

    def __post_init__(self) -> None:
        if not self.bytes_per_second > 0 or not self.latency_seconds >= 0:
            raise PartitionError(
                "a link needs a bandwidth > 0 and a latency >= 0",
                got=f"{self.bytes_per_second} B/s, {self.latency_seconds} s",
            )

    def seconds(self, size: FloatArray) -> FloatArray:
        """Transfer time of ``size`` bytes in one direction; nothing for nothing."""
        return size / self.bytes_per_second + self.latency_seconds * (size > 0)


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
    return link.seconds(cut[0]) + link.seconds(cut[1])


def cut_peak(cut: FloatArray, link: Link) -> FloatArray:
    """Transfer time of boundaries, both directions at once, [cuts]."""
    return np.maximum(link.seconds(cut[0]), link.seconds(cut[1]))
