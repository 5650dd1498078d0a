"""``pipec diff``: what differs between two plans."""

import json
from dataclasses import asdict
from pathlib import Path

import click

from pipec.cli.command import Command
from pipec.cli.options import allow_namespace_option, import_namespaces
from pipec.escape import sanitize
from pipec.plan.store import load_plan
from pipec.report.difference import difference


@click.command(cls=Command)
@click.argument("directory", type=click.Path(path_type=Path))
@click.argument("other", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@allow_namespace_option
def command(
    directory: Path, other: Path, *, as_json: bool, allow_namespace: tuple[str, ...]
) -> None:
    """Show how the plan in OTHER differs from that in DIRECTORY, one line per change.

    Compared are graphs, cuts, channels, placement, schedules, costs and options, but no weights.
    Exit status 1 if the plans differ.
    """
    allowed = import_namespaces(allow_namespace)
    one, two = (load_plan(d, allowed=allowed, check_weights=False) for d in (directory, other))
    found = difference(one, two)
    if as_json:
        click.echo(json.dumps([asdict(c) for c in found], indent=2))
    else:
        click.echo("\n".join(sanitize(str(c)) for c in found) or "no difference, weights aside")
    if found:
        raise SystemExit(1)
