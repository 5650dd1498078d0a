"""One way to lay a model over a cluster, and all of them that are worth a prediction."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, permutations, product
from math import perm

from pipec.cluster.cluster import Cluster
from pipec.errors import PartitionError
from pipec.schedule.registry import (
    ASYNCHRONOUS,
    STREAMING,
    SYNCHRONOUS,
    parse_options,
    plain_name,
    with_options,
)

INFERENCE = "inference"
"""The schedule of models without a loss."""
CHUNKS = {"interleaved": 2, "zbv": 2, "dualpipev": 2}
"""Schedules that give every device several stages, and how many by default."""
APART = frozenset({"pipefb"})
"""Schedules that give every stage two devices, one of them for its backward."""
PARTS = (2, 4)
"""Numbers of parts in which stages are tried."""

MOST_KINDS = 4
"""Most kinds of devices that are put in every order."""
SHORT = 3
"""Devices in use up to which their kinds may alternate."""
MOST_SEQUENCES, MOST_LINKED = 120, 12
"""Most sequences of devices with unlike links that are all tried; most devices to begin from."""


@dataclass(frozen=True, order=True)
class Candidate:
    """What exploration varies.

    Attributes:
        depth: Devices along one pipeline.
        replicas: Copies of the pipeline; gradients are all-reduced among them.
        schedule: Name of the schedule; depth 1 is plain data parallelism.
        microbatch: Samples of one microbatch.
        microbatches: Microbatches of one step and replica.
        recompute: Whether the backward computes the forward again from the stage's input.
        fitted: Whether saved values leave for host memory or are computed again, value by value,
            as an optimiser chooses so that the devices' memory is kept.
        adjacent: What lies on neighbouring devices: ``stages`` of one pipeline or ``replicas``.
        split: Node that is split by output channels; none if empty.
        share: Part of its channels in the first half.
        order: Index of each device of the cluster in the order of the pipeline; as listed if empty.
    """

    depth: int
    replicas: int
    schedule: str
    microbatch: int
    microbatches: int
    recompute: bool = False
    adjacent: str = "stages"
    split: str = ""
    share: float = 0.5
    fitted: bool = False
    order: tuple[int, ...] = ()

    @property
    def trains(self) -> bool:
        """Whether its schedule has a backward pass."""
        return self.schedule != INFERENCE

    @property
    def eased(self) -> bool:
        """Whether saved values do not all stay on the device."""
        return self.recompute or self.fitted

    @property
    def asynchronous(self) -> bool:
        """Whether its pipeline goes on from one round to the next."""
        return plain_name(self.schedule) in ASYNCHRONOUS

    @property
    def chunks(self) -> int:
        """Stages per device."""
        return self._read("chunks", CHUNKS.get(plain_name(self.schedule), 1))

    def on(self, cluster: Cluster) -> Cluster:
        """The cluster with its devices in the candidate's order."""
        return cluster.reorder(self.order) if self.order else cluster

    @property
    def stages(self) -> int:
        """Stages of one pipeline, their parts counted."""
        return self.depth * self.chunks * self.parts // self.apart

    @property
    def parts(self) -> int:
        """Parts of every stage, which its device runs one behind another."""
        return self._read("parts", 1)

    def _read(self, option: str, default: int) -> int:
        found = parse_options(self.schedule, {}).get(option, default)
        assert isinstance(found, int)
        return found

    @property
    def apart(self) -> int:
        """Devices of one stage: 2 where its backward has one of its own."""
        return 2 if plain_name(self.schedule) in APART else 1

    def __str__(self) -> str:
        """Such as ``1f1b 4x2, 8 x 4 samples, recompute``."""
        name = "data parallel" if self.depth == self.stages == 1 else self.schedule
        extra = ", recompute" if self.recompute else ", saved values fitted" if self.fitted else ""
        extra += f", devices {','.join(map(str, self.order))}" if self.order else ""
        extra += f", {self.split} split at {self.share:.0%}" if self.split else ""
        inner = f", {self.adjacent} adjacent" if self.depth > 1 < self.replicas else ""
        return (
            f"{name} {self.depth}x{self.replicas}, {self.microbatches} x {self.microbatch} "
            f"samples{inner}{extra}"
        )


