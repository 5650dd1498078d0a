"""From rows to a schedule: what a generator ends with.

A generator writes one row per device, either as a list of `Action` or, for large schedules, as
arrays. `build` finds the placement, the replicas and the weight versions, and checks that every
stage and microbatch is there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipec.errors import ScheduleError
from pipec.schedule.action import Action, ActionKind
from pipec.schedule.assign import derive_versions
from pipec.schedule.channels import Channel, chain, check_channels
from pipec.schedule.schedule import DTYPES, LanePolicy, Placement, Schedule
from pipec.schedule.versions import VersionRule

FLUSH = VersionRule()


@dataclass(frozen=True)
class Ops:
    """The compute actions of one device as three arrays of one length.

    Raises:
        ScheduleError: A number is too large for a schedule.
    """

    kind: np.ndarray
    stage: np.ndarray
    microbatch: np.ndarray

    def __post_init__(self) -> None:
        for name in ("kind", "stage", "microbatch"):  # narrow, before rows are put together
            values = np.asarray(getattr(self, name))
            narrow = values.astype(DTYPES[name])
            if (narrow != values).any():
                raise too_large(name, int(values.max()))
            object.__setattr__(self, name, narrow)

    @classmethod
    def of(cls, row: Sequence[Action] | Sequence[tuple[int, int, int]]) -> "Ops":
        """From actions, or from (stage, kind, microbatch) triples."""
        triples = [(int(a[1]), a[0], -1 if a[2] is None else a[2]) for a in row]
        table = np.array(triples, dtype=np.int64).reshape(len(triples), 3)
        return cls(table[:, 0], table[:, 1], table[:, 2])


Row = Ops | Sequence[Action] | Sequence[tuple[int, int, int]]


def build(
    name: str,
    rows: Sequence[Row],
    microbatches: int,
    *,
    placement: Placement | None = None,
    rule: VersionRule = FLUSH,
    channels: Sequence[Channel] | None = None,
    lanes: LanePolicy | None = None,
    options: Mapping[str, object] | None = None,
) -> Schedule:
    """A schedule of compute actions.

    Args:
        name: What it is called.
        rows: One per device: its F, B, I, W in order.
        microbatches: Number of microbatches M.
        placement: Where stages run; read off the rows if absent.
        rule: Which weight version an action uses; the versions are filled in by it, except
            for the rule "given", where the rows must be actions that carry them.
        channels: What flows where; a plain chain of stages if absent.
        lanes: The actions that run side by side.
        options: For the record.

    Raises:
        ScheduleError: A count is below 1, or placement and rows do not fit.
    """
    check_counts(rows=len(rows), microbatches=microbatches)
    ops = [row if isinstance(row, Ops) else Ops.of(row) for row in rows]
    placement = placement or placement_of(ops)
    forward, backward = len(placement.forward), len(placement.backward)
    flows = tuple(chain(forward, backward)) if channels is None else tuple(channels)
    check_channels(flows, forward, backward)
    kind, stage, microbatch = (
        np.concatenate([getattr(o, name) for o in ops]) for name in ("kind", "stage", "microbatch")
    )
    columns = {
        "kind": kind,
        "stage": stage,
        "microbatch": microbatch,
        "replica": _replicas(placement, kind, stage, microbatch),
        "version": _read_versions(rows) if rule.name == "given" else np.zeros(len(kind), np.int32),
        "channel": np.full(len(kind), -1, np.int32),
    }
    schedule = Schedule(
        name=name,
        microbatches=microbatches,
        placement=placement,
        rule=rule,
        channels=tuple(sorted(flows, key=lambda c: c.kind)),
        device_ptr=np.cumsum([0, *(len(o.kind) for o in ops)]),
        lanes=lanes or LanePolicy(),
        options=dict(options or {}),
        **{key: v.astype(DTYPES[key], copy=False) for key, v in columns.items()},  # type: ignore[arg-type]
    )
    return schedule.replace(version=derive_versions(schedule))


def _read_versions(rows: Sequence[Row]) -> np.ndarray:
    versions: list[int] = []
    for row in rows:
        actions = () if isinstance(row, Ops) else row
        versions += [a.version for a in actions if isinstance(a, Action)]
    return np.array(versions, dtype=np.int64)


def too_large(column: str, value: int) -> ScheduleError:
    """The error of a number that a schedule's column cannot hold."""
    most = np.iinfo(DTYPES[column]).max
    return ScheduleError(f"a {column} is too large", got=f"{value:,}", want=f"at most {most:,}")


def check_counts(**counts: int) -> None:
    """Refuse counts below 1.

    Raises:
        ScheduleError: Naming the count, such as ``microbatches``.
    """
    for name, count in counts.items():
        if count < 1:
            raise ScheduleError(f"a schedule needs {name}", got=f"{name}={count}", want="1 or more")


def placement_of(rows: Sequence[Ops]) -> Placement:
    """Read (stage, phase) to devices off the rows.

    Replica r of a stage is the device that runs microbatch r of it.

    Raises:
        ScheduleError: A stage below the highest one has no action.
    """
    return Placement(
        _phase_of(rows, (ActionKind.F,)), _phase_of(rows, (ActionKind.B, ActionKind.I))
    )


def _phase_of(rows: Sequence[Ops], kinds: tuple[ActionKind, ...]) -> tuple[tuple[int, ...], ...]:
    first: dict[int, dict[int, int]] = {}
    for device, row in enumerate(rows):
        mask = np.isin(row.kind, kinds)
        for stage in np.unique(row.stage[mask]).tolist():
            here = mask & (row.stage == stage)
            first.setdefault(stage, {})[device] = int(row.microbatch[here].min())
    missing = [s for s in range(max(first, default=-1) + 1) if s not in first]
    if missing:
        raise ScheduleError(
            f"stage {missing[0]} has no {kinds[0].name} action", want="every stage in some row"
        )
    return tuple(tuple(sorted(first[s], key=first[s].__getitem__)) for s in range(len(first)))


def _replicas(
    placement: Placement, kind: np.ndarray, stage: np.ndarray, microbatch: np.ndarray
) -> np.ndarray:
    forward = np.array([len(d) for d in placement.forward])
    backward = np.array([len(d) for d in placement.backward] or [1])
    stages = max(len(forward), len(backward))
    if len(stage) and not 0 <= stage.min() <= stage.max() < stages:
        raise ScheduleError(
            "an action is on a stage that has no place",
            got=f"stage {stage.max()}",
            want=f"0 .. {stages - 1}",
        )
    if max(*forward, *backward) == 1:
        return np.zeros(len(stage), DTYPES["replica"])
    f, b = (np.resize(r, stages) for r in (forward, backward))
    replica: np.ndarray = microbatch % np.where(kind == ActionKind.F, f[stage], b[stage])
    return replica
