"""``pipec opt``: run passes on a plan that was written before, and write what comes of it."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from pipec.cli.command import Command
from pipec.cli.options import allow_namespace_option, complete_passes, import_namespaces
from pipec.cluster.cluster import parse_cluster
from pipec.compiler.driver import emit
from pipec.compiler.output import check_target
from pipec.compiler.pass_base import Pass
from pipec.compiler.pass_manager import parse_pipeline, run_passes
from pipec.errors import PassError, PipecError, PlanError, find_near
from pipec.escape import sanitize
from pipec.files import check_output, write_file
from pipec.plan.model import Fact, Plan
from pipec.plan.store import load_plan
from pipec.plan.text import graph_to_text, header_of, plan_from_text, plan_to_python, plan_to_text
from pipec.report.difference import difference


@click.command(cls=Command)
@click.argument("source", type=click.Path(path_type=Path), metavar="PLAN")
@click.option(
    "--passes",
    shell_complete=complete_passes,
    help="Pass pipeline; see `pipec passes`. Those that a text names by default.",
)
@click.option("--devices", help="Of a graph alone [default: 2xh100].")
@click.option(
    "-o",
    "--output",
    help="Directory to write, or a text: FILE.txt (the plan), FILE.json (its graph), - (as PLAN).",
)
@click.option("--force", is_flag=True, help="Replace what is there, a directory if pipec wrote it.")
@click.option("--print-ir-after", is_flag=True, help="Print the graphs after every pass.")
@click.option("--print-ir-diff", is_flag=True, help="Print what every pass changes.")
@click.option("--statistics", is_flag=True, help="Print seconds and changes of every pass.")
@click.option("--json", "as_json", is_flag=True, help="Print the statistics as JSON.")
@click.option(
    "--reproducer",
    type=click.Path(path_type=Path),
    metavar="FILE.txt",
    help="Where a pass fails: write the plan before it, with the passes that are left.",
)
@allow_namespace_option
def command(source: Path, **given: Any) -> None:
    """Run passes on PLAN, each of them verified, and write the new plan.

    PLAN is a directory, or a text of a plan or of a graph. Without -o nothing is written, and it is
    shown what changed from the first pass to the last.
    """
    allowed = import_namespaces(given["allow_namespace"])
    text = "" if source.is_dir() else _read_text(source)
    passes = given["passes"] or dict(header_of(text)).get("passes")
    check_output(given["reproducer"], ".txt")
    pipeline, output = parse_pipeline(passes) if passes else [], given["output"]
    if not pipeline and output is None:
        raise click.UsageError("nothing to do: name --passes, or -o")
    if given["force"] and output in (None, "-"):
        raise click.UsageError("--force goes with -o and a name")
    if given["devices"] is not None and _is_plan(source, text):
        raise click.UsageError("--devices: only for a graph alone; a plan has its own")
    if output is not None and not _is_text(output):
        check_target(Path(output), force=given["force"])
    if text:
        plan = plan_from_text(text, parse_cluster(given["devices"] or "2xh100"), allowed=allowed)
    else:
        plan = load_plan(source, allowed=allowed)
    after, rows = _run(_clear_decisions(plan, pipeline), pipeline, given)
    if output is not None:
        graph_alone = output.endswith(".json") or (output == "-" and not _is_plan(source, text))
        _write(after, output, graph_alone=graph_alone and not after.stages, given=given)
    elif not (given["print_ir_after"] or given["print_ir_diff"] or rows):
        _tell("after all passes", plan, after)
    if given["as_json"]:
        click.echo(json.dumps(rows, indent=2), err=output == "-")
    for row in rows if not given["as_json"] else ():
        counts = f"+{row['added']} -{row['removed']} ~{row['changed']}"
        click.echo(f"{row['seconds']:8.3f} s  {counts:>16}  {row['pass']}", err=output == "-")


def _run(
    plan: Plan, pipeline: Sequence[Pass], given: dict[str, Any]
) -> tuple[Plan, list[dict[str, Any]]]:
    """The plan after the passes, and the statistics if they are wanted."""
    done, rows = [plan], list[dict[str, Any]]()
    apart = given["output"] == "-" or given["as_json"]  # the standard output holds one thing alone

    def observe(p: Pass, before: Plan, after: Plan, seconds: float) -> None:
        done.append(after)
        if given["print_ir_after"]:
            click.echo(f"after {p}:\n{sanitize(plan_to_python(after))}", err=apart)
        if given["print_ir_diff"]:
            _tell(f"after {p}", before, after, err=apart)
        if given["statistics"] or given["as_json"]:
            signs = Counter(str(change)[0] for change in difference(before, after))
            counts = {"added": signs["+"], "removed": signs["-"], "changed": signs["~"]}
            rows.append({"pass": str(p), "seconds": seconds, **counts})

    try:
        return run_passes(pipeline, plan, observe), rows
    except PipecError as error:
        if given["reproducer"] is not None:
            left = ",".join(map(str, pipeline[len(done) - 1 :]))
            text = f"// passes: {left}\n{plan_to_text(done[-1])}"
            write_file(given["reproducer"], text)
            error.add_note(f"run it again: pipec opt {given['reproducer']}")
        raise


def _is_plan(source: Path, text: str) -> bool:
    """Whether this is a plan, with devices; else a graph alone."""
    return source.is_dir() or "//---" in text


def _is_text(output: str) -> bool:
    return output == "-" or output.endswith((".txt", ".json"))


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        want = "a directory that pipec compile wrote, or a text of pipec opt"
        hint = find_near(path)
        raise PlanError("no plan here", where=path, got=error, want=want, hint=hint) from error


def _write(plan: Plan, output: str, *, graph_alone: bool, given: dict[str, Any]) -> None:
    if not _is_text(output):
        emit(plan, Path(output), force=given["force"])
    else:
        text = graph_to_text(plan.graph) if graph_alone else plan_to_text(plan)
        if output == "-":
            click.echo(text, nl=False)
            return
        if Path(output).exists() and not given["force"]:
            raise PlanError("the file is there", where=output, hint="--force replaces it")
        write_file(Path(output), text)
    click.echo(f"wrote {output}", err=given["as_json"])


_DECISIONS: dict[Fact, dict[str, object]] = {
    Fact.COST: {"costs": None},
    Fact.TIMING: {"timing": (), "timeline": None},
    Fact.SCHEDULE: {"schedule": None, "explored": (), "timeline": None},
    Fact.TIMELINE: {"timeline": None},
}
"""What a plan forgets, so that a pass decides it anew."""


def _clear_decisions(plan: Plan, pipeline: Sequence[Pass]) -> Plan:
    """The plan without what the passes decide, which they would keep as it is otherwise."""
    known = plan.facts()
    for p in pipeline:
        for fact in sorted((p.provides - p.requires) & known):
            if fact not in _DECISIONS:
                raise PassError(
                    f"the plan has the fact {fact} already, and pass {p.name} would change nothing",
                    hint="compile the model again: pipec compile --passes",
                )
            plan = plan.replace(**_DECISIONS[fact])
    return plan


def _tell(when: str, before: Plan, after: Plan, *, err: bool = False) -> None:
    found = difference(before, after)
    click.echo(f"{when}: {len(found)} changes", err=err)
    for change in found:
        click.echo(f"  {sanitize(str(change))}", err=err)
