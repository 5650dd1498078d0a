"""The JSON form of a schedule, as it stands in ``plan.json``: rows of text, and what they mean."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any, NotRequired, TypedDict

from msgspec import Meta, convert

from pipec.errors import ScheduleError
from pipec.schedule.action import Action
from pipec.schedule.channels import Channel, ChannelKind
from pipec.schedule.rows import from_rows
from pipec.schedule.schedule import LanePolicy, Placement, Schedule
from pipec.schedule.versions import VersionRule

VERSION = 1

Number = Annotated[int, Meta(ge=0, lt=1 << 15)]
"""Of a stage or of a device."""


class Form(TypedDict):
    """The schema."""

    version: int
    name: str
    microbatches: Annotated[int, Meta(ge=1, lt=1 << 24)]
    placement: dict[str, tuple[tuple[Number, ...], ...]]
    rule: VersionRule
    lanes: LanePolicy
    inserted: frozenset[str]
    options: dict[str, Any]
    state_beside: NotRequired[Annotated[int, Meta(ge=1, lt=1 << 24)]]
    joint: NotRequired[tuple[tuple[Number, ...], ...]]
    channels: list[tuple[str, Number, Number, str, int, int | None]]
    rows: list[str]


def to_json(schedule: Schedule) -> dict[str, Any]:
    """The schedule as JSON data; `from_json` reads it back.

    Example:
        >>> from pipec.schedule.registry import generate
        >>> to_json(generate("1f1b", stages=2, microbatches=2))["rows"]
        ['0F0 0F1 0B0 0B1', '1F0 1B0 1F1 1B1']
    """
    place = schedule.placement
    return {
        "version": VERSION,
        "name": schedule.name,
        "microbatches": schedule.microbatches,
        "placement": {"F": place.forward, "B": place.backward},
        "rule": asdict(schedule.rule),
        "lanes": asdict(schedule.lanes),
        "inserted": sorted(schedule.inserted),
        "options": dict(schedule.options),
        **({"state_beside": schedule.state_beside} if schedule.state_beside else {}),
        **({"joint": schedule.joint} if schedule.joint else {}),
        "channels": [c.to_json() for c in schedule.channels],
        "rows": [" ".join(map(str, row)) for row in schedule.rows()],
    }


def from_json(data: Mapping[str, Any]) -> Schedule:
    """Read what `to_json` wrote.

    Raises:
        ScheduleError: The data is of another version, lacks a key, or holds no valid schedule.
    """
    if data.get("version") != VERSION:
        raise ScheduleError(
            "schedule of another version", got=data.get("version"), want=f"version {VERSION}"
        )
    try:
        form = convert(data, Form)
        schedule = from_rows(
            form["name"],
            [[Action.parse(text) for text in row.split()] for row in form["rows"]],
            microbatches=form["microbatches"],
            placement=Placement(form["placement"]["F"], form["placement"]["B"]),
            rule=form["rule"],
            channels=[Channel(ChannelKind[c[0]], *c[1:]) for c in form["channels"]],
            lanes=form["lanes"],
            options=form["options"],
        )
        beside, joint = form.get("state_beside", 0), form.get("joint", ())
        return schedule.replace(inserted=form["inserted"], state_beside=beside, joint=joint)
    except (KeyError, TypeError, ValueError) as error:
        raise ScheduleError("not the JSON form of a schedule", got=repr(error)) from error
