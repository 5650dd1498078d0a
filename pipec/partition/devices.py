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
            raise PartitionError(
                "no such memory limit", got=self.memory_bytes, want="bytes, 0 or more"
            )


def boundary_seconds(cut: FloatArray, link: Link | None, *, at_once: bool) -> FloatArray:
    """Transfer time of boundaries, [...].

    Args:
        cut: Bytes that cross forward and back, [2, ...].
        link: What carries them; None: nothing takes time.
        at_once: Both directions at the same time; else one after the other.
    """
    if link is None:
        return np.zeros(cut.shape[1:])
    seconds: FloatArray = link.seconds(cut)
    return np.asarray(seconds.max(axis=0) if at_once else seconds.sum(axis=0))
