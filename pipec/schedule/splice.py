"""Putting new actions between those of a schedule: what all schedule passes have in common."""

from dataclasses import dataclass

import numpy as np

from pipec.schedule.schedule import COLUMNS, DTYPES, Schedule

Values = dict[str, np.ndarray | int]
"""Columns of new actions; a number is the same for all."""


@dataclass(frozen=True)
class Insertion:
    """A batch of new actions.

    Attributes:
        anchor: Position of the action that each new one stands next to.
        after: Whether it stands behind its anchor (or before it).
        values: Columns of the new actions; numbers stand for constant columns.
    """

    anchor: np.ndarray
    after: bool
    values: Values


def splice(schedule: Schedule, insertions: list[Insertion], **changes: object) -> Schedule:
    """The schedule with the new actions in it.

    Actions at one place stand in the order of ``insertions`` behind an anchor and before it.

    Args:
        schedule: Which is left as it is.
        insertions: The new actions.
        changes: Other fields to replace at the same time.
    """
    count = len(schedule)
    keys = [np.arange(count, dtype=np.int64) * 3 + 1]
    keys += [np.asarray(i.anchor, np.int64) * 3 + (2 if i.after else 0) for i in insertions]
    merged = np.concatenate(keys)
    order = np.argsort(merged, kind="stable")  # runs that are sorted already: merges
    del keys, merged
    columns = {name: _merge(schedule, insertions, name, order) for name in COLUMNS}
    anchors = [np.asarray(i.anchor) for i in insertions]
    added = np.zeros(schedule.devices, dtype=np.int64)
    for anchor in anchors:
        added += np.bincount(schedule.device[anchor], minlength=schedule.devices)
    pointer = schedule.device_ptr + np.concatenate([[0], np.cumsum(added)])
    return schedule.replace(device_ptr=pointer, **columns, **changes)


def _merge(
    schedule: Schedule, insertions: list[Insertion], name: str, order: np.ndarray
) -> np.ndarray:
    parts = [getattr(schedule, name)]
    for i in insertions:
        default = -1 if name in ("channel", "microbatch") else 0
        parts.append(np.broadcast_to(i.values.get(name, default), np.shape(i.anchor)))
    column = np.concatenate([np.asarray(p, dtype=DTYPES[name]) for p in parts])
    merged: np.ndarray = column[order]
    return merged