def list_candidates(
    cluster: Cluster,
    batch: int,
    schedules: Sequence[str] | None = None,
    *,
    trains: bool = True,
    asynchronous: bool = False,
    microbatches: int | None = None,
    microbatch: int | None = None,
) -> Iterator[Candidate]:
    """Every candidate for one batch, plain data parallelism, GPipe and 1F1B among them.

    All keep what the backward needs; eased ones are tried where memory binds.

    Devices stand in every order of `list_device_orders`, and the first of them are used: with one
    device more, all candidates are there that were there before. Replicas and microbatches divide
    the batch evenly; microbatch counts that are not fixed stop at eight per stage, where bubbles
    are small.

    Args:
        cluster: The devices.
        batch: Samples of one step, over all replicas.
        schedules: Which schedules; those of the devices' family if not given.
        trains: Whether there is a backward pass; else there is one schedule.
        asynchronous: Whether schedules without a flush are among those of the devices' family: of
            one pipeline, for they have replicas of their own (`pipec.compiler.replicate`).
        microbatches: Microbatches of one step over all replicas, if they are fixed.
        microbatch: Samples of one microbatch, if they are fixed.

    Raises:
        PartitionError: The batch is empty.
    """
    if batch < 1:
        raise PartitionError("a step needs samples", got=f"a batch of {batch}", want="1 or more")
    streaming = all(d.streams for d in cluster.devices)
    family = (*(STREAMING if streaming else SYNCHRONOUS), *(ASYNCHRONOUS if asynchronous else ()))
    names = schedules or family if trains else (INFERENCE,)
    alone = "1f1b" if trains else INFERENCE
    for depth, replicas in _shapes(cluster.size, batch):
        samples = batch // replicas
        counts: Sequence[int] = range(1, min(samples, 8 * depth) + 1)
        if microbatches is not None:
            counts = [microbatches // replicas] if microbatches % replicas == 0 else []
        elif microbatch is not None:
            counts = [samples // microbatch]
        counts = [m for m in counts if m > 0 and samples % m == 0]
        counts = [m for m in counts if microbatch in (None, samples // m)]
        tried = names if depth > 1 else (alone,)
        ways = _ways(cluster, depth, replicas)
        for (order, adjacent), schedule, m in product(ways, tried, counts):
            c = Candidate(
                depth, replicas, schedule, samples // m, m, adjacent=adjacent, order=order
            )
            if not c.asynchronous or (replicas == 1 and c.stages * c.apart == depth):
                yield c


def ease_memory(c: Candidate) -> tuple[Candidate, ...]:
    """The candidate with what it saves computed again, or fitted value by value."""
    if not c.trains or c.eased:
        return ()
    return replace(c, recompute=True), replace(c, fitted=True)


def in_parts(c: Candidate) -> tuple[Candidate, ...]:
    """A candidate that memory holds back, with stages in parts between which saved values leave.

    None where a device has several stages anyway, or the backward has devices of its own.
    """
    if not c.eased or c.stages != c.depth or c.asynchronous:
        return ()
    return tuple(
        replace(c, schedule=with_options(c.schedule, parts=k), recompute=False, fitted=True)
        for k in PARTS
    )


def list_device_orders(cluster: Cluster, used: int) -> list[tuple[int, ...]]:
    """Orders of the devices that are tried where the first ``used`` of them are.

    Up to `SHORT` of them every sequence of kinds, so that none depends on how they are listed; of
    more, whole kinds of devices one behind the other. Where links are unlike it is every sequence
    of devices, or from each of them on the one with the fastest link; the order that is listed is
    tried first. Sequences with the same kinds and links are one.

    Returns:
        Indices of the devices; empty for the order that is listed.
    """
    unlike = _has_unlike_links(cluster)
    listed, kinds = tuple(range(cluster.size)), [d.kind for d in cluster.devices]
    of = {kind: [k for k in listed if kinds[k] == kind] for kind in sorted(set(kinds))}
    if cluster.levels or (len(of) == 1 and not unlike):
        return [()]
    first = list[tuple[int, ...]]()
    if unlike and used <= SHORT and perm(cluster.size, used) <= MOST_SEQUENCES:
        first = [*permutations(listed, used)]
    elif len(of) <= MOST_KINDS:
        first = [*_alternate(of, used)] if used <= SHORT else []
        first += _list_whole_kinds(cluster, of, unlike) if unlike or used > SHORT else []
    found = dict[object, tuple[int, ...]]()
    for some in (*([listed] if unlike or len(of) > MOST_KINDS else []), *first):
        order = (*some, *(k for k in listed if k not in some))
        pairs = combinations(order[:used] if unlike and cluster.size <= MOST_LINKED else (), 2)
        looks = *(kinds[k] for k in order[:used]), *(cluster.link(*p) for p in pairs)
        found.setdefault(looks, () if order == listed else order)
    return list(found.values())


def _alternate(of: Mapping[str, Sequence[int]], used: int) -> Iterator[tuple[int, ...]]:
    """Every sequence of kinds, of the devices of a kind those that are listed first."""
    for sequence in product(of, repeat=used):
        if all(sequence.count(kind) <= len(those) for kind, those in of.items()):
            left = {kind: iter(those) for kind, those in of.items()}
            yield tuple(next(left[kind]) for kind in sequence)


def _list_whole_kinds(
    cluster: Cluster, of: Mapping[str, Sequence[int]], unlike: bool
) -> Iterator[tuple[int, ...]]:
    """Whole kinds; where links are unlike from each device on by way of the fastest ones."""
    every = unlike and cluster.size <= MOST_LINKED
    for kinds in permutations(of):
        for start in of[kinds[0]] if every else of[kinds[0]][:1]:
            order = [start]
            for kind in kinds:
                left = [k for k in of[kind] if k != start]
                while left:
                    near = left if unlike else left[:1]
                    seconds = [cluster.link(order[-1], k).seconds(1e6) for k in near]
                    order.append(left.pop(seconds.index(min(seconds))))
            yield tuple(order)


def _ways(cluster: Cluster, depth: int, replicas: int) -> list[tuple[tuple[int, ...], str]]:
    """Orders of the devices and what is adjacent there.

    Where all links are alike, a way is its pipelines, whichever of them is the first one.
    """
    found, unlike = dict[object, tuple[tuple[int, ...], str]](), _has_unlike_links(cluster)
    for order in list_device_orders(cluster, depth * replicas):
        kinds = [d.kind for d in (cluster.reorder(order) if order else cluster).devices]
        for adjacent in ("stages", "replicas") if depth > 1 < replicas else ("stages",):
            rows = [range(r * depth, (r + 1) * depth) for r in range(replicas)]
            if adjacent == "replicas":
                rows = [range(r, depth * replicas, replicas) for r in range(replicas)]
            lines = tuple(sorted(tuple(kinds[k] for k in row) for row in rows))
            way = order, adjacent
            found.setdefault(way if cluster.levels or unlike else lines, way)
    return list(found.values())


def _has_unlike_links(cluster: Cluster) -> bool:
    """Whether links are named, and some pair of devices has another one than the others."""
    pairs = combinations(range(cluster.size), 2)
    return bool(cluster.links) and len({cluster.link(a, b) for a, b in pairs}) > 1


def _shapes(devices: int, batch: int) -> list[tuple[int, int]]:
    """Depth and replicas: the batch is dealt out evenly, not all devices need be used."""
    return [
        (depth, replicas)
        for depth in range(1, devices + 1)
        for replicas in range(1, devices // depth + 1)
        if batch % replicas == 0
    ]
