"""Putting new actions between those of a schedule: what all schedule passes have in common."""

from dataclasses import dataclass

import numpy as np

from pipec.schedule.schedule import DTYPES, Schedule

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

    def column(self, name: str) -> np.ndarray:
        """A column of the new actions."""
        value = self.values.get(name, -1 if name in ("channel", "microbatch") else 0)
        return np.broadcast_to(np.asarray(value, DTYPES[name]), self.anchor.shape)


def splice(schedule: Schedule, insertions: list[Insertion], **changes: object) -> Schedule:
    """The schedule with the new actions in it.

    Actions at one place stand in the order of ``insertions``, those of one in the order given.
    """
    keys = [np.arange(len(schedule), dtype=np.int64) * 3 + 1]
    keys += [i.anchor.astype(np.int64) * 3 + (2 if i.after else 0) for i in insertions]
    order = np.argsort(np.concatenate(keys), kind="stable")
    columns = {
        name: np.concatenate([old, *(i.column(name) for i in insertions)])[order]
        for name, old in schedule.columns().items()
    }
    pointer = schedule.device_ptr.copy()
    for i in insertions:
        pointer += np.searchsorted(np.sort(i.anchor), schedule.device_ptr)
    return schedule.replace(device_ptr=pointer, **columns, **changes)
