"""When it runs: per device an ordered row of actions, kept as a struct of arrays.

```text
device_ptr    0          3               5         row d is device_ptr[d] .. device_ptr[d+1]
kind          F   F   B  F   B  ...                one array per field of `Action`
stage         0   0   0  1   1
microbatch    0   1   0  0   0                     -1 where an action has none
```

12 million actions fit in 240 MB; `Action` is a view of one position. A row is the program of
one device. Its *lanes* (compute, each link direction, host copies) run side by side, each in
the order of the row; which action takes which lane is `pipec.schedule.lanes`.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from pipec.schedule.action import Action, ActionKind
from pipec.schedule.channels import Channel
from pipec.schedule.versions import VersionRule

Int8 = npt.NDArray[np.int8]
Int16 = npt.NDArray[np.int16]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]

COLUMNS = ("kind", "stage", "microbatch", "replica", "version", "channel")
DTYPES: dict[str, npt.DTypeLike] = {
    "kind": np.int8,
    "stage": np.int16,
    "microbatch": np.int32,
    "replica": np.int16,
    "version": np.int32,
    "channel": np.int32,
}


@dataclass(frozen=True)
class Placement:
    """Where it runs: (stage, phase) to devices; I and W run where B runs.

    Attributes:
        forward: Stage to the devices that run its F, one per replica.
        backward: Stage to the devices that run its B; empty for inference. The stages of the
            backward pass may be cut differently from those of the forward pass.

    Microbatch m runs on replica ``m mod replicas`` in both directions (1F1B-RR).
    """

    forward: tuple[tuple[int, ...], ...]
    backward: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def together(cls, devices: tuple[tuple[int, ...], ...]) -> "Placement":
        """F and B of a stage on the same devices."""
        return cls(devices, devices)

    @property
    def devices(self) -> int:
        """One more than the highest device used."""
        return 1 + max(d for stage in (*self.forward, *self.backward) for d in stage)

    @property
    def sides(self) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
        """Devices of every stage's forward, and of its backward; the same where there is none."""
        return self.forward, self.backward or self.forward

    @property
    def separate(self) -> bool:
        """Whether forward and backward of some stage run on different devices."""
        return bool(self.backward) and self.forward != self.backward


@dataclass(frozen=True)
class LanePolicy:
    """Which actions of one device run side by side.

    Attributes:
        compute: "shared": one lane. "split": F and the backward actions each have a lane and
            a fixed share of the device (FBP-AS; both then take F + B).
        comm: "links": one lane per link direction, sends are asynchronous. "one": one lane
            for all communication, in program order. "compute": sends and receives block
            the compute lane.
        reduce: "overlap": all-reduce has its own lane and runs beside the last backward of its
            update, as bucketed reductions do. "compute": it blocks the compute lane.
    """

    compute: str = "shared"
    comm: str = "links"
    reduce: str = "overlap"


