"""``pipec schedule``: generate or read a schedule, prove it, time it, draw it."""

import inspect
import json
import math
from pathlib import Path
from typing import Any

import click

from pipec.cli.command import Command, refuse
from pipec.cli.console import has_width, indent_lines, output
from pipec.errors import ScheduleError
from pipec.files import check_output, write_file
from pipec.schedule.action import COMPUTE, ActionKind
from pipec.schedule.channels import ChannelKind
from pipec.schedule.csv_form import from_csv, to_csv
from pipec.schedule.lower import lower
from pipec.schedule.registry import find_generator, generate, names
from pipec.schedule.schedule import Schedule
from pipec.simulate.costs import generate_for, takes_costs
from pipec.simulate.draw_svg import svg
from pipec.simulate.draw_text import grid, table
from pipec.simulate.draw_trace import trace
from pipec.simulate.engine import Prepared
from pipec.simulate.simulate import simulate
from pipec.simulate.timeline import Timeline
from pipec.simulate.times import Times
from pipec.simulate.verify import check

DRAWN = 20_000
"""Most compute actions that are drawn as a grid of text."""
_TIMES = "F=1,B=2"


@click.command(cls=Command)
@click.argument("name", required=False)
@click.option("--stages", type=int, help="Pipeline stages, of all chunks together.")
@click.option("--microbatches", type=int, help="Microbatches.")
@click.option(
    "--times",
    default=_TIMES,
    show_default=True,
    metavar="F=T,B=T[,I=T,W=T]",
    help="Time of each action on a stage; T1:T2:... for unlike stages. B takes I + W, or twice F; "
    "I and W take half of it each.",
)
@click.option("--comm", default=0.0, show_default=True, help="Time of one transfer.")
@click.option("--host", default=0.0, show_default=True, help="Time of one copy to or from host.")
@click.option("--depth", type=int, help="Slots of every channel; 0: rendezvous; default: any.")
@click.option(
    "--lanes",
    type=click.Choice(["links", "one", "compute"]),
    help="Where sends and receives run; default: links, with --depth 0: one, in program order.",
)
@click.option("--from-csv", type=click.Path(path_type=Path), help="Read the schedule from here.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--csv", "csv_to", is_flag=False, flag_value="-", help="Write CSV; - or none: print.")
@click.option("--sends", is_flag=True, help="With sends and receives in the CSV.")
@click.option("--svg", "svg_to", type=click.Path(path_type=Path), help="Write a picture.")
@click.option("--trace", "trace_to", type=click.Path(path_type=Path), help="Write a trace.")
def command(**given: Any) -> None:
    """Generate the schedule NAME, check it, simulate it and show it.

    Options stand behind the name: 'interleaved{chunks=4}'.

    Without NAME and --from-csv: list the schedules and their options.
    """
    if given["from_csv"] is not None:
        refuse(("name", "stages", "microbatches"), "not with --from-csv, which has it")
    elif given["name"] is None:
        refuse({*given} - {"as_json"}, "name a schedule")
        listed = [_describe(name) for name in names()]
        click.echo(json.dumps(listed, indent=2) if given["as_json"] else _listing(listed))
        return
    refuse(["sends"], "only with --csv", unless=given["csv_to"] is not None)
    if given["csv_to"] == "-" and given["as_json"]:
        raise click.UsageError("--csv and --json cannot both be printed: --csv FILE writes one")
    check_output(None if given["csv_to"] in (None, "-") else Path(given["csv_to"]), ".csv")
    check_output(given["svg_to"], ".svg")
    check_output(given["trace_to"], ".json")
    plain = _schedule(given)
    check(plain, only_complete=True)
    times = _times(given["times"], plain, given["comm"], given["host"])
    _check_used(plain, given["times"], times, given["host"])
    policy = given["lanes"] or ("one" if given["depth"] == 0 else "links")
    full = Prepared.of(lower(plain, depth=given["depth"], comm=policy))
    check(full)
    timeline = simulate(full, times)
    _write_files(given, plain, full.schedule, timeline)
    if given["as_json"]:
        click.echo(json.dumps(_data(timeline), indent=1))
    elif given["csv_to"] != "-":
        click.echo(_render(timeline))


def _describe(name: str) -> dict[str, Any]:
    function = find_generator(name)
    summary = next(iter((inspect.getdoc(function) or "").splitlines()), "").replace("``", "")
    known = list(inspect.signature(function).parameters.values())[2:]
    options = [{"name": p.name, "default": str(p.default)} for p in known]
    return {"name": name, "summary": summary, "options": options}


def _listing(listed: list[dict[str, Any]]) -> str:
    lines = []
    for s in listed:
        lines.append(indent_lines(f"{s['name']:<14} {s['summary']}", 15))
        if options := ", ".join(f"{o['name']}={o['default']}" for o in s["options"]):
            lines.append(indent_lines(f"{'':<14} options: {options}", 24))
    more = (
        "with a flush, also: replicas=1, adjacent=stages (or replicas): copies of the pipeline; "
        "parts=1: stages of a device, one behind another"
    )
    return "\n".join([*lines, indent_lines(more, 0)])


