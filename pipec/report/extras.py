"""What other commands wrote, for the report page: verification, metrics, a run's trace, engines."""

import json
from collections import Counter
from math import isfinite
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, convert, to_builtins

from pipec.compiler.comparison import Comparison
from pipec.compiler.interpret import NODE
from pipec.errors import PipecError
from pipec.plan.model import Plan
from pipec.runtime.metrics import Step
from pipec.runtime.recording import RECORDED
from pipec.schedule.action import ActionKind
from pipec.schedule.schedule import Schedule

Data = dict[str, Any]
_SOME = Meta(min_length=1)
_TRACE, _RUN = "a trace of a run", "pipec run OUT --trace FILE"
_HINT = "name what `pipec verify --json` or `pipec run` wrote"


def read_verification(path: Path, plan: Plan) -> Data:
    """What ``pipec verify --json`` printed of a plan.

    Raises:
        PipecError: The file cannot be read, is something else, or is of another plan.
    """
    command = "pipec verify OUT --json > FILE"
    try:
        rows = convert(_json(path)["boundaries"], Annotated[list[Comparison], _SOME])
    except (ValueError, LookupError, TypeError) as error:
        raise _make_error(path, "a verification", command) from error
    ends = [(s.graph.inputs, s.graph.outputs) for s in plan.stages]
    known = [[*(i.name for i in ins), *(o.name for o in outs)] for ins, outs in ends]
    for channel in plan.channels:
        known[channel.src].append(channel.value)
    for row in rows:
        there = tuple(f"{n} " for n in known[row.stage]) if 0 <= row.stage < len(known) else ()
        # "y at batch=3", "y of frame 2"
        if row.kind != NODE and not f"{row.name} ".startswith(there):
            raise PipecError(
                "the verification is of another plan",
                where=path,
                got=f"{row.kind} {row.name} of stage {row.stage}",
                want="what the stages of this plan yield, and their weights",
                hint=f"verify this one: {command}",
            )
    return {"boundaries": to_builtins(rows)}


def read_metrics(path: Path) -> list[Data]:
    """What ``pipec run --metrics`` wrote, one JSON object per line.

    Raises:
        PipecError: The file cannot be read, or is something else.
    """
    try:
        rows = [json.loads(line) for line in _text(path).splitlines() if line.strip()]
        found: list[Data] = to_builtins(convert(rows, Annotated[list[Step], _SOME]))
    except (ValueError, RecursionError) as error:
        raise _make_error(path, "metrics", "pipec run OUT --metrics FILE") from error
    return found


def read_trace(path: Path, schedule: Schedule) -> Data:
    """What ``pipec run --trace`` wrote: a Chrome trace; its actions as rows, from time 0 on.

    Raises:
        PipecError: The file cannot be read, is something else, or is of another plan.
    """
    try:
        data = _json(path)
        data["otherData"][RECORDED]  # a prediction looks alike
        events = [e for e in data["traceEvents"] if e["ph"] == "X"]
        lanes = {e["tid"]: e["args"]["name"] for e in data["traceEvents"]
                 if e["ph"] == "M" and e["name"] == "thread_name"}  # fmt: skip
        start = min(e["ts"] for e in events)
        rows = [
            [
                e["pid"], lanes[e["tid"]], e["cat"], e["args"]["stage"], _which(e["args"]),
                (e["ts"] - start) / 1e6, (e["ts"] - start + e["dur"]) / 1e6,
            ]
            for e in events
        ]  # fmt: skip
        _check_ran(rows, schedule, path)
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise _make_error(path, _TRACE, _RUN) from error
    return {"seconds": max(row[-1] for row in rows), "actions": rows}


def _which(action: Data) -> int | str:
    """The microbatch of an action, or the version that a step or another of an update makes."""
    microbatch: int | None = action["microbatch"]
    return f"@{action['version']}" if microbatch is None else microbatch


def _check_ran(rows: list[list[Any]], schedule: Schedule, path: Path) -> None:
    """See that every device ran what the schedule gives it, as often as it does, at some time."""
    if not all(isfinite(time) for row in rows for time in row[-2:]):
        raise _make_error(path, _TRACE, _RUN)
    devices = schedule.device.tolist()
    planned = Counter(
        (device, a.kind.name, a.stage)
        for device, a in zip(devices, schedule, strict=True)
        if a.kind.is_compute
    )
    names = {kind.name for kind in ActionKind if kind.is_compute}
    ran = Counter((row[0], row[2], row[3]) for row in rows if row[2] in names)
    for device, kind, stage in sorted(planned | ran):
        counts = [found[device, kind, stage] for found in (ran, planned)]
        if counts[0] != counts[1]:
            what = f"{kind} of stage {stage} on device {device}"
            raise PipecError(
                "the trace is of another plan",
                where=path,
                got=f"{counts[0]} times {what}",
                want=f"{counts[1]} times",
                hint=f"name the plan that ran, or run this one: {_RUN}",
            )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PipecError("a file cannot be read", where=path, got=error, hint=_HINT) from error


def _json(path: Path) -> Any:
    try:
        return json.loads(_text(path))
    except (ValueError, RecursionError) as error:
        raise PipecError("a file is no JSON", where=path, got=error, hint=_HINT) from error


def _make_error(path: Path, what: str, command: str) -> PipecError:
    return PipecError(f"the file is not {what}", where=path, hint=f"write it with: {command}")
