"""How long every action takes: seconds per stage, per channel, and how they become durations."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from msgspec import convert

from pipec.errors import ScheduleError
from pipec.schedule.action import COMPUTE, ActionKind
from pipec.schedule.channels import ChannelKind
from pipec.schedule.routes import routes_of
from pipec.schedule.schedule import Schedule

Float = npt.NDArray[np.float64]
Positions = npt.NDArray[np.signedinteger]
_K = ActionKind
_END = np.full(len(_K), -1)  # of a transfer that an action is
for _kind in ChannelKind:
    _END[_kind.send], _END[_kind.receive] = 0, 1


@dataclass(frozen=True)
class Times:
    """Seconds of everything that a schedule does; any unit will do if all use the same.

    Attributes:
        compute: Seconds of F, B, I, W, per stage.
        transfer: Seconds that one message takes on its way: one number for all channels (not
            for copies to the host), or a table (channels, period of `Routes`) for unlike links.
        host: Seconds of one OFFLOAD or FETCH, per channel number; 0 where absent.
        reduce: Seconds of one REDUCE_GRAD, per stage; 0 where absent.
        step: Seconds of one STEP, per stage; 0 where absent.
        together: Seconds of F and of B where both run at the same time on parts of a device, per
            stage; F + B where absent or 0.
        state: Seconds of one OFFLOAD_O or FETCH_O, per stage; 0 where absent.
    """

    compute: Mapping[ActionKind, tuple[float, ...]]
    transfer: float | tuple[tuple[float, ...], ...] = 0.0
    host: Mapping[int, float] = field(default_factory=dict)
    reduce: tuple[float, ...] = ()
    step: tuple[float, ...] = ()
    together: tuple[float, ...] = ()
    state: tuple[float, ...] = ()

    @classmethod
    def uniform(
        cls,
        stages: int,
        F: float = 1.0,
        B: float | None = None,
        I: float | None = None,  # noqa: E741
        W: float | None = None,
        *,
        comm: float = 0.0,
    ) -> Self:
        """The same times on every stage.

        A full backward takes I + W; what is not given follows: B = 2F, I = W = B / 2.

        Example:
            >>> Times.uniform(1, F=1, I=1, W=0.5).compute[ActionKind.B]
            (1.5,)
        """
        return cls.of_stages(
            [F] * stages,
            None if B is None else [B] * stages,
            None if I is None else [I] * stages,
            None if W is None else [W] * stages,
            comm=comm,
        )

    @classmethod
    def of_stages(
        cls,
        F: Sequence[float],
        B: Sequence[float] | None = None,
        I: Sequence[float] | None = None,  # noqa: E741
        W: Sequence[float] | None = None,
        *,
        comm: float = 0.0,
    ) -> Self:
        """Times per stage; what is not given follows as in `uniform`."""
        if B is None:
            B = (
                [2 * f for f in F]
                if I is None or W is None
                else [i + w for i, w in zip(I, W, strict=True)]
            )
        if I is None:
            I = (  # noqa: E741
                [b / 2 for b in B] if W is None else [b - w for b, w in zip(B, W, strict=True)]
            )
        if W is None:
            W = [b - i for b, i in zip(B, I, strict=True)]
        seconds = dict(zip(COMPUTE, map(tuple, (F, B, I, W)), strict=True))
        return cls(seconds, transfer=comm)

    def to_json(self) -> dict[str, Any]:
        """As JSON data."""
        return {**asdict(self), "compute": {k.name: v for k, v in self.compute.items()}}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote."""
        compute = {ActionKind[k]: v for k, v in data["compute"].items()}
        return convert({**data, "compute": compute}, cls, str_keys=True)

    def work(self, schedule: Schedule) -> Float:
        """Seconds by (kind, stage) of a whole device; a negative or missing time is refused.

        Raises:
            ScheduleError: A time is negative, not a number, or missing for a stage.
        """
        table = np.zeros((len(_K), schedule.stages))
        given = {**self.compute, _K.REDUCE_GRAD: self.reduce, _K.STEP: self.step}
        given |= {_K.OFFLOAD_O: self.state, _K.FETCH_O: self.state}
        for kind, seconds in given.items():
            if seconds and len(seconds) < schedule.stages:
                raise ScheduleError(
                    f"no {kind.name} time for stage {len(seconds)}",
                    got=f"{len(seconds)} times",
                    want=f"{schedule.stages}, one per stage",
                )
            table[kind, :] = seconds[: schedule.stages] if seconds else 0.0
        wrong = np.argwhere(~(np.isfinite(table) & (table >= 0)))
        if len(wrong):
            kind, stage = wrong[0].tolist()
            raise ScheduleError(
                "a time is negative or no number",
                where=f"{_K(kind).name} of stage {stage}",
                got=f"{table[kind, stage]:g}",
                want="0 or more; of I and W what is not given is the rest of B",
            )
        return table

    def of_whole_device(self, schedule: Schedule) -> Float:
        """`work`, where a device is split by F and B that are halves of their slot."""
        table = self.work(schedule)
        if schedule.lanes.compute == "split" and self.together:
            table[_K.F] = table[_K.B] = self._slots(table) / 2
        return table

    def _slots(self, table: Float) -> Float:
        """What F and B take side by side, per stage."""
        slots: Float = table[_K.F] + np.maximum(table[_K.B], table[_K.I] + table[_K.W])
        if self.together:
            given = np.array(self.together[: table.shape[1]])
            slots = np.where(given > 0, given, slots)
        return slots

    def durations(self, schedule: Schedule) -> "Durations":
        """Seconds of every action.

        On a device that is split between forward and backward (`LanePolicy`), each takes F + B
        of its stage: its share of the device is F : B; or what ``together`` says.

        Raises:
            ScheduleError: As `work`.
        """
        work = self.work(schedule)
        if schedule.lanes.compute == "split":
            work[_K.F] = work[_K.B] = self._slots(work)
        transfers = self._transfers(schedule)
        with np.errstate(over="ignore"):
            longest = max(work.max(), transfers.max(initial=0.0))
            total = longest * (len(schedule) + 1)
        if not np.isfinite(total):
            raise ScheduleError(
                "the times of all actions together are beyond floating point",
                got=f"{len(schedule)} actions of up to {longest:g}",
                hint="count in a larger unit of time",
            )
        return Durations(schedule, work, transfers)

    def _transfers(self, schedule: Schedule) -> Float:
        routes = routes_of(schedule)
        table = np.zeros((2, len(schedule.channels), routes.period))
        if schedule.channels:  # a list without rows has no second axis
            table[:] = np.array(self.transfer)
        if not (np.isfinite(table).all() and (table >= 0).all()):
            raise ScheduleError(
                "a transfer time is negative or no number", got=self.transfer, want="0 or more"
            )
        for number, c in enumerate(schedule.channels):
            if c.kind is ChannelKind.H:
                table[:, number] = self.host.get(number, 0.0)
            elif c.depth != 0:
                table[1, number] = 0.0
        return table


@dataclass(frozen=True)
class Durations:
    """Seconds of the actions of one schedule, looked up by position.

    Attributes:
        schedule: The schedule of the actions.
        work: By (kind, stage), 0 for transfers.
        transfer: By (end, channel, message mod period of `Routes`); end 0 sends, 1 receives. A
            receive only takes time where it meets its send, or copies from the host.
    """

    schedule: Schedule
    work: Float
    transfer: Float

    def __call__(self, rows: Positions) -> Float:
        """Seconds of the actions at some positions."""
        s, period = self.schedule, self.transfer.shape[-1]
        kind = s.kind[rows]
        seconds: Float = self.work[kind, s.stage[rows]]
        moved = np.flatnonzero(_END[kind] >= 0)
        kind, rows = kind[moved], rows[moved]
        turn: int | Positions = 0
        if period > 1:
            weights = (kind == _K.SEND_W) | (kind == _K.RECV_W)
            turn = np.where(weights, s.replica[rows], s.microbatch[rows]) % period
        seconds[moved] = self.transfer[_END[kind], s.channel[rows], turn]
        return seconds
