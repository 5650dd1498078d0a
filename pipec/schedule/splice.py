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
        anchor: Position of the action that each new one stands next to, in any order.
        after: Whether it stands behind its anchor (or before it).
        values: Columns of the new actions, as ``anchor``; numbers stand for constant columns.
    """

    anchor: np.ndarray
    after: bool
    values: Values


def splice(schedule: Schedule, insertions: list[Insertion], **changes: object) -> Schedule:
    """The schedule with the new actions in it.

    Actions at one place stand in the order of ``insertions``, those of one in the order given.
    """
    count, given = len(schedule), [_Sorted.of(i) for i in insertions]
    total = count + sum(len(i.anchor) for i in given)
    columns = {name: np.empty(total, DTYPES[name]) for name in COLUMNS}
    at = 0
    for begin in range(0, count, BLOCK):
        at += _merge(schedule, given, range(begin, min(begin + BLOCK, count)), columns, at)
    pointer = schedule.device_ptr.copy()
    for i in given:
        pointer += np.searchsorted(i.anchor, schedule.device_ptr)
    return schedule.replace(device_ptr=pointer, **columns, **changes)


@dataclass(frozen=True)
class _Sorted:
    """An insertion with its anchors in ascending order, and which of the new actions is where."""

    anchor: np.ndarray
    order: np.ndarray | None
    after: bool
    values: Values

    @classmethod
    def of(cls, insertion: Insertion) -> "_Sorted":
        """An insertion's actions by anchor; those of one anchor stay in their order."""
        anchor, order = insertion.anchor, None
        if (anchor[1:] < anchor[:-1]).any():
            order = np.argsort(anchor, kind="stable").astype(np.int32)
            anchor = anchor[order]
        return cls(anchor, order, insertion.after, insertion.values)

    def column(self, name: str, part: slice) -> np.ndarray:
        """A column of some of the new actions."""
        value = self.values.get(name, -1 if name in ("channel", "microbatch") else 0)
        if isinstance(value, int):
            return np.full(part.stop - part.start, value)
        return value[part] if self.order is None else value[self.order[part]]


def _merge(
    schedule: Schedule,
    insertions: list[_Sorted],
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
        parts = [getattr(schedule, name)[old]]
        parts += [i.column(name, part) for i, part in zip(insertions, new, strict=True)]
        together = np.concatenate([np.asarray(p, dtype=DTYPES[name]) for p in parts])
        column[at : at + len(order)] = together[order]
    return len(order)
