"""A cluster: devices in pipeline order, and what joins them."""

import dataclasses
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from msgspec import ValidationError, convert
from numpy.typing import NDArray

from pipec.cluster.device import Device
from pipec.cluster.presets import preset
from pipec.errors import ClusterError

_Bytes = TypeVar("_Bytes", float, NDArray[np.float64])


@dataclass(frozen=True)
class Link:
    """What joins two devices; both directions have the same speed.

    Attributes:
        bytes_per_second: Payload rate of each direction.
        latency_seconds: Until the first byte arrives.

    Raises:
        ClusterError: The bandwidth is not above 0, or the latency below.
    """

    bytes_per_second: float
    latency_seconds: float = 0.0

    def __post_init__(self) -> None:
        if not self.bytes_per_second > 0 or not self.latency_seconds >= 0:
            raise ClusterError(
                "a link needs a bandwidth > 0 and a latency >= 0",
                got=f"{self.bytes_per_second} B/s, {self.latency_seconds} s",
            )

    def seconds(self, nbytes: _Bytes) -> _Bytes:
        """Transfer time of ``nbytes`` in one direction; nothing for nothing."""
        return nbytes / self.bytes_per_second + self.latency_seconds * (nbytes > 0)


def slowest_link(links: Iterable[Link]) -> Link:
    """A link as slow as any of ``links`` in each respect."""
    every = list(links)
    return Link(min(v.bytes_per_second for v in every), max(v.latency_seconds for v in every))


def all_reduce_seconds(link: Link, members: int, nbytes: float) -> float:
    """A ring all-reduce over ``members`` devices: each sends 2 (members - 1) / members of it.

    Patarasuk and Yuan, JPDC 2009. ``link`` is the slowest of the ring.

    Example:
        >>> all_reduce_seconds(Link(1e9, 0.0), 4, 1e9)
        1.5
    """
    return link.seconds(2 * (members - 1) / members * nbytes)


@dataclass(frozen=True)
class Level:
    """Blocks of ``size`` devices (or of blocks of the level below) that share a kind of link."""

    size: int
    link: Link