@dataclass(frozen=True, eq=False)
class Schedule:
    """Per device an ordered list of actions, and what they refer to.

    Attributes:
        name: Name of the generator.
        microbatches: Number of microbatches M.
        placement: (stage, phase) to devices.
        rule: Which weight version an action must use.
        channels: What flows where, sorted by kind.
        lanes: The actions that run side by side.
        inserted: The passes that have run: "comm", "offload", "reduce", "steps".
        options: The options of the generator, for the record.
        state_beside: Compute actions of a device beside which the optimizer's state leaves, and
            comes back; 0 where no actions copy it.
        joint: Sets of devices whose steps of an update come together, behind the rows of all of
            them: they add something up first (shared weights, the norm of all gradients).
        first: Number of the first new microbatch: above 0 in one round of an endless schedule,
            which also holds what rounds before it have left (`pipec.schedule.endless`).
        device_ptr: Start of each device's row, int64 of length devices + 1.
        kind, stage, microbatch, replica, version, channel: One array each, all of one length.
        memo: What was derived once and holds for this schedule only.

    Example:
        >>> import pipec
        >>> schedule = pipec.schedule("gpipe", stages=2, microbatches=2).schedule
        >>> [str(action) for action in schedule.row(1) if action.kind.is_compute]
        ['1F0', '1F1', '1B0', '1B1']
    """

    name: str
    microbatches: int
    placement: Placement
    rule: VersionRule
    channels: tuple[Channel, ...]
    device_ptr: Int64
    kind: Int8
    stage: Int16
    microbatch: Int32
    replica: Int16
    version: Int32
    channel: Int32
    lanes: LanePolicy = LanePolicy()
    inserted: frozenset[str] = frozenset()
    options: Mapping[str, object] = field(default_factory=dict)
    state_beside: int = 0
    joint: tuple[tuple[int, ...], ...] = ()
    first: int = 0
    memo: dict[str, object] = field(default_factory=dict, init=False, repr=False)

    def __repr__(self) -> str:
        return (
            f"Schedule({self.name}: {self.stages} stages, {self.microbatches} microbatches, "
            f"{self.devices} devices, {len(self)} actions)"
        )

    def __len__(self) -> int:
        return len(self.kind)

    def __getitem__(self, index: int) -> Action:
        microbatch, channel = int(self.microbatch[index]), int(self.channel[index])
        known = 0 <= channel < len(self.channels)
        return Action(
            int(self.stage[index]),
            ActionKind(int(self.kind[index])),
            None if microbatch < 0 else microbatch,
            int(self.replica[index]),
            int(self.version[index]),
            self.channels[channel].name if known else "",
        )

    def __iter__(self) -> Iterator[Action]:
        return (self[i] for i in range(len(self)))

    def row(self, device: int) -> list[Action]:
        """The program of one device."""
        return [self[i] for i in range(self.device_ptr[device], self.device_ptr[device + 1])]

    def rows(self) -> list[list[Action]]:
        """The programs of all devices."""
        return [self.row(d) for d in range(self.devices)]

    @property
    def devices(self) -> int:
        """Number of devices (rows)."""
        return len(self.device_ptr) - 1

    @property
    def stages(self) -> int:
        """Number of pipeline stages."""
        return max(len(self.placement.forward), len(self.placement.backward))

    @property
    def replicas(self) -> np.ndarray:
        """How many replicas of every stage make its updates, or run it where there are none."""
        sizes = [len(d) for d in self.placement.backward or self.placement.forward]
        return np.resize(np.array(sizes), self.stages)

    @property
    def training(self) -> bool:
        """Whether there is a backward pass."""
        return bool(self.placement.backward)

    @property
    def chunks(self) -> int:
        """Stages per device, the largest number found (v of interleaved schedules)."""
        return max(map(len, self.list_stages(self.placement.forward)))

    def list_stages(self, *phases: Sequence[Sequence[int]]) -> list[list[int]]:
        """The stages of every device, ascending: of phases of the placement, or of both."""
        found = [set[int]() for _ in range(self.devices)]
        for phase in phases or (self.placement.forward, self.placement.backward):
            for stage, devices in enumerate(phase):
                for device in devices:
                    found[device].add(stage)
        return [sorted(stages) for stages in found]

    @cached_property
    def device(self) -> Int16:
        """The device of every action."""
        lengths = np.diff(self.device_ptr)
        return np.repeat(np.arange(self.devices, dtype=np.int16), lengths)

    def columns(self) -> dict[str, npt.NDArray[np.signedinteger]]:
        """The arrays by name, in the order of `COLUMNS`."""
        return {name: getattr(self, name) for name in COLUMNS}

    def replace(self, **changes: object) -> "Schedule":
        """A copy with some fields changed (`dataclasses.replace`)."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]

    def __str__(self) -> str:
        rows = enumerate(self.rows())
        return "\n".join(f"{d}: {' '.join(map(str, row))}".rstrip() for d, row in rows)
