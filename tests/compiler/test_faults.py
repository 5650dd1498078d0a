"""A sample of `make faults`: what is injected into emitted directories is reported."""

from pathlib import Path

import pytest

from benchmarks.faults.__main__ import report_of, sample, try_fault
from benchmarks.faults.inject import Fault, faults, reseal
from benchmarks.faults.models import make
from pipec.cluster.cluster import parse_cluster
from pipec.compiler.driver import emit, make_plan
from tests.sampling import ALL


@pytest.mark.parametrize(("model", "target"), [("gated", "torch"), ("file-gates", "onnx")])
def test_faults_are_reported(tmp_path: Path, model: str, target: str) -> None:
    loaded, clean = make(model, tmp_path), tmp_path / "clean"
    emit(make_plan(loaded.graph, parse_cluster("2xcpu"), target), clean)
    assert [report_of(clean, loaded, seed) for seed in range(6)] == [""] * 6
    nothing = Fault("nothing", "", lambda _: None)
    assert try_fault(clean, loaded, nothing, tmp_path, 0) == ""
    found = faults(clean, target)
    assert len({f.kind for f in found}) >= 7
    for seed, fault in enumerate(sample(found, 12 if ALL else 8, 0)):
        assert try_fault(clean, loaded, fault, tmp_path, seed), fault


@pytest.mark.parametrize(
    ("model", "target"), [("mlp", "torch"), ("train-gated", "torch"), ("file-gates", "onnx")]
)
def test_faults_of_the_graphs_of_stages_are_reported(
    tmp_path: Path, model: str, target: str
) -> None:
    """Of F, B, I and W, whichever the schedule runs, and of those that are there to be read."""
    loaded, clean = make(model, tmp_path), tmp_path / "clean"
    emit(make_plan(loaded.graph, parse_cluster("2xcpu"), target), clean)
    assert report_of(clean, loaded, 0) == ""
    found = [f for f in faults(clean, target) if ":" in f.kind]
    files = {"F"} if model != "train-gated" else {"F", "B", "I", "W", "B, I and W"}
    assert {f.kind.split(":")[0] for f in found} == files
    for seed, fault in enumerate(sample(found, 24 if ALL else 12, 0)):
        assert try_fault(clean, loaded, fault, tmp_path, seed), fault


def test_python_that_shows_another_graph_is_reported(tmp_path: Path) -> None:
    loaded, clean = make("mlp", tmp_path), tmp_path / "clean"
    emit(make_plan(loaded.graph, parse_cluster("2xcpu"), "torch"), clean)
    shown = next(clean.glob("graphs/*/F.py"))
    shown.write_text(shown.read_text().replace("aten.tanh", "aten.sin"))
    reseal(clean)
    assert report_of(clean, loaded, 0) == "the file is not its neighbour, which runs, as Python"


@pytest.mark.parametrize("target", ["torch", "onnx"])
def test_faults_of_quantised_models_are_reported(tmp_path: Path, target: str) -> None:
    """Tables of integers, their scales and zero points; a right plan is not reported."""
    loaded, clean = make("file-qdq-channels", tmp_path), tmp_path / "clean"
    emit(make_plan(loaded.graph, parse_cluster("2xcpu"), target), clean)
    assert [report_of(clean, loaded, seed) for seed in range(3)] == [""] * 3
    kinds = {"a zeroed table", "two channels swapped", "a bias off by one row"}
    kinds |= {"a scale x 1.01", "a zero point + 1", "two 8-bit numbers swapped"}
    every = [f for f in faults(clean, target) if f.kind in kinds]
    found = sample(every, (3 if ALL else 1) * len(kinds), 0)
    assert {f.kind for f in found} == kinds
    for seed, fault in enumerate(found):
        assert try_fault(clean, loaded, fault, tmp_path, seed), fault
