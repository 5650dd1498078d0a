"""Putting new actions between those of a schedule: what all schedule passes have in common."""

from dataclasses import dataclass

import numpy as np

from pipec.schedule.schedule import COLUMNS, DTYPES, Schedule

BLOCK = 1 << 17
"""Actions that are merged at a time: what this needs beside the result stays in the caches."""

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
    count, given = len(schedule), [_in_order(i) for i in insertions]
    total = count + sum(len(i.anchor) for i in given)
    columns = {name: np.empty(total, DTYPES[name]) for name in COLUMNS}
    at = 0
    for begin in range(0, count, BLOCK):
        at += _merge(schedule, given, range(begin, min(begin + BLOCK, count)), columns, at)
    pointer = schedule.device_ptr.copy()
    for i in given:
        pointer += np.searchsorted(i.anchor, schedule.device_ptr)
    return schedule.replace(device_ptr=pointer, **columns, **changes)


def _in_order(insertion: Insertion) -> Insertion:
    """The same with its anchors sorted, new actions of one anchor in the order given."""
    anchor = np.asarray(insertion.anchor)
    if not (anchor[1:] < anchor[:-1]).any():
        return insertion
    order = np.argsort(anchor, kind="stable")
    values = {k: v if isinstance(v, int) else v[order] for k, v in insertion.values.items()}
    return Insertion(anchor[order], insertion.after, values)


def _merge(
    schedule: Schedule,
    insertions: list[Insertion],
    block: range,
    columns: dict[str, np.ndarray],
    at: int,
) -> int:
    """Write a block of the schedule with what is inserted next to it from ``at`` on; how many."""
    old = slice(block.start, block.stop)
    new = [slice(*np.searchsorted(i.anchor, (block.start, block.stop))) for i in insertions]
    keys = [np.arange(block.start, block.stop, dtype=np.int64) * 3 + 1]
    for i, part in zip(insertions, new, strict=True):
        keys.append(i.anchor[part].astype(np.int64) * 3 + (2 if i.after else 0))
    order = np.argsort(np.concatenate(keys), kind="stable")  # runs that are sorted: merges
    for name, column in columns.items():
        default = -1 if name in ("channel", "microbatch") else 0
        parts = [getattr(schedule, name)[old]]
        for i, part in zip(insertions, new, strict=True):
            value = i.values.get(name, default)
            size = part.stop - part.start
            parts.append(np.full(size, value) if isinstance(value, int) else value[part])
        together = np.concatenate([np.asarray(p, dtype=DTYPES[name]) for p in parts])
        column[at : at + len(order)] = together[order]
    return len(order)
