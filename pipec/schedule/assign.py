"""Which weight version every compute action must use: `VersionRule` applied to a schedule."""

import numpy as np

from pipec.schedule.action import ActionKind
from pipec.schedule.channels import ChannelKind
from pipec.schedule.schedule import Int32, Schedule

F, B, I, W = ActionKind.F, ActionKind.B, ActionKind.I, ActionKind.W  # noqa: E741


def derive_versions(schedule: Schedule) -> Int32:
    """The version column as the schedule's rule wants it; steps and weights keep theirs.

    Rules that speak of the newest version read the order of each row: a version is there once
    the last backward of its update stands before.
    """
    rule, version = schedule.rule, schedule.version.copy()
    compute = schedule.kind <= W
    if rule.flush:
        version[compute] = 0
        return version
    if rule.name == "2bw":
        local = schedule.microbatch[compute] // schedule.replicas[schedule.stage[compute]]
        version[compute] = np.maximum(local // max(rule.update_every, 1) - 1, 0)
        return version
    if rule.name != "given":
        version[compute] = _newest(schedule)[compute]
    if rule.name == "newest":
        return version
    forward = np.flatnonzero(schedule.kind == F)
    used = np.zeros((schedule.stages, schedule.microbatches), dtype=np.int32)
    known = _in_range(schedule, forward)
    used[schedule.stage[known], schedule.microbatch[known]] = version[known]
    if rule.name == "vertical":
        # versions count updates of the stage's own replicas: minibatches / replicas
        replicas = schedule.replicas[:, None]
        used[:] = used[0] * replicas[0] // replicas
    actors = _in_range(schedule, np.flatnonzero(compute))
    forwards = schedule.kind[actors] == F
    which = np.where(forwards, 0, 1)
    read = np.stack([used, _of_saved_values(schedule, used)])
    version[actors] = read[which, schedule.stage[actors], schedule.microbatch[actors]]
    return version


def _of_saved_values(schedule: Schedule, used: np.ndarray) -> np.ndarray:
    """The version behind the saved values that a backward reads, by (stage, microbatch).

    -1 where it reads from several forward stages that used different versions.
    """
    found = np.full_like(used, -2)
    for c in schedule.channels:
        if c.kind in (ChannelKind.S, ChannelKind.H):
            row = found[c.dst]
            agree = (row == -2) | (row == used[c.src])
            found[c.dst] = np.where(agree, used[c.src], -1)
    return np.where(found == -2, used, found)


def _in_range(schedule: Schedule, index: np.ndarray) -> np.ndarray:
    microbatch = schedule.microbatch[index]
    known: np.ndarray = index[(microbatch >= 0) & (microbatch < schedule.microbatches)]
    return known


def _newest(schedule: Schedule) -> Int32:
    """Updates finished on the stage replica of each action, before it in its row."""
    every = schedule.rule.update_every
    if every == 0:
        return np.zeros(len(schedule), dtype=np.int32)
    return count_before(schedule, (schedule.kind == B) | (schedule.kind == W)) // every


def count_before(schedule: Schedule, counted: np.ndarray) -> Int32:
    """How many actions of a mask stand before each action, of those on its stage's replica."""
    group = schedule.stage.astype(np.int32) * int(schedule.replicas.max()) + schedule.replica
    order = np.argsort(group, kind="stable")
    before = np.cumsum(counted[order], dtype=np.int32) - counted[order]
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    before -= np.repeat(before[starts], np.diff(np.append(starts, len(order))))
    found = np.empty(len(schedule), dtype=np.int32)
    found[order] = before
    return found