@dataclass(frozen=True)
class Cluster:
    """Devices in pipeline order and the links between them.

    Attributes:
        devices: One per accelerator. Devices of one kind are equal: times are kept per kind.
        links: Links of single pairs, lower index first.
        levels: Hierarchy from the innermost outwards.

    Raises:
        ClusterError: Two devices of one kind differ.

    Example:
        >>> import pipec
        >>> gpu = parse_cluster("v100").devices[0]
        >>> slow = pipec.Cluster((gpu, gpu), links={(0, 1): Link(1.25e9, 50e-6)})
        >>> round(slow.link(0, 1).seconds(1e6) * 1e6)  # microseconds for a megabyte
        850
    """

    devices: tuple[Device, ...]
    links: Mapping[tuple[int, int], Link] = field(default_factory=dict)
    levels: tuple[Level, ...] = ()

    def __post_init__(self) -> None:
        first: dict[str, Device] = {}
        for device in self.devices:
            if not isinstance(device, Device):
                raise ClusterError(
                    "a cluster is made of devices",
                    got=repr(self.devices),
                    want="a tuple of Device",
                    hint="where devices are asked for, a text such as '4xh100' does",
                )
            if first.setdefault(device.kind, device) != device:
                raise ClusterError(
                    "two devices of one kind have different figures",
                    got=device.kind,
                    hint='name one of them: name = "my-device"',
                )

    @property
    def size(self) -> int:
        """Number of devices."""
        return len(self.devices)

    def link(self, a: int, b: int) -> Link:
        """What joins devices ``a`` and ``b``.

        Their own link, else the innermost level that holds both, else the slower default port.

        Raises:
            ClusterError: There is no such device.
        """
        if not (0 <= a < self.size and 0 <= b < self.size):
            raise ClusterError(
                "the cluster has no such device",
                got=max(a, b),
                want=f"0 to {self.size - 1} ({self})",
                hint="name more devices",
            )
        own = self.links.get((min(a, b), max(a, b)))
        if own is not None:
            return own
        block = 1
        for level in self.levels:
            block *= level.size
            if a // block == b // block:
                return level.link
        pair = (self.devices[a], self.devices[b])
        return Link(min(d.link_bandwidth for d in pair), max(d.link_latency for d in pair))

    def all_reduce(self, devices: Sequence[int], nbytes: float) -> float:
        """Seconds of a ring all-reduce of ``nbytes`` over devices; none for one device."""
        if len(devices) < 2:
            return 0.0
        ring = slowest_link(map(self.link, devices, (*devices[1:], devices[0])))
        return all_reduce_seconds(ring, len(devices), nbytes)

    def reorder(self, order: Sequence[int]) -> "Cluster":
        """The cluster with its first devices in another order, each pair's own link kept.

        Args:
            order: Old index of each of the first devices, a permutation of these.

        Raises:
            ClusterError: The cluster has levels, so its order means something.
        """
        if list(order) == sorted(order):
            return self
        if self.levels:
            raise ClusterError("a cluster with levels keeps its order", got=list(order))
        full = [*order, *range(len(order), self.size)]
        new = {old: k for k, old in enumerate(full)}
        links = {
            (min(new[a], new[b]), max(new[a], new[b])): link for (a, b), link in self.links.items()
        }
        return Cluster(tuple(self.devices[old] for old in full), links)

    def __str__(self) -> str:
        """Such as ``2xvcu129,2xvcu118``."""
        runs = itertools.groupby(d.kind for d in self.devices)
        return ",".join(f"{len(list(group))}x{kind}" for kind, group in runs)

    def to_json(self) -> dict[str, object]:
        """The cluster as plain data."""
        return {
            "devices": [d.to_json() for d in self.devices],
            "links": [
                {"between": list(pair), **dataclasses.asdict(link)}
                for pair, link in sorted(self.links.items())
            ],
            "levels": [{"size": v.size, **dataclasses.asdict(v.link)} for v in self.levels],
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> "Cluster":
        """The inverse of `to_json`.

        Raises:
            ClusterError: The record is malformed.
        """
        try:
            return Cluster(
                tuple(Device.from_json(d) for d in data["devices"]),
                {tuple(r["between"]): convert(r, Link) for r in data["links"]},
                tuple(Level(r["size"], convert(r, Link)) for r in data["levels"]),
            )
        except (KeyError, TypeError, ValidationError) as error:
            raise ClusterError("a cluster record is malformed", got=repr(error)) from error


MOST_DEVICES = 65_536
"""Of one kind, in one place of a cluster."""


def copies(device: Device, count: int, where: str) -> list[Device]:
    """A device so many times.

    Raises:
        ClusterError: There are too many; ``where`` says so.
    """
    if count > MOST_DEVICES:
        raise ClusterError(
            "too many devices", where=where, got=count, want=f"at most {MOST_DEVICES}"
        )
    return [device] * count


def parse_cluster(text: str) -> Cluster:
    """A cluster from ``4xvcu118`` or ``2xvcu129,2xvcu118``, in pipeline order.

    Raises:
        ClusterError: Malformed text, a count of 0, or an unknown device.

    Example:
        >>> str(parse_cluster("2xVCU129,vcu118"))
        '2xvcu129,1xvcu118'
    """
    devices: list[Device] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(?:(\d+)\s*[x*]\s*)?([A-Za-z][\w.-]*)\s*", part)
        if match is None or int(match[1] or 1) == 0:
            want = "COUNTxKIND, such as 4xvcu118, of one device at least"
            raise ClusterError("--devices cannot be read", got=repr(part), want=want)
        devices += copies(preset(match[2], "--devices"), int(match[1] or 1), part)
    return Cluster(tuple(devices))
