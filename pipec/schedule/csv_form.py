"""CSV as torch.distributed.pipelining reads and writes it: one row per rank, ``2F0`` per cell.

Versions, replicas and channel names have no place there and are left out. Read are also its
``(0F1;1B0)OVERLAP_F_B`` (as 0F1, then 1B0), empty cells (bubbles), and ``UNSHARD`` and
``RESHARD``, which move the shards of FSDP and are dropped: the stages here are not sharded.
"""

import csv
import io
import re

from pipec.errors import ScheduleError
from pipec.schedule.action import Action, ActionKind
from pipec.schedule.rows import from_rows
from pipec.schedule.schedule import Schedule

_SHARDING = re.compile(r"\d+(UNSHARD|RESHARD)")
_OVERLAP = re.compile(r"\((?P<parts>[^()]*)\)OVERLAP_F_B")
_TORCH = frozenset(ActionKind) - {
    ActionKind.SEND_S,
    ActionKind.RECV_S,
    ActionKind.SEND_W,
    ActionKind.RECV_W,
    ActionKind.OFFLOAD,
    ActionKind.FETCH,
    ActionKind.STEP,
}


def to_csv(schedule: Schedule) -> str:
    """One line per device; actions that torch does not know (STEP, OFFLOAD, ...) are left out.

    Example:
        >>> from pipec.schedule.registry import generate
        >>> print(to_csv(generate("gpipe", stages=2, microbatches=1)), end="")
        0F0,0B0
        1F0,1B0
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in schedule.rows():
        writer.writerow([a.plain for a in row if a.kind in _TORCH])
    return text.getvalue()


def from_csv(text: str, *, name: str = "csv", where: str | None = None) -> Schedule:
    """Read a schedule of compute actions, with or without sends and receives.

    Args:
        text: The file's text.
        name: What the schedule is called.
        where: The file's name, for errors.

    Raises:
        ScheduleError: A cell is no action; line and column are named. Or the actions are no
            schedule.
    """
    rows = []
    for line, cells in enumerate(csv.reader(io.StringIO(text)), 1):
        row: list[Action] = []
        for column, cell in enumerate(cells, 1):
            try:
                row += _actions(cell.strip())
            except ScheduleError as error:
                raise ScheduleError(
                    error.what,
                    where=f"{where or 'CSV'}, line {line}, cell {column}",
                    got=error.got,
                    want=error.want,
                ) from error
        rows.append(row)
    try:
        return from_rows(name, rows)
    except ScheduleError as error:
        raise ScheduleError(
            error.what, where=where or "CSV", got=error.got, want=error.want, hint=error.hint
        ) from error


def _actions(cell: str) -> list[Action]:
    if not cell or _SHARDING.fullmatch(cell):
        return []
    if overlap := _OVERLAP.fullmatch(cell):
        return [Action.parse(part) for part in overlap["parts"].split(";") if part.strip()]
    return [Action.parse(cell)]
