"""CSV as torch.distributed.pipelining reads and writes it: one row per rank, ``2F0`` per cell.

Versions, replicas and channel names have no place there and are left out; a replica is read off
the row. Read are also its ``(0F1;1B0)OVERLAP_F_B`` (as 0F1, then 1B0), empty cells (bubbles), and
``UNSHARD``, ``RESHARD`` and ``REDUCE_GRAD``, which move the shards of FSDP and are dropped: the
stages here are not sharded, and gradients of replicas are reduced by `pipec.schedule.lower`.
"""

import csv
import io
import re

from pipec.errors import ScheduleError
from pipec.schedule.action import OF_UPDATES, Action, ActionKind
from pipec.schedule.build import Ops, placement_of
from pipec.schedule.rows import from_rows
from pipec.schedule.schedule import Placement, Schedule

_SHARDING = re.compile(r"\d+(UNSHARD|RESHARD|REDUCE_GRAD)")
_OVERLAP = re.compile(r"\((?P<parts>[^()]*)\)OVERLAP_F_B")
_SAVED = {ActionKind.SEND_S, ActionKind.RECV_S, ActionKind.OFFLOAD, ActionKind.FETCH}
_TORCH = frozenset(ActionKind) - _SAVED - {*OF_UPDATES}


def to_csv(schedule: Schedule) -> str:
    """One line per device; of what belongs to updates, only the last step of a stage has a word.

    It is written as ``REDUCE_GRAD``, where torch divides the gradients by the microbatches.

    Raises:
        ScheduleError: Saved values leave a device: torch has no word for it.

    Example:
        >>> from pipec.schedule.registry import generate
        >>> print(to_csv(generate("gpipe", stages=2, microbatches=1)), end="")
        0F0,0B0
        1F0,1B0
    """
    if unknown := [kind for kind in _SAVED if (schedule.kind == kind).any()]:
        raise ScheduleError(
            "the CSV of torch.distributed.pipelining has no word for saved values that move",
            where=schedule.name,
            got=", ".join(sorted(kind.name for kind in unknown)),
            hint="write the compute actions alone, without sends",
        )
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in schedule.rows():
        last = {a.stage: a for a in row if a.kind is ActionKind.STEP}
        writer.writerow(
            a.plain if a.kind in _TORCH else f"{a.stage}REDUCE_GRAD"
            for a in row
            if a.kind in _TORCH or a is last.get(a.stage)
        )
    return text.getvalue()


def from_csv(text: str, *, name: str = "csv", where: str | None = None) -> Schedule:
    """Read a schedule of compute actions, with or without sends and receives.

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
                raise error.at(f"{where or 'CSV'}, line {line}, cell {column}") from error
        rows.append(row)
    try:
        place = placement_of([Ops.of([a for a in row if a.kind.is_compute]) for row in rows])
        return from_rows(name, _on_replicas(rows, place), placement=place)
    except ScheduleError as error:
        raise error.at(where or "CSV") from error


def _on_replicas(rows: list[list[Action]], place: Placement) -> list[list[Action]]:
    """The rows, every action on the replica of its stage that its device is."""
    ahead, back = (
        {
            (stage, device): n
            for stage, devices in enumerate(phase)
            for n, device in enumerate(devices)
        }
        for phase in (place.forward, place.backward)
    )
    forward = (ActionKind.F, ActionKind.SEND_F, ActionKind.RECV_F)
    return [
        [
            a._replace(replica=(ahead if a.kind in forward else back).get((a.stage, device), 0))
            for a in row
        ]
        for device, row in enumerate(rows)
    ]


def _actions(cell: str) -> list[Action]:
    if not cell or _SHARDING.fullmatch(cell):
        return []
    if overlap := _OVERLAP.fullmatch(cell):
        return [Action.parse(part) for part in overlap["parts"].split(";") if part.strip()]
    return [Action.parse(cell)]
