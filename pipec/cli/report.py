"""``pipec report``: one HTML file that shows a plan, or what differs between two."""

from pathlib import Path
from typing import Any

import click

from pipec.cli.command import Command
from pipec.cli.options import allow_namespace_option, import_namespaces


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
@click.option("--vitis", metavar="DIR", type=click.Path(path_type=Path),
              help="Show what Vitis HLS reported of each engine.")  # fmt: skip
@allow_namespace_option
def command(directory: Path, other: Path | None, output: Path, **given: Any) -> None:
    """Write one offline HTML page: the plan in DIRECTORY, or how OTHER differs from it."""
    extras = [name for name in ("verified", "metrics", "trace", "cycles", "vitis") if given[name]]
    if other is not None and extras:
        shown = ", ".join("--" + name.replace("verified", "verify") for name in extras)
        raise click.UsageError(f"{shown}: only for one plan, not for the difference of two")
    from pipec.api.reporting import report

    allowed = import_namespaces(given.pop("allow_namespace"))
    report(directory, output, other, allowed=allowed, **given)
    click.echo(f"wrote {output} ({output.stat().st_size / 1e3:.0f} kB)")
