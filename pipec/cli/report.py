"""``pipec report``: one HTML file that shows a plan, or what differs between two."""

from pathlib import Path
from typing import Any

import click

from pipec.cli.command import Command
from pipec.cli.namespaces import allow_namespace_option, import_namespaces


@click.command(cls=Command)
@click.argument("directory", type=click.Path(path_type=Path))
@click.argument("other", type=click.Path(path_type=Path), required=False)
@click.option("-o", "--output", type=click.Path(path_type=Path), default=Path("report.html"),
              show_default=True, help="The file to write.")  # fmt: skip
@click.option("--verify", "verified", type=click.Path(path_type=Path),
              help="Show errors: what `pipec verify DIRECTORY --json` printed.")  # fmt: skip
@click.option("--metrics", type=click.Path(path_type=Path),
              help="Show curves: what `pipec run --metrics` wrote.")  # fmt: skip
@click.option("--trace", type=click.Path(path_type=Path),
              help="Show what ran beside the prediction: from `pipec run --trace`.")  # fmt: skip
@click.option("--cycles", is_flag=True, help="Simulate the engines, if any, for their waits.")
@allow_namespace_option
def command(directory: Path, other: Path | None, output: Path, **given: Any) -> None:
    """Write one offline HTML page: the plan in DIRECTORY, or how OTHER differs from it."""
    extras = [name for name in ("verified", "metrics", "trace", "cycles") if given[name]]
    if other is not None and extras:
        shown = ", ".join("--" + name.replace("verified", "verify") for name in extras)
        raise click.UsageError(f"{shown}: only for one plan, not for the difference of two")
    from pipec.compiler.backend import lacking, load_backend
    from pipec.compiler.capabilities import Cycles
    from pipec.plan.store import load_plan
    from pipec.report.extras import read_metrics, read_trace, read_verification
    from pipec.report.page import write_report

    allowed = import_namespaces(given["allow_namespace"])
    plan = load_plan(directory, allowed=allowed, check_weights=False)
    second = load_plan(other, allowed=allowed, check_weights=False) if other else None
    found: dict[str, Any] = {}
    if given["verified"]:
        found["verify"] = read_verification(given["verified"])
    if given["metrics"]:
        found["metrics"] = read_metrics(given["metrics"])
    if given["trace"]:
        if plan.schedule is None:
            raise click.UsageError("--trace: the plan has no schedule")
        found["measured"] = read_trace(given["trace"], plan.schedule)
    backend = load_backend(plan.target)
    if given["cycles"] and not isinstance(backend, Cycles):
        raise lacking(backend, Cycles, "--cycles")
    if second is None and isinstance(backend, Cycles):
        cycles = backend.cycles(plan, directory) if given["cycles"] else ()
        found["engines"] = backend.engines(plan, directory, cycles)
    write_report(plan, output, other=second, extras=found)
    click.echo(f"wrote {output} ({output.stat().st_size / 1e3:.0f} kB)")
