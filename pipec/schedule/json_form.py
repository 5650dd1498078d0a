"""The JSON form of a schedule, as it stands in ``plan.json``: rows of text, and what they mean."""

from collections.abc import Mapping
from typing import Any

from pipec.errors import ScheduleError
from pipec.schedule.action import Action
from pipec.schedule.channels import Channel
from pipec.schedule.rows import from_rows
from pipec.schedule.schedule import LanePolicy, Placement, Schedule
from pipec.schedule.versions import VersionRule

VERSION = 1


def to_json(schedule: Schedule) -> dict[str, Any]:
    """The schedule as JSON data; `from_json` reads it back.

    Example:
        >>> from pipec.schedule.registry import generate
        >>> to_json(generate("1f1b", stages=2, microbatches=2))["rows"]
        ['0F0 0F1 0B0 0B1', '1F0 1B0 1F1 1B1']
    """
    place, rule, lanes = schedule.placement, schedule.rule, schedule.lanes
    return {
        "version": VERSION,
        "name": schedule.name,
        "microbatches": schedule.microbatches,
        "placement": {
            "F": [list(d) for d in place.forward],
            "B": [list(d) for d in place.backward],
        },
        "rule": {"name": rule.name, "update_every": rule.update_every},
        "lanes": {"compute": lanes.compute, "comm": lanes.comm, "reduce": lanes.reduce},
        "inserted": sorted(schedule.inserted),
        "options": dict(schedule.options),
        **({"joint": [list(d) for d in schedule.joint]} if schedule.joint else {}),
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
        place, rule = data["placement"], data["rule"]
        schedule = from_rows(
            data["name"],
            [[Action.parse(text) for text in row.split()] for row in data["rows"]],
            microbatches=data["microbatches"],
            placement=Placement(
                tuple(map(tuple, place["F"])),
                tuple(map(tuple, place["B"])),
            ),
            rule=VersionRule(rule["name"], rule["update_every"]),
            channels=[Channel.from_json(c) for c in data["channels"]],
            lanes=LanePolicy(**data["lanes"]),
            options=data["options"],
        )
        joint = tuple(map(tuple, data.get("joint", ())))
        return schedule.replace(inserted=frozenset(data["inserted"]), joint=joint)
    except (KeyError, TypeError, ValueError) as error:
        raise ScheduleError("not the JSON form of a schedule", got=repr(error)) from error
