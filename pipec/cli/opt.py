"""``pipec opt``: run passes on a plan that was written before, and write what comes of it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from pipec.cli.completion import complete_passes
from pipec.cli.namespaces import allow_namespace_option, import_namespaces
from pipec.compiler.driver import emit
from pipec.compiler.output import check_target
from pipec.compiler.pass_base import Pass
from pipec.compiler.pass_manager import parse_pipeline, run_passes
from pipec.errors import PassError
from pipec.escape import terminal
from pipec.plan.model import Fact, Plan
from pipec.plan.store import load_plan
from pipec.report.difference import difference


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option(
    "--passes",
    required=True,
    shell_complete=complete_passes,
    help="Pass pipeline; see `pipec passes`.",
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Directory to write.")
@click.option("--force", is_flag=True, help="Replace the output directory if pipec wrote it.")
@click.option("--print-ir-diff", is_flag=True, help="Print what every pass changes.")
@allow_namespace_option
def command(directory: Path, **given: Any) -> None:
    """Run passes on the plan in DIRECTORY, each of them verified, and write the new plan.

    Without -o nothing is written, and it is shown what changed from the first pass to the last.
    """
    pipeline, output, force = parse_pipeline(given["passes"]), given["output"], given["force"]
    if output is not None:
        check_target(output, force=force)
    plan = load_plan(directory, allowed=import_namespaces(given["allow_namespace"]))

    def observe(done: Pass, before: Plan, after: Plan, seconds: float) -> None:
        """Tell what a pass has changed."""
        del seconds
        if given["print_ir_diff"]:
            _tell(f"after {done}", before, after)

    after = run_passes(pipeline, _undecided(plan, pipeline), observe)
    if output is not None:
        emit(after, output, force=force)
        click.echo(f"wrote {output}")
    elif not given["print_ir_diff"]:
        _tell("after all passes", plan, after)


_DECISIONS: dict[Fact, dict[str, object]] = {
    Fact.COST: {"costs": None},
    Fact.TIMING: {"timing": (), "timeline": None},
    Fact.SCHEDULE: {"schedule": None, "explored": (), "timeline": None},
    Fact.TIMELINE: {"timeline": None},
}
"""What a plan forgets, so that a pass decides it anew."""


def _undecided(plan: Plan, pipeline: Sequence[Pass]) -> Plan:
    """The plan without what the passes decide, which they would keep as it is otherwise.

    Raises:
        PassError: The plan is cut already, and what a pass decides is in its stages.
    """
    known = plan.facts()
    for p in pipeline:
        for fact in sorted(p.provides & known):
            if fact not in _DECISIONS:
                raise PassError(
                    f"the plan has the fact {fact} already, and pass {p.name} would change nothing",
                    hint="compile the model again: pipec compile --passes",
                )
            plan = plan.replace(**_DECISIONS[fact])
    return plan


def _tell(when: str, before: Plan, after: Plan) -> None:
    found = difference(before, after)
    click.echo(f"{when}: {len(found)} changes")
    for change in found:
        click.echo(f"  {terminal(str(change))}")
