"""What a device holds over time: weights, gradients, optimizer, activations, buffers, apart.

```text
weights      versions alive x bytes; a version lives from its STEP (or RECV_W) until its last
             use has ended and a newer one is there
gradients    from the first backward of an update until its STEP ends
optimizer    always; where it waits in host memory, while a STEP runs, or from FETCH_O to OFFLOAD_O
activations  saved by F, released by B (or by I and W); on the host between OFFLOAD and FETCH;
             the workspace of an action, while it runs; the model's outputs, from their F on
buffers      of the sender from the producer's end to the send's, of the receiver from the send's
             start to the consumer's end; longer where the transport posts ahead (`Memory.slots`)
```
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from msgspec import convert

from pipec.errors import ScheduleError
from pipec.schedule.action import ActionKind
from pipec.schedule.schedule import Schedule
from pipec.simulate.times import Float

CATEGORIES = ("weights", "gradients", "optimizer", "activations", "buffers")
SLOTS = 2
"""Receives of a channel that pipec's own transport posts ahead, so that a sender is not held up."""
MOMENTS = 1e12
"""Moments of a schedule that are told apart; sums of the same times in another order are one."""
WORKSPACES = ("F", "B", "I", "W", "STEP", "first B", "first W")
"""What has a workspace: kinds of action, and those that make the gradients of their update."""


@dataclass(frozen=True)
class Memory:
    """Bytes per stage.

    Attributes:
        weights: Bytes of one version of the weights.
        gradients: Bytes of the gradient accumulators.
        optimizer: Bytes of the optimizer's state.
        parameters: Bytes of every trained one; replicas share the optimizer's state by whole ones
            (`share_out`), evenly where this is absent.
        saved: What one microbatch's F keeps for the backward on the device, without what is
            offloaded (the H channels say how much that is).
        saved_for_w: The part of ``saved`` that I leaves for W; all of it if absent.
        moved_for_w: Names of H channels to the part of what came back that I leaves for W; all of
            it if absent.
        workspace: One of `WORKSPACES` to what such an action allocates while it runs, beyond all
            that is listed here.
        slots: Receives of one channel that the transport posts ahead of the row; it also keeps
            what it sent until a reply comes (`pipec.simulate.spans`). 0: buffers are there
            from the send's start, values until its end.
        saved_too: Names of channels whose value the sender saves for its backward anyway.
        outputs: Bytes of the model's outputs, of one microbatch's F; they stay until the end.
        state_waits: Whether the optimizer's state waits in host memory between steps.
    """

    weights: Sequence[float] = ()
    gradients: Sequence[float] = ()
    optimizer: Sequence[float] = ()
    parameters: Sequence[Sequence[float]] = ()
    saved: Sequence[float] = ()
    saved_for_w: Sequence[float] | None = None
    moved_for_w: Mapping[str, float] = field(default_factory=dict)
    workspace: Mapping[str, Sequence[float]] = field(default_factory=dict)
    slots: int = 0
    saved_too: Sequence[str] = ()
    outputs: Sequence[float] = ()
    state_waits: bool = False

    def of(self, name: str, stages: int) -> Float:
        """One field as an array, 0 if it is empty.

        Raises:
            ScheduleError: It is not empty and has not one number per stage.
        """
        return _per_stage(name, getattr(self, name), stages)

    def shares(self, replicas: Sequence[int]) -> Float:
        """What part of the optimizer's state each replica keeps, stage by stage.

        Raises:
            ScheduleError: There are not parameters of that many stages.
        """
        _per_stage("parameters", [sum(p) for p in self.parameters], len(replicas))
        sizes = self.parameters or [()] * len(replicas)
        return np.concatenate([shares(p, n) for p, n in zip(sizes, replicas, strict=True)])

    def workspaces(self, stages: int, *, first: bool) -> Float:
        """Bytes of workspace by (kind of action, stage).

        ``first``: for the actions that make the gradients of their update.

        Raises:
            ScheduleError: There is no such action, or it has not one number per stage.
        """
        table = np.zeros((len(ActionKind), stages))
        for name in sorted(self.workspace, key=lambda n: n.startswith("first")):
            if name not in WORKSPACES:
                raise ScheduleError("no such workspace", got=name, want=", ".join(WORKSPACES))
            if first or not name.startswith("first"):
                kind = ActionKind[name.removeprefix("first ")]
                table[kind] = _per_stage(f"workspace.{name}", self.workspace[name], stages)
        return table

    def to_json(self) -> dict[str, Any]:
        """As JSON data; what is empty is left out."""
        data = asdict(self) | {"parameters": [list(sizes) for sizes in self.parameters]}
        return {name: value for name, value in data.items() if value}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Read what `to_json` wrote."""
        return convert(data, cls)


def share_out(sizes: Sequence[float], replicas: int) -> list[int]:
    """The replica that steps each parameter of a stage: large ones first, where least is."""
    held, owners = [0.0] * replicas, [0] * len(sizes)
    for k in sorted(range(len(sizes)), key=lambda k: -sizes[k]):
        owners[k] = held.index(min(held))
        held[owners[k]] += sizes[k]
    return owners


def shares(sizes: Sequence[float], replicas: int) -> list[float]:
    """What part of a stage's parameters each replica steps; even ones if ``sizes`` is empty."""
    if replicas == 1 or not sum(sizes):
        return [1 / replicas] * replicas
    held = np.bincount(share_out(sizes, replicas), sizes, minlength=replicas)
    return list(held / held.sum())


