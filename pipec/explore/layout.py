"""A candidate on the cluster: what stands at every position, and what joins positions."""

from dataclasses import dataclass
from itertools import pairwise

from pipec.cluster.cluster import Cluster, Link, slowest_link
from pipec.cluster.device import Device
from pipec.explore.candidate import Candidate


@dataclass(frozen=True)
class Layout:
    """The slowest pipeline among a candidate's replicas, position by position.

    Attributes:
        devices: Slowest device at each position.
        memory_bytes: Least memory at each position.
        links: What joins neighbouring positions: the slowest among the replicas.
        rings: Slowest link among the replicas of each position; None without replicas.
    """

    devices: tuple[Device, ...]
    memory_bytes: tuple[float, ...]
    links: tuple[Link, ...]
    rings: tuple[Link | None, ...]


def lay_out(candidate: Candidate, cluster: Cluster) -> Layout:
    """Put a candidate on the cluster's devices."""
    positions, copies = range(candidate.depth), range(candidate.replicas)
    at = [[candidate.device(p, r) for r in copies] for p in positions]
    devices = [cluster.slowest(row) for row in at]
    return Layout(
        devices=tuple(devices),
        memory_bytes=tuple(min(cluster.devices[i].memory_bytes for i in row) for row in at),
        links=tuple(
            slowest_link(cluster.link(a, b) for a, b in zip(here, there, strict=True))
            for here, there in pairwise(at)
        ),
        rings=tuple(
            slowest_link(cluster.link(a, b) for a, b in pairwise(row)) if len(row) > 1 else None
            for row in at
        ),
    )
