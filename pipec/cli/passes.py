"""``pipec passes``: what passes there are, and their options.

They are read off their source where that says everything: importing them would import torch.
"""

import ast
import dataclasses
import importlib.util
import json
from pathlib import Path
from typing import Any

import click

from pipec.cli.command import Command
from pipec.cli.console import indent_lines
from pipec.registry import AddedEntry, entries

_FACTS = {"COST": "cost", "PARTITION": "partition", "COMM": "comm", "SAVED": "saved",
          "TIMING": "timing", "SCHEDULE": "schedule", "TIMELINE": "timeline"}  # fmt: skip


@click.command(cls=Command)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(*, as_json: bool) -> None:
    """List passes with their options, and the facts they require and provide."""
    listed = [describe_pass(name) or _import_pass(name) for name in entries("pipec.passes")]
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


def describe_pass(name: str) -> dict[str, Any] | None:
    """A pass as ``pipec passes`` shows it; None where its source does not say everything.

    Only a class whose one base is `Pass` is read so: what it inherits is known.
    """
    entry = entries("pipec.passes")[name]
    if isinstance(entry, AddedEntry):
        return None
    module, _, attribute = entry.value.partition(":")
    try:
        spec = importlib.util.find_spec(module)
    except ImportError:
        return None
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        return None
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    found = [c for c in tree.body if isinstance(c, ast.ClassDef) and c.name == attribute]
    if len(found) != 1 or [ast.unparse(b) for b in found[0].bases] != ["Pass"]:
        return None
    return _of_class(found[0], name)


def _of_class(node: ast.ClassDef, name: str) -> dict[str, Any] | None:
    fields = [
        f for f in node.body if isinstance(f, ast.AnnAssign) and isinstance(f.target, ast.Name)
    ]
    known = {f.target.id: f for f in fields if isinstance(f.target, ast.Name)}
    options = []
    for key, field in known.items():
        kind = ast.unparse(field.annotation)
        if kind.startswith("ClassVar"):
            continue
        try:
            default = "(required)" if field.value is None else str(ast.literal_eval(field.value))
        except ValueError:  # an expression
            return None
        options.append({"name": key.replace("_", "-"), "type": kind, "default": default})
    sets = {
        key: _facts(known[key].value) if key in known else [] for key in ("requires", "provides")
    }
    if None in sets.values():
        return None
    summary = (ast.get_docstring(node) or "").strip().split("\n")[0]
    return {"name": name, "summary": summary, **sets, "options": options}


def _facts(value: ast.expr | None) -> list[str] | None:
    """``frozenset({Fact.COST, Fact.COMM})`` as names, sorted; None for anything else."""
    if not (isinstance(value, ast.Call) and ast.unparse(value.func) == "frozenset"):
        return None
    if not value.args:
        return []
    if not isinstance(value.args[0], ast.Set):
        return None
    names = [e.attr for e in value.args[0].elts if isinstance(e, ast.Attribute)]
    if len(names) != len(value.args[0].elts) or not set(names) <= _FACTS.keys():
        return None
    return sorted(_FACTS[n] for n in names)


def _import_pass(name: str) -> dict[str, Any]:
    """A pass whose source does not say everything, imported."""
    from pipec.compiler.pass_manager import list_passes

    cls = list_passes()[name]
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