def _per_stage(name: str, values: Sequence[float], stages: int) -> Float:
    if not values:
        return np.zeros(stages)
    if len(values) != stages:
        got = f"{len(values)} numbers"
        raise ScheduleError(f"memory.{name} does not fit", got=got, want=f"{stages}")
    return np.array(values, dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Curve:
    """Bytes of one device over time.

    Attributes:
        time: When something changes, ascending, from 0 on.
        change: By how many bytes.
        category: Kind of memory, an index into `CATEGORIES`.
    """

    time: Float
    change: Float
    category: npt.NDArray[np.int8]

    @property
    def held(self) -> Float:
        """Bytes from each time on, (times, categories)."""
        table = np.zeros((len(self.time), len(CATEGORIES)))
        table[np.arange(len(self.time)), self.category] = self.change
        return np.cumsum(table, axis=0)

    @cached_property
    def _total(self) -> Float:
        return np.cumsum(self.change)

    @property
    def peak(self) -> float:
        """Most bytes held at any time."""
        return float(self._total.max(initial=0.0))

    def above(self, limit: float) -> float:
        """Byte-seconds beyond a limit."""
        more = np.maximum(self._total[:-1] - limit, 0.0)
        return float(more @ np.diff(self.time))

    @property
    def at_peak(self) -> dict[str, float]:
        """Bytes of each category at the first moment of the peak."""
        until = int(self._total.argmax()) + 1
        row = np.bincount(self.category[:until], self.change[:until], len(CATEGORIES))
        return dict(zip(CATEGORIES, row.tolist(), strict=True))


@dataclass(frozen=True)
class Spans:
    """Things that are held, as arrays of one length.

    Attributes:
        category: One of `CATEGORIES`.
        device: The device that holds each.
        begin: From when.
        end: Until when.
        size: Bytes.
    """

    category: str
    device: npt.NDArray[np.signedinteger]
    begin: Float
    end: Float
    size: Float


def curves(spans: Sequence[Spans], devices: int) -> list[Curve]:
    """One curve per device; at one moment, releases come before allocations."""
    every = np.arange(devices)
    start = Spans("buffers", every, np.zeros(devices), np.zeros(devices), np.zeros(devices))
    return [Curve(*changes) for changes in _changes([start, *spans], devices)]


def peaks(spans: Sequence[Spans], devices: int) -> list[float]:
    """Most bytes held at a time, of all categories together, per device."""
    changes = _changes(spans, devices)
    return [float(np.cumsum(change).max(initial=0.0)) for _, change, _ in changes]


def _changes(
    spans: Sequence[Spans], devices: int
) -> Iterator[tuple[Float, Float, npt.NDArray[np.int8]]]:
    """When each device holds more or less, by how many bytes, of which category; in order.

    Times that differ by roundings are one moment.
    """
    number = np.uint16 if devices <= np.iinfo(np.uint16).max else np.int64  # sorts faster
    device = np.concatenate([s.device.astype(number) for s in spans] * 2)
    time = np.concatenate([s.begin for s in spans] + [s.end for s in spans])
    change = np.concatenate([s.size for s in spans] + [-s.size for s in spans])
    kinds = [np.full(len(s.device), CATEGORIES.index(s.category), np.int8) for s in spans]
    category = np.concatenate(kinds * 2)
    moment = np.rint(time * (MOMENTS / (time.max(initial=0.0) or 1.0)))
    order = np.argsort(device, kind="stable")
    for rows in np.split(order, np.cumsum(np.bincount(device, minlength=devices))[:-1]):
        at = rows[np.lexsort((time[rows], change[rows] > 0, moment[rows]))]
        yield np.maximum.accumulate(time[at]), change[at], category[at]


def find_issue(schedule: Schedule, begin: Float) -> Float:
    """When what each action writes has memory: when it or the computation behind it begins.

    A GPU is handed actions long before it is done with them, and its allocator takes memory back in
    the order in which they are handed over: in that of the row, beside no computation.

    ```text
    row     F4  OFFLOAD4  FETCH1  B0  F5  B1
    held    what OFFLOAD4 reads: until behind the last computation that begins before its end
            what FETCH1 writes: from the begin of B0 at the latest, though the copy may begin later;
            in place, if OFFLOAD4 has not ended by then, from its end, where that read
    ```
    """
    compute = np.flatnonzero(schedule.kind <= ActionKind.W)
    behind = np.append(compute, len(schedule))[np.searchsorted(compute, np.arange(len(schedule)))]
    own = np.append(schedule.device, -1)[behind] == schedule.device
    return np.where(own, np.minimum(begin, np.append(begin, 0.0)[behind]), begin)


def find_given_up(schedule: Schedule, device: int, times: tuple[Float, Float] | None) -> list[int]:
    """Where in a device's row the tensors are given up that a copy to host memory reads.

    Args:
        schedule: What runs.
        device: The device whose row it is.
        times: When each action begins and ends; without them a copy ends before the next
            computation begins.

    Returns:
        For a copy at each place: behind the last computation that begins before the copy ends.
    """
    row = slice(*schedule.device_ptr[device : device + 2].tolist())
    compute = np.flatnonzero(schedule.kind[row] <= ActionKind.W)
    place = np.arange(row.stop - row.start)
    behind = np.searchsorted(compute, place)
    if times is not None:
        begin, end = np.maximum.accumulate(times[0][row][compute]), times[1][row]
        behind = np.maximum(behind, np.searchsorted(begin, end))
    last = np.append(-1, compute)[behind]
    found: list[int] = (np.maximum(last, place) + 1).tolist()
    return found
