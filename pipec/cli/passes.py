"""``pipec passes``: what passes there are, and their options."""

import dataclasses
import json
import typing

import click

from pipec.cli.command import Command
from pipec.cli.console import hung
from pipec.cli.listing import described
from pipec.registry import entries


@click.command(cls=Command)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(*, as_json: bool) -> None:
    """List passes with their options, and the facts they require and provide."""
    listed = [described(name) or _imported(name) for name in entries("pipec.passes")]
    if as_json:
        click.echo(json.dumps(listed, indent=2))
        return
    for p in listed:
        name = str(p["name"])
        summary = hung(f"{name}  {p['summary']}", 2)
        click.echo(click.style(name, bold=True) + summary.removeprefix(name))
        for key in ("requires", "provides"):
            if p[key]:
                click.echo(hung(f"    {key}: {', '.join(typing.cast('list[str]', p[key]))}", 6))
        for option in typing.cast("list[dict[str, str]]", p["options"]):
            text = f"    {option['name']}: {option['type']} = {option['default']}"
            click.echo(hung(text, 6))


def _imported(name: str) -> dict[str, object]:
    """A pass whose source does not say everything, imported."""
    from pipec.compiler.pass_manager import known_passes

    cls = known_passes()[name]
    return {
        "name": cls.name,
        "summary": (cls.__doc__ or "").strip().splitlines()[0] if cls.__doc__ else "",
        "requires": sorted(cls.requires),
        "provides": sorted(cls.provides),
        "options": [_option(f) for f in dataclasses.fields(cls)],
    }


def _option(field: "dataclasses.Field[object]") -> dict[str, str]:
    missing = field.default is dataclasses.MISSING
    shown = field.type if isinstance(field.type, str) else getattr(field.type, "__name__", None)
    return {
        "name": field.name.replace("_", "-"),
        "type": shown or str(field.type).replace("typing.", ""),
        "default": "(required)" if missing else str(field.default),
    }