def _schedule(given: dict[str, Any]) -> Schedule:
    path: Path | None = given["from_csv"]
    if path is not None:
        try:
            text = path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            hint = "write it with: pipec schedule NAME ... --csv FILE"
            raise ScheduleError(
                "the CSV cannot be read", where=path, got=error, hint=hint
            ) from error
        return from_csv(text, name=path.stem, where=str(path))
    for key in ("stages", "microbatches"):
        if given[key] is None:
            raise click.UsageError(f"--{key} is missing")
    name, stages, microbatches = given["name"], given["stages"], given["microbatches"]
    if not takes_costs(name):
        return generate(name, stages, microbatches)
    like = generate("1f1b", stages, microbatches)
    times = _times(given["times"], like, given["comm"], 0.0)
    return generate_for(name, stages, microbatches, times)


def _times(text: str, schedule: Schedule, comm: float, host: float) -> Times:
    known = [k.name for k in COMPUTE]
    given: dict[str, list[float]] = {}
    for part in text.split(","):
        key, _, value = part.partition("=")
        try:
            numbers = [float(v) for v in value.split(":")]
        except ValueError:
            numbers = []
        if (
            key not in known
            or key in given
            or not numbers
            or len(numbers) not in (1, schedule.stages)
        ):
            raise ScheduleError(
                "--times cannot be read",
                got=part,
                want=f"{', '.join(known)}, each once at most, = and 1 or {schedule.stages} numbers",
                hint="--times F=1,B=2",
            )
        given[key] = numbers * (schedule.stages if len(numbers) == 1 else 1)
    if not 0 <= host < float("inf"):
        raise ScheduleError("--host is negative or no number", got=host, want="0 or more")
    given.setdefault("F", [1.0] * schedule.stages)
    times = Times.of_stages(**given, comm=comm)
    if not schedule.training and comm == 0.0:
        return times
    copies = {n: host for n, c in enumerate(schedule.channels) if c.kind is ChannelKind.H}
    return Times(times.compute, comm, copies)


def _check_used(schedule: Schedule, times: str, seconds: Times, host: float) -> None:
    """Refuse times of actions that the schedule has not, and of copies to host memory."""
    given = [] if times == _TIMES else [part.partition("=")[0] for part in times.split(",")]
    there = {k.name for k in COMPUTE if bool((schedule.kind == k).any())}
    both, *parts = (seconds.compute[k] for k in (ActionKind.B, ActionKind.I, ActionKind.W))
    split = "I" in there and all(
        math.isclose(b, sum(p)) for b, *p in zip(both, *parts, strict=True)
    )
    known = there | {"B"} if split else there  # B is what I and W take
    idle = [f"--times {k}" for k in given if k not in known and there <= {"F", *given}]
    if host and not any(c.kind is ChannelKind.H for c in schedule.channels):
        raise ScheduleError(
            f"{schedule.name} copies nothing to host memory",
            got=f"--host {host:g}",
            want="a schedule that does, such as that of a plan with insert-offload",
        )
    if idle:
        raise ScheduleError(
            f"{schedule.name} has no such actions",
            got=", ".join(idle),
            want=f"times of {', '.join(sorted(there))}",
        )


def _write_files(
    given: dict[str, Any], plain: Schedule, full: Schedule, timeline: Timeline
) -> None:
    if given["csv_to"] is not None:
        _write(given["csv_to"], to_csv(full if given["sends"] else plain))
    if given["svg_to"] is not None:
        _write(given["svg_to"], svg(timeline))
    if given["trace_to"] is not None:
        _write(given["trace_to"], json.dumps(trace(timeline)))


def _write(path: str | Path, text: str) -> None:
    if path == "-":
        click.echo(text, nl=False)
        return
    write_file(Path(path), text)


def _number(value: float) -> float | int:
    """Without the rounding errors of sums such as 33.6."""
    short = float(f"{value:.12g}")
    return int(short) if short.is_integer() else short


def _data(timeline: Timeline) -> dict[str, Any]:
    s = timeline.schedule
    actions = []
    for index, action in enumerate(s):
        lane = timeline.lanes.names[timeline.lanes.of[index]]
        actions.append(
            {
                "action": str(action),
                "rank": lane.device,
                "stage": action.stage,
                "kind": action.kind.name,
                "microbatch": action.microbatch,
                "replica": action.replica,
                "version": action.version,
                "lane": lane.name,
                "start": _number(float(timeline.begin[index])),
                "end": _number(float(timeline.end[index])),
            }
        )
    return {
        "schedule": s.name,
        "stages": s.stages,
        "microbatches": s.microbatches,
        "ranks": s.devices,
        "options": dict(s.options),
        "makespan": _number(timeline.seconds),
        "bubble": timeline.bubble,
        "peak_in_flight": [_number(p) for p in timeline.peak_in_flight],
        "weight_versions": list(timeline.weight_versions),
        "lane_use": timeline.lane_use,
        "critical_path": [str(s[k]) for k in timeline.critical_path],
        "actions": actions,
    }


def _render(timeline: Timeline) -> str:
    s = timeline.schedule
    compute = sum(int((s.kind == kind).sum()) for kind in COMPUTE)
    drawn = f"({compute} actions: --svg draws them)"
    if compute <= DRAWN:
        screen = output()
        drawn = grid(timeline, width=screen.width) if has_width(screen) else grid(timeline)
    numbers = f"makespan {_number(timeline.seconds)}   bubble {timeline.bubble:.2%}"
    head = f"{s.name}: {s.stages} stages, {s.microbatches} microbatches, {s.devices} devices"
    return "\n".join([head, "", drawn, "", table(timeline), "", numbers])
