"""``python -m benchmarks.hls_check.stages out``: whether emitted loops reach their intervals.

Every pipelined loop of every stage in a directory that pipec wrote is compiled to LLVM IR; its
recurrences and memory ports give the least interval at the stage's clock, its operators the least
depth. clang keeps a local array in registers whatever its pragmas say, so that the rules on pragmas
(`tests.fpga.lint`) are applied too. The exit status is 1 if a loop is longer than what the code
declares, or a pragma is not as these rules ask.
"""

import dataclasses
import json
import sys
from pathlib import Path

import click

from benchmarks.hls_check.compiled import intervals
from benchmarks.hls_check.found import Interval
from pipec.errors import BackendError, PipecError
from tests.fpga.lint.stage import lint


def stages_in(folder: Path) -> list[Path]:
    """Stage directories: the folder itself, or all below it that hold a kernel.

    Raises:
        BackendError: There is none.
    """
    found = sorted(p.parent for p in folder.rglob("stage.json") if (p.parent / "src").is_dir())
    if not found:
        raise BackendError(f"no emitted stage in {folder}", hint="name what `pipec compile` wrote")
    return found


def line(found: Interval) -> str:
    """A loop as a row of the table."""
    because = f"ports of {found.memory}" if found.ports > found.recurrence else found.path
    if found.short:
        because = f"a pipeline that is {found.short} deeper than declared"
    depth = "" if found.declared_depth is None else f"{found.depth} of {found.declared_depth}"
    numbers = f"{found.declared:8} {found.recurrence:10} {found.ports:6} {depth:>11}"
    return f"{found.engine:32} {numbers}  {because}"


@click.command()
@click.argument("folders", nargs=-1, required=True,
                type=click.Path(exists=True, file_okay=False, path_type=Path))  # fmt: skip
@click.option("--all", "everything", is_flag=True, help="Print loops that are well, too.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON data instead of a table.")
def main(folders: tuple[Path, ...], *, everything: bool, as_json: bool) -> None:
    """Check the pipelined loops of FOLDERS, which pipec wrote."""
    try:
        stages = [s for f in folders for s in stages_in(f)]
        pragmas = [f"{s}/{wrong}" for s in stages for wrong in lint(s)]
        click.echo("".join(f"{wrong}\n" for wrong in pragmas), nl=False, err=as_json)
        found = {str(s): intervals(s) for s in stages}
    except PipecError as error:
        raise click.ClickException(str(error)) from error
    loops = [i for rows in found.values() for i in rows]
    red = bool(pragmas) or not all(i.ok for i in loops)
    if as_json:
        data = {
            s: [
                dataclasses.asdict(i) | {"engine": i.engine, "ok": i.ok, "short": i.short}
                for i in every
            ]
            for s, every in found.items()
        }
        click.echo(json.dumps(data, indent=1))
        sys.exit(red)
    for stage, rows in found.items():
        click.echo(stage)
        click.echo(f"{'engine':32} declared recurrence  ports       depth  because of")
        for row in rows:
            if everything or not row.ok:
                click.echo(line(row))
    for what, pause in (("pipelined loops reach their interval within their depth", False),
                        ("pauses between loops are long enough", True)):  # fmt: skip
        some = [i for i in loops if i.pause == pause]
        click.echo(f"{sum(i.ok for i in some)} of {len(some)} {what}")
    sys.exit(red)


if __name__ == "__main__":
    main()
