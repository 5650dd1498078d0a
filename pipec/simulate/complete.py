"""Whether every action that a schedule must have is there once, in its place (rules 1 and 2)."""

from collections import Counter
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from pipec.schedule.action import ActionKind
from pipec.schedule.channels import KIND_OF, ChannelKind
from pipec.schedule.routes import routes_of
from pipec.schedule.schedule import Schedule
from pipec.schedule.tables import Tables

_K, _C = ActionKind, ChannelKind


def find_incomplete(schedule: Schedule, at: Tables) -> Iterator[str]:
    """Everything that is missing, doubled, or out of place; in words."""
    found = list(_out_of_range(schedule, at))
    yield from found
    if not found:
        yield from _compute(schedule)
        yield from _transfers(schedule)
        yield from _updates(schedule)
        yield from _check_published(schedule)


def _out_of_range(schedule: Schedule, at: Tables) -> Iterator[str]:
    s = schedule
    place = s.placement
    phase = {_K.F: place.forward, _K.RECV_W: place.forward}
    for index in np.flatnonzero(_find_suspect(schedule, at)).tolist():
        a = s[index]
        home = phase.get(a.kind, place.backward)
        channel = KIND_OF.get(a.kind)
        if channel is not None and not 0 <= s.channel[index] < len(s.channels):
            yield f"{a} is on channel {s.channel[index]}: there are {len(s.channels)}"
        elif channel is not None and s.channels[s.channel[index]].kind is not channel:
            yield f"{a} is on a channel of another kind"
        elif a.microbatch is not None and not a.microbatch < s.microbatches:
            yield f"{a}: there are {s.microbatches} microbatches"
        elif a.stage >= len(home) or a.replica >= len(home[a.stage]):
            yield f"{a}: there is no such stage or replica"
        else:
            yield f"{a} stands on device {s.device[index]}, where it does not belong"


def _find_suspect(schedule: Schedule, at: Tables) -> npt.NDArray[np.bool_]:
    """Actions whose stage, replica, microbatch, channel or device cannot be right."""
    s = schedule
    bad: npt.NDArray[np.bool_] = s.microbatch >= s.microbatches
    bad |= (s.stage < 0) | (s.stage >= s.stages)
    carried = np.full(len(_K), -1, dtype=np.int8)  # the kind of channel that an action needs
    for channel in _C:
        carried[[channel.send, channel.receive]] = channel
    rows = np.flatnonzero((carried[s.kind] >= 0) & ~bad)
    kinds = np.array([*(c.kind for c in s.channels), -1], dtype=np.int8)
    number = s.channel[rows]
    known = (number >= 0) & (number < len(s.channels))
    known &= kinds.take(number, mode="clip") == carried[s.kind[rows]]
    bad[rows[~known]] = True
    rows = rows[known]
    bad[rows] = _find_misplaced(s, at, rows)
    for phase in ("forward", "backward"):
        own = (s.kind == _K.F) == (phase == "forward")
        rows = np.flatnonzero(own & (carried[s.kind] < 0) & ~bad)
        bad[rows] = _find_homeless(s, rows, getattr(s.placement, phase))
    return bad


def _find_homeless(
    schedule: Schedule, rows: np.ndarray, phase: tuple[tuple[int, ...], ...]
) -> np.ndarray:
    """Compute and updates that are not on the device of their stage and replica."""
    s, stage, replica = schedule, schedule.stage[rows], schedule.replica[rows]
    width = max((len(d) for d in phase), default=0) or 1
    home = np.full((s.stages, width), -1, dtype=np.int16)
    for number, devices in enumerate(phase):
        home[number, : len(devices)] = devices
    counts = (home >= 0).sum(axis=1)[stage]
    at = stage.astype(np.int64) * width + np.minimum(replica, width - 1)
    wrong: np.ndarray = (home.take(at) != s.device[rows]) | (replica >= counts)
    timed = s.kind[rows] <= _K.W
    microbatch = s.microbatch[rows]
    astray = (microbatch % np.maximum(counts, 1) != replica) if width > 1 else replica != 0
    wrong |= timed & (astray | (microbatch < 0))
    return wrong


def _find_misplaced(schedule: Schedule, at: Tables, rows: np.ndarray) -> np.ndarray:
    """Transfers on a device or stage that is not the end of their channel."""
    s, routes = schedule, routes_of(schedule)
    sends = np.zeros(len(_K), dtype=bool)
    sends[[c.send for c in _C]] = True
    send = sends[s.kind[rows]]
    weights = (s.kind[rows] == _K.SEND_W) | (s.kind[rows] == _K.RECV_W)
    message = np.where(weights, s.replica[rows], s.microbatch[rows]) % routes.period
    number = s.channel[rows]
    device = np.where(send, routes.sender[number, message], routes.receiver[number, message])
    stage = np.where(send, at.source[number], at.target[number])
    wrong: np.ndarray = (device != s.device[rows]) | (stage != s.stage[rows])
    wrong |= ~weights & (s.microbatch[rows] < 0)
    return wrong


