"""``pipec passes``: what passes there are, and their options."""

import dataclasses
import json
import typing
from typing import Any

import click

from pipec.cli.command import Command
from pipec.compiler.pass_base import Pass
from pipec.compiler.pass_manager import known_passes


@click.command(cls=Command)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(*, as_json: bool) -> None:
    """List passes with their options, and the facts they require and provide."""
    listed = [_described(cls) for cls in known_passes().values()]
    if as_json:
        click.echo(json.dumps(listed, indent=2))
        return
    for p in listed:
        click.secho(str(p["name"]), bold=True, nl=False)
        click.echo(f"  {p['summary']}")
        for key in ("requires", "provides"):
            if p[key]:
                click.echo(f"    {key}: {', '.join(p[key])}")
        for option in p["options"]:
            click.echo(f"    {option['name']}: {option['type']} = {option['default']}")


def _described(cls: type[Pass]) -> dict[str, Any]:
    return {
        "name": cls.name,
        "summary": (cls.__doc__ or "").strip().splitlines()[0] if cls.__doc__ else "",
        "requires": sorted(cls.requires),
        "provides": sorted(cls.provides),
        "options": [_option(f) for f in dataclasses.fields(cls)],
    }


def _option(field: "dataclasses.Field[object]") -> dict[str, str]:
    missing, kind = field.default is dataclasses.MISSING, field.type
    shown = str(kind) if typing.get_args(kind) else getattr(kind, "__name__", str(kind))
    return {
        "name": field.name.replace("_", "-"),
        "type": shown.replace("typing.", "").replace("collections.abc.", ""),
        "default": "(required)" if missing else str(field.default),
    }
