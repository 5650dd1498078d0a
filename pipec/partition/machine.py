"""Which devices may take the next stage: the states and steps of the cut's dynamic program.

A state says which devices are used up. In a fixed order the states are a chain; if the order is
free they are the vectors of used counts per kind of device, so the program chooses the order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import inf, prod

import numpy as np

from pipec.cluster.cluster import Link
from pipec.errors import PartitionError
from pipec.partition.costgraph import CostGraph, FloatArray, IntArray
from pipec.partition.devices import Device, boundary_seconds

STATES_LIMIT = 20_000


@dataclass(frozen=True)
class Step:
    """One device takes a stage (or, where that is allowed, nothing).

    Attributes:
        source: State before.
        target: State after.
        kind: Index into ``Machine.kinds``.
        device: The device, in a fixed order; -1 if any of its kind.
        link_in: From the stage before; None where values are priced in seconds.
        link_out: To the stage behind.
    """

    source: int
    target: int
    kind: int
    device: int
    link_in: Link | None
    link_out: Link | None


@dataclass(frozen=True, eq=False)
class Machine:
    """All states and steps.

    Attributes:
        devices: As given by the caller.
        kinds: Devices without their number: equal ones are one kind.
        rows: Row of ``CostGraph.work`` per kind.
        used: Devices used per state and kind, [states, kinds]; states are in topological order.
        steps: Incoming steps of every state.
        exactly: Every device must take a stage.
        priced: Values are priced in seconds (no links).
        overlap: Communication hides behind compute: the load is their maximum.
    """

    devices: tuple[Device, ...]
    kinds: tuple[Device, ...]
    rows: tuple[int, ...]
    used: IntArray
    steps: list[list[Step]]
    exactly: bool
    priced: bool
    overlap: bool

    @property
    def total(self) -> IntArray:
        """Devices per kind."""
        total: IntArray = self.used[-1]
        return total

    def boundary(self, cut: FloatArray) -> FloatArray:
        """Seconds that what crosses takes where all boundaries are alike, else 0, [cuts].

        Args:
            cut: What crosses, [kinds, cuts]: seconds where values are priced, else bytes.
        """
        if self.priced:
            return np.asarray(cut[0])
        return boundary_seconds(cut, self.link, at_once=self.overlap)

    @property
    def link(self) -> Link | None:
        """The link of all boundaries if they have the same one."""
        links = {s.link_out for steps in self.steps for s in steps}
        return links.pop() if len(links) == 1 else None


def make_machine(
    graph: CostGraph,
    devices: Sequence[Device],
    *,
    free_order: bool = False,
    exactly: bool = True,
    links: Link | Sequence[Link] | None = None,
    overlap: bool = False,
) -> Machine:
    """Builds the states and steps.

    Raises:
        PartitionError: No device, an unknown device class, links that do not match the devices, or
            more states than can be handled.
    """
    kinds = tuple(dict.fromkeys(devices))
    rows = _rows(graph, kinds)
    kind_of = [kinds.index(device) for device in devices]
    ends = _links(links, len(devices), free_order=free_order)
    count = len(devices)

    def step(source: int, target: int, kind: int, place: int, device: int) -> Step:
        return Step(source, target, kind, device, ends[place], ends[place + 1])

    if free_order and len(kinds) > 1:
        used, arcs = _free_states(kind_of, len(kinds))
        places = used.sum(axis=1)
        steps = [[step(s, t, k, int(places[s]), -1) for s, k in arcs[t]] for t in range(len(used))]
    else:
        used = np.zeros((count + 1, len(kinds)), np.int64)
        for s, kind in enumerate(kind_of):
            used[s + 1] = used[s]
            used[s + 1, kind] += 1
        steps = [[], *([step(s, s + 1, kind, s, s)] for s, kind in enumerate(kind_of))]
    priced = links is None
    return Machine(
        tuple(devices), kinds, rows, used, steps, exactly, priced, overlap and not priced
    )


def _free_states(kind_of: list[int], kinds: int) -> tuple[IntArray, list[list[tuple[int, int]]]]:
    """Vectors of used counts, and the incoming (state, kind) of each."""
    total = np.bincount(kind_of, minlength=kinds).tolist()
    if prod(t + 1 for t in total) > STATES_LIMIT:
        raise PartitionError(
            "too many ways to order these devices",
            got=f"{prod(t + 1 for t in total)} counts of used devices",
            want=f"at most {STATES_LIMIT}",
            hint="fix the order of the devices",
        )
    vectors = sorted(product(*(range(t + 1) for t in total)), key=sum)
    index = {v: s for s, v in enumerate(vectors)}
    arcs: list[list[tuple[int, int]]] = []
    for v in vectors:
        before = [((*v[:k], v[k] - 1, *v[k + 1 :]), k) for k in range(kinds) if v[k]]
        arcs.append([(index[u], k) for u, k in before])
    return np.array(vectors, np.int64), arcs


def _rows(graph: CostGraph, kinds: Sequence[Device]) -> tuple[int, ...]:
    if not kinds:
        raise PartitionError("a cut needs at least one device", got=0)
    for kind in kinds:
        if kind.kind not in graph.classes:
            raise PartitionError(
                "the cost graph has no times for this device",
                got=kind.kind,
                want=", ".join(graph.classes),
            )
    return tuple(graph.classes.index(kind.kind) for kind in kinds)


def _links(
    links: Link | Sequence[Link] | None, devices: int, *, free_order: bool
) -> list[Link | None]:
    """Link in front of every position, and behind the last."""
    if links is None or isinstance(links, Link):
        return [links] * (devices + 1)
    if len(links) != devices - 1 or (free_order and len(set(links)) > 1):
        raise PartitionError(
            "links must join neighbours of a fixed order of devices",
            got=f"{len(links)} links for {devices} devices",
            want=f"one link, or {devices - 1} and a fixed order",
        )
    # nothing crosses the outer ends: any link will do
    inner = list(links) or [Link(inf)]
    return [inner[0], *(links or []), inner[-1]]
