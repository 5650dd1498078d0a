"""The core asks for capabilities: it imports no backend, and knows the name of none."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipec.registry import entries

PIPEC = Path(__file__).parents[2] / "pipec"
DEFAULT = "torch"
"""The target where none is named, which is a default and nothing else."""
OTHERS = {"frontends", "cluster", "explore", "passes", "backends", "testing"}
"""Formats of models, families of devices, the search over schedules, and what is no core."""


def sources() -> list[Path]:
    return [p for p in PIPEC.rglob("*.py") if p.relative_to(PIPEC).parts[0] not in OTHERS]


def findings(source: str) -> list[str]:
    """What names a backend: an import, its module as text, or its name as a value."""
    tree = ast.parse(source)
    said = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}  # docstrings
    defaults = {id(d) for d in _defaults(tree)}
    found = []
    for n in ast.walk(tree):
        if isinstance(n, ast.ImportFrom) and (n.module or "").startswith("pipec.backends"):
            found.append(f"import of {n.module}")
        elif isinstance(n, ast.Import):
            found += [a.name for a in n.names if a.name.startswith("pipec.backends")]
        elif isinstance(n, ast.Constant) and isinstance(n.value, str) and id(n) not in said:
            named = n.value in entries("pipec.backends") or "pipec.backends." in n.value
            if named and not (n.value == DEFAULT and id(n) in defaults):
                found.append(f"line {n.lineno}: {n.value!r}")
    return found


def _defaults(tree: ast.AST) -> Iterator[ast.expr]:
    """Values of parameters, fields and click options where nothing is said."""
    for n in ast.walk(tree):
        if isinstance(n, ast.arguments):
            yield from [*n.defaults, *[d for d in n.kw_defaults if d is not None]]
        elif isinstance(n, ast.AnnAssign) and n.value is not None:
            yield n.value
        elif isinstance(n, ast.keyword):
            yield from [n.value] * (n.arg == "default")


ALLOWED = {
    "compiler/export.py": "torch",  # a format of torch.distributed.pipelining
    "cli/export.py": "onnx",  # the files that OpenVINO and onnxruntime-genai read
}


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(PIPEC)))
def test_the_core_names_no_target(path: Path) -> None:
    found = findings(path.read_text())
    other = ALLOWED.get(str(path.relative_to(PIPEC)))
    assert not [f for f in found if other is None or not f.endswith(repr(other))]


@pytest.mark.parametrize(
    "source",
    [
        "from pipec.backends.onnx.files import write_model",
        "import pipec.backends.fpga",
        "if plan.target == 'fpga': pass",
        "if plan.target == 'torch': pass",
        "name = 'pipec.backends.torch.run'",
    ],
)
def test_a_name_is_found(source: str) -> None:
    assert findings(source)
