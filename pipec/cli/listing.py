"""What passes there are, read off their source: importing them would import torch."""

import ast
import importlib.util
from pathlib import Path
from typing import Any

from pipec.registry import Added, entries

Described = dict[str, Any]
_FACTS = {"COST": "cost", "PARTITION": "partition", "COMM": "comm", "SAVED": "saved",
          "TIMING": "timing", "SCHEDULE": "schedule", "TIMELINE": "timeline"}  # fmt: skip


def described(name: str) -> Described | None:
    """A pass as ``pipec passes`` shows it; None where its source does not say everything.

    Only a class whose one base is `Pass` is read so: what it inherits is known.
    """
    entry = entries("pipec.passes")[name]
    if isinstance(entry, Added):
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


def _of_class(node: ast.ClassDef, name: str) -> Described | None:
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
