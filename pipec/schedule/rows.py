"""A schedule from rows that already hold everything: sends, steps, versions."""

from collections.abc import Mapping, Sequence

import numpy as np

from pipec.errors import ScheduleError
from pipec.schedule.action import Action, ActionKind
from pipec.schedule.build import Ops, build, placement_of, too_large
from pipec.schedule.channels import KIND_OF, Channel, ChannelKind, chain, check_channels
from pipec.schedule.schedule import DTYPES, LanePolicy, Placement, Schedule
from pipec.schedule.versions import VersionRule

_PASSES = {
    "comm": {k for c in ChannelKind if c is not ChannelKind.H for k in (c.send, c.receive)}
    - {ActionKind.SEND_W, ActionKind.RECV_W},
    "offload": {ActionKind.OFFLOAD, ActionKind.FETCH},
    "reduce": {ActionKind.REDUCE_GRAD},
    "steps": {ActionKind.STEP},
}


def from_rows(
    name: str,
    rows: Sequence[Sequence[Action]],
    *,
    microbatches: int | None = None,
    placement: Placement | None = None,
    rule: VersionRule | None = None,
    channels: Sequence[Channel] | None = None,
    lanes: LanePolicy | None = None,
    options: Mapping[str, object] | None = None,
) -> Schedule:
    """A schedule exactly as written, with the actions' own versions and replicas.

    Args:
        name: What it is called.
        rows: One per device, every action in order.
        microbatches: M; one more than the highest microbatch if absent.
        placement: Read off the rows if absent.
        rule: Version rule; "flush" if absent.
        channels: What flows where; a plain chain if absent. An action without a channel name
            means the only channel that fits it.
        lanes: The actions that run side by side.
        options: For the record.

    Raises:
        ScheduleError: There is no action, there are fewer actions than microbatches, or an action
            fits no channel or several.
    """
    every = [a for row in rows for a in row]
    if not every:
        raise ScheduleError("a schedule needs actions", got="none")
    compute = [Ops.of([a for a in row if a.kind.is_compute]) for row in rows]
    place = placement or placement_of(compute)
    count = microbatches or 1 + max(a.microbatch or 0 for a in every)
    if count > len(every):
        raise ScheduleError(
            "microbatches are missing",
            got=f"{len(every)} actions, the highest microbatch is {count - 1}",
            want="microbatches numbered from 0 on, each with its actions",
        )
    flows = channels if channels is not None else chain(len(place.forward), len(place.backward))
    numbered = tuple(sorted(flows, key=lambda c: c.kind))
    check_channels(numbered, len(place.forward), len(place.backward))
    found, columns = {a.kind for a in every}, _columns(every, numbered)
    base = build(name, [Ops.of([])] * len(rows), count, placement=place, channels=numbered)
    return base.replace(
        rule=rule or VersionRule(),
        device_ptr=np.cumsum([0, *(len(row) for row in rows)]),
        lanes=lanes or LanePolicy(),
        inserted=frozenset(key for key, kinds in _PASSES.items() if kinds & found),
        options=dict(options or {}),
        **columns,
    )


def _columns(actions: list[Action], channels: tuple[Channel, ...]) -> dict[str, np.ndarray]:
    """The actions as a schedule's columns."""
    columns: dict[str, Sequence[int]] = {
        "kind": [int(a.kind) for a in actions],
        "stage": [a.stage for a in actions],
        "microbatch": [-1 if a.microbatch is None else a.microbatch for a in actions],
        "replica": [a.replica for a in actions],
        "version": [a.version for a in actions],
        "channel": _numbers(actions, channels),
    }
    for key, values in columns.items():
        if max(values) > np.iinfo(DTYPES[key]).max:
            raise too_large(key, max(values))
    return {key: np.array(values, dtype=DTYPES[key]) for key, values in columns.items()}


def _numbers(actions: list[Action], channels: tuple[Channel, ...]) -> list[int]:
    by_name = {c.name: n for n, c in enumerate(channels) if c.name}
    by_end: dict[tuple[ActionKind, int], list[int]] = {}
    for number, c in enumerate(channels):
        by_end.setdefault((c.kind.send, c.src), []).append(number)
        by_end.setdefault((c.kind.receive, c.dst), []).append(number)
    numbers = []
    for action in actions:
        if action.kind not in KIND_OF:
            numbers.append(-1)
            continue
        fitting = by_end.get((action.kind, action.stage), [])
        if action.channel:
            fitting = [n for n in fitting if n == by_name.get(action.channel)]
        if len(fitting) != 1:
            raise ScheduleError(
                f"{action} fits {len(fitting)} channels",
                got=", ".join(channels[n].name or channels[n].kind.name for n in fitting) or "none",
                want="exactly one; write <action>:<channel>",
            )
        numbers.append(fitting[0])
    return numbers
