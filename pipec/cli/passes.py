"""``pipec passes``: what passes there are, and their options."""

import dataclasses
import json
import re
from typing import Any

import click

from pipec.cli.command import Command
from pipec.cli.console import indent_lines
from pipec.compiler.pass_base import Pass
from pipec.compiler.pass_manager import list_passes


@click.command(cls=Command)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(*, as_json: bool) -> None:
    """List passes with their options, and the facts they require and provide."""
    listed = [_describe(p) for p in list_passes().values()]
    if as_json:
        click.echo(json.dumps(listed, indent=2))
        return
    for p in listed:
        name = str(p["name"])
        summary = indent_lines(f"{name}  {p['summary']}", 2)
        click.echo(click.style(name, bold=True) + summary.removeprefix(name))
        for key in ("requires", "provides"):
            if p[key]:
                click.echo(indent_lines(f"    {key}: {', '.join(p[key])}", 6))
        for option in p["options"]:
            text = f"    {option['name']}: {option['type']} = {option['default']}"
            click.echo(indent_lines(text, 6))


def _describe(cls: type[Pass]) -> dict[str, Any]:
    return {
        "name": cls.name,
        "summary": next(iter((cls.__doc__ or "").strip().splitlines()), ""),
        "requires": sorted(cls.requires),
        "provides": sorted(cls.provides),
        "options": [_option(f) for f in dataclasses.fields(cls)],
    }


def _option(field: "dataclasses.Field[object]") -> dict[str, str]:
    kind, text = field.type, re.sub(r"\b(typing|collections\.abc)\.", "", str(field.type))
    missing = field.default is dataclasses.MISSING
    return {
        "name": field.name.replace("_", "-"),
        "type": kind.__name__ if isinstance(kind, type) else text,
        "default": "(required)" if missing else str(field.default),
    }