def _counts(schedule: Schedule, kinds: tuple[ActionKind, ...]) -> np.ndarray:
    """How often each (stage, microbatch) has one of ``kinds``."""
    s = schedule
    rows = np.flatnonzero(np.isin(s.kind, kinds))
    flat = s.stage[rows].astype(np.int64) * s.microbatches + s.microbatch[rows]
    return np.bincount(flat, minlength=s.stages * s.microbatches).reshape(s.stages, -1)


def _compute(schedule: Schedule) -> Iterator[str]:
    place = schedule.placement
    back = len(place.backward)
    f, b, i, w = (_counts(schedule, (k,)) for k in (_K.F, _K.B, _K.I, _K.W))
    yield from _find_repeated(f[: len(place.forward)], "F")
    yield from _find_repeated((b + i)[:back], "B (or I)")
    yield from _find_repeated((b + w)[:back], "B (or W)")


def _find_repeated(counts: np.ndarray, name: str) -> Iterator[str]:
    for stage, microbatch in np.argwhere(counts != 1).tolist():
        times = counts[stage, microbatch]
        yield f"stage {stage} does {name} of microbatch {microbatch} {times} times, not once"


def _transfers(schedule: Schedule) -> Iterator[str]:
    s, routes = schedule, routes_of(schedule)
    turn = np.arange(s.microbatches) % routes.period
    for kind in _C:
        numbers = [n for n, c in enumerate(s.channels) if c.kind is kind]
        if kind is _C.W or not numbers:
            continue
        wanted = routes.explicit[numbers][:, turn].astype(int)
        for end in (kind.send, kind.receive):
            rows = np.flatnonzero(s.kind == end)
            flat = (s.channel[rows] - numbers[0]).astype(np.int64) * s.microbatches
            flat += s.microbatch[rows]
            counts = np.bincount(flat, minlength=wanted.size).reshape(wanted.shape)
            for row, m in np.argwhere(counts != wanted).tolist():
                c = s.channels[numbers[row]]
                name = f" ({c.name})" if c.name else ""
                stage = c.src if end is kind.send else c.dst
                right = f"{counts[row, m]} times, not {wanted[row, m]}"
                yield f"{stage}{end.name}{m}{name} is in the schedule {right}"


def _updates(schedule: Schedule) -> Iterator[str]:
    s = schedule
    copied, stepped = s.state_beside > 0, "steps" in s.inserted
    wanted = {_K.STEP: stepped, _K.OFFLOAD_O: copied, _K.FETCH_O: copied}
    for kind, wants in {**wanted, _K.REDUCE_GRAD: "reduce" in s.inserted}.items():
        want: Counter[tuple[int, int, int]] = Counter()
        if wants:
            for stage, devices in enumerate(s.placement.backward):
                if kind is not _K.REDUCE_GRAD or len(devices) > 1:
                    for replica in range(len(devices)):
                        last = range(replica, s.microbatches, len(devices))[-1:]
                        updates = [s.rule.update_of(m, len(devices)) for m in last]
                        versions = range(1, 1 + max(updates, default=0))
                        want.update((stage, replica, v) for v in versions)
        rows = np.flatnonzero(s.kind == kind)
        columns = (s.stage[rows].tolist(), s.replica[rows].tolist(), s.version[rows].tolist())
        have = Counter(zip(*columns, strict=True))
        for key in sorted((want | have).keys()):
            if want[key] != have[key]:
                what = f"{key[0]}{kind.name} of version {key[2]} on replica {key[1]}"
                yield f"{what} is in the schedule {have[key]} times, not {want[key]}"


def _check_published(schedule: Schedule) -> Iterator[str]:
    s, routes = schedule, routes_of(schedule)
    if not any(c.kind is _C.W for c in s.channels):
        return  # then nothing sends weights: every transfer is on a channel of its kind
    used = np.zeros((s.stages, routes.period), dtype=np.int64)
    forward = np.flatnonzero(s.kind == _K.F)
    np.maximum.at(used, (s.stage[forward], s.replica[forward]), s.version[forward])
    for kind in (_K.SEND_W, _K.RECV_W):
        rows = np.flatnonzero(s.kind == kind)
        columns = (s.channel[rows].tolist(), s.replica[rows].tolist(), s.version[rows].tolist())
        have = Counter(zip(*columns, strict=True))
        want = Counter(
            (n, r, v)
            for n, c in enumerate(s.channels)
            if c.kind is _C.W
            for r in range(len(s.placement.forward[c.dst]))
            if routes.explicit[n, r]
            for v in range(1, 1 + int(used[c.dst, r]))
        )
        for key in sorted((want | have).keys()):
            if want[key] != have[key]:
                c = s.channels[key[0]]
                what = f"{kind.name} of version {key[2]} from stage {c.src} to {c.dst}"
                yield f"{what} is in the schedule {have[key]} times, not {want[key]}"
