"""``pipec examples``: the programs and models that are shipped with pipec."""

import ast
import json
import re
from pathlib import Path

import click

from pipec.cli.command import Command, refuse
from pipec.cli.console import indent_lines
from pipec.errors import PipecError, did_you_mean
from pipec.files import write_file


@click.command(cls=Command)
@click.argument("name", required=False)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=Path(),
    help="Directory to copy to; the current one by default.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print the list, or the copied files, as JSON."
)
def command(name: str | None, output: Path, *, as_json: bool) -> None:
    """List the examples, or copy the one called NAME with the examples that it uses.

    Existing files with other contents are not replaced.
    """
    found = _examples()
    if name is None:
        refuse(["output"], "only with the NAME of an example, which is copied there")
        parsed = {n: ast.parse(path.read_text(encoding="utf-8")) for n, path in found.items()}
        begins = {n: (ast.get_docstring(p) or "").split("\n\n")[0] for n, p in parsed.items()}
        listed = {n: " ".join(b.replace("``", "`").split()) for n, b in begins.items()}
        wide = max(map(len, listed))
        lines = [indent_lines(f"{n:<{wide}}  {summary}", wide + 2) for n, summary in listed.items()]
        click.echo(json.dumps(listed, indent=2) if as_json else "\n".join(lines))
        return
    name = name.removesuffix(".py")
    if name not in found:
        hint = did_you_mean(name, found, "`pipec examples` lists them")
        raise PipecError("no such example", got=name, hint=hint)
    copies = {output / p.name: p for p in _find_imports(found, name)}
    for copy, path in copies.items():
        if copy.exists() and copy.read_bytes() != path.read_bytes():
            raise PipecError(
                "a different file has this name", where=copy, hint="name another directory with -o"
            )
    output.mkdir(parents=True, exist_ok=True)
    for copy, path in copies.items():
        write_file(copy, path.read_bytes())
    names = [str(copy) for copy in copies]
    click.echo(json.dumps(names) if as_json else f"wrote {', '.join(names)}")


def _examples() -> dict[str, Path]:
    """Examples by name: those in the package, or those of the checkout that it is part of."""
    package = Path(__file__).parents[1]
    shipped = package / "examples"
    folder = shipped if shipped.is_dir() else package.parent / "examples"
    return {p.stem: p for p in sorted(folder.glob("*.py"))}


def _find_imports(examples: dict[str, Path], name: str) -> list[Path]:
    """An example, and the examples that it imports or names as files."""
    text = examples[name].read_text(encoding="utf-8")
    used = {n for n in examples if re.search(rf"^from {n} import|\b{n}\.py\b", text, re.MULTILINE)}
    return [examples[n] for n in (name, *sorted(used - {name}))]
