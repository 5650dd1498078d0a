"""A kind of engine is three files: nothing else names it, and every suite finds its sample."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks.rtl.stages import sample_cases
from benchmarks.rtl.units import round_nest
from pipec.backends.fpga import engines
from pipec.backends.fpga.engines.base import Nest
from pipec.backends.fpga.engines.network import HANDLERS, lowers
from pipec.backends.fpga.folding import design_at
from pipec.backends.fpga.lowering.lower import lower
from pipec.backends.fpga.stagejson import stage_record
from pipec.errors import BackendError
from tests.fpga.design.models import MODELS, SAMPLES, graph_of, made

ROOT = Path(__file__).parents[3]
FPGA = ROOT / "backends/fpga"
HOME = f"{engines.__name__}."
FILES = {kind: nest.__module__.removeprefix(HOME) for kind, nest in Nest.KINDS.items()}
FILES = {kind: file for kind, file in FILES.items() if file != "base"}
"""Kind of engine to its file."""
OWN = {h.__module__.removeprefix(HOME) for h in HANDLERS.values() if h.__module__.startswith(HOME)}
"""Files of kinds that lower their ops themselves."""
ALONE = {kind for kind, file in FILES.items() if file in OWN}


def named(text: str) -> set[str]:
    """The kinds that a Python file names: it imports from their files, or has their names."""
    found = set[str]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            whole = f"{node.module}."
            for alias in node.names:
                file = f"{whole}{alias.name}.".removeprefix(HOME).partition(".")[0]
                same = {k for k, f in FILES.items() if f == file and whole.startswith(HOME[:-1])}
                one = {k for k in same if Nest.KINDS[k].__name__ == alias.name}
                found |= one or same
        elif isinstance(node, ast.Import):
            parts = [alias.name.removeprefix(HOME) for alias in node.names if HOME in alias.name]
            found |= {kind for kind, file in FILES.items() if file in parts}
        elif isinstance(node, ast.Constant) and node.value in ALONE:
            found.add(node.value)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found |= {k for k, f in FILES.items() if f == node.attr and node.value.id == "engines"}
    return found


def sources(folder: Path, *endings: str) -> Iterator[Path]:
    """Files of a folder and those below, but for what kinds consist of and what tests one alone."""
    own = {FPGA / "engines", FPGA / "hls/engines"}
    tests = {f"test_{file}.py" for file in OWN}
    for path in sorted(folder.rglob("*")):
        if path.suffix in endings and not own & {*path.parents} and path.name not in tests:
            yield path


SHARED = {
    "accumulate", "argmax", "concat", "const", "dense", "dwc", "fetch", "fork", "gather", "load",
    "map", "matmul", "mover", "mvu", "norm", "onehot", "outer", "perm", "product", "reduce",
    "refill", "repeat", "scatter", "slice", "spill", "spread", "store", "swg", "vvu",
}  # fmt: skip
"""Kinds that others build, or ask what they are; what joins this list is no kind of three files."""


def test_no_other_file_of_the_backend_names_a_kind() -> None:
    found = {str(p): named(p.read_text()) for p in sources(FPGA, ".py")}
    assert len(found) > 60
    assert set[str]().union(*found.values()) == SHARED
    words = re.compile("|".join(rf"\bengine::{k}\b|\b{FILES[k]}\.h\b" for k in sorted(ALONE)))
    texts = [p for p in sources(FPGA, ".h", ".cpp", ".in") if ALONE and words.search(p.read_text())]
    assert texts == []


def test_no_shared_suite_names_a_kind_that_lowers_its_ops() -> None:
    """Models, references, lints and RTL find such a kind by its own file."""
    folders = (ROOT / "tests/fpga", ROOT / "benchmarks")
    paths = [p for folder in folders for p in sources(folder, ".py") if p != Path(__file__)]
    assert len(paths) > 60
    assert {str(p): n for p in paths if (n := named(p.read_text()) & ALONE)} == {}


@pytest.mark.parametrize("kind", sorted(ALONE))
def test_a_kind_that_is_named_is_noticed(kind: str) -> None:
    file, name = FILES[kind], Nest.KINDS[kind].__name__
    assert kind in named(f"from {HOME}{file} import {name}")
    assert kind in named(f"from {HOME}{file} import OPERATORS as other")
    assert kind in named(f"from {HOME[:-1]} import {file}")
    assert kind in named(f"import {HOME}{file} as odd")
    assert kind in named(f"def f(engine):\n    return engine.kind == '{kind}'")
    assert kind in named(f"engines.{file}.{name}")
    assert kind not in named(f"from {HOME}base import Nest\nx = torch.{kind}")


@pytest.mark.parametrize("kind", sorted(ALONE))
def test_a_kind_is_three_files(kind: str) -> None:
    assert kind in SAMPLES
    assert (FPGA / "hls/engines" / f"{FILES[kind]}.h").is_file()
    assert (ROOT / "benchmarks/rtl/sv" / f"{kind}.sv").is_file()
    assert any(case.group == kind for case in sample_cases())


@pytest.mark.parametrize("kind", sorted(SAMPLES))
def test_a_sample_has_its_kind_and_its_parameters(kind: str) -> None:
    assert MODELS[kind] is SAMPLES[kind]
    model, x = made(kind)
    record = stage_record(design_at(lower(graph_of(model, x)), 80))
    mine = [engine for engine in record["engines"] if engine["kind"] == kind]
    assert mine
    assert all(round_nest(engine).rtl() for engine in mine)


@pytest.mark.parametrize("kind", sorted(ALONE))
def test_without_a_kind_its_ops_are_refused(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = made(kind)
    graph = graph_of(model, x)
    own = [op for op, handler in HANDLERS.items() if handler.__module__ == HOME + FILES[kind]]
    for op in own:
        monkeypatch.delitem(HANDLERS, op)
    with pytest.raises(BackendError, match="no engine computes this op") as caught:
        lower(graph)
    assert any(op in str(caught.value) for op in own)


def test_an_op_has_one_handler() -> None:
    before = dict(HANDLERS)
    with pytest.raises(TypeError, match=r"aten\.relu\.default"):
        lowers("aten.relu.default", "aten.new.default")(lambda b, node: ())
    assert before == HANDLERS


def test_a_sample_is_folded_to_lanes_that_do_not_divide_its_rows() -> None:
    """So that the padding of last tokens is compared too."""
    torch.manual_seed(0)
    for kind in SAMPLES:
        model, x = made(kind)
        widths = {
            (e.nest.channels, e.nest.lanes)
            for target in (1, 80)
            for e in design_at(lower(graph_of(model, x)), target).engines
            if e.kind == kind and hasattr(e.nest, "lanes") and hasattr(e.nest, "channels")
        }
        assert any(channels % lanes for channels, lanes in widths), (kind, widths)
