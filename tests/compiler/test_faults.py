"""A sample of `make faults`: what is injected into emitted directories is reported."""

from pathlib import Path

import pytest

from benchmarks.faults.__main__ import report_of, sample, try_fault
from benchmarks.faults.inject import Fault, faults
from benchmarks.faults.models import make
from pipec.cluster.cluster import parse_cluster
from pipec.compiler.driver import emit, make_plan


@pytest.mark.parametrize(("model", "target"), [("gated", "torch"), ("file-gates", "onnx")])
def test_faults_are_reported(tmp_path: Path, model: str, target: str) -> None:
    loaded, clean = make(model, tmp_path), tmp_path / "clean"
    emit(make_plan(loaded.graph, parse_cluster("2xcpu"), target), clean)
    assert [report_of(clean, loaded, seed) for seed in range(6)] == [""] * 6
    nothing = Fault("nothing", "", lambda _: None)
    assert try_fault(clean, loaded, nothing, tmp_path, 0) == ""
    found = faults(clean, target)
    assert len({f.kind for f in found}) >= 7
    for seed, fault in enumerate(sample(found, 12, 0)):
        assert try_fault(clean, loaded, fault, tmp_path, seed), fault


@pytest.mark.parametrize("target", ["torch", "onnx"])
def test_faults_of_quantised_models_are_reported(tmp_path: Path, target: str) -> None:
    """Tables of integers, their scales and zero points; a right plan is not reported."""
    loaded, clean = make("file-qdq-channels", tmp_path), tmp_path / "clean"
    emit(make_plan(loaded.graph, parse_cluster("2xcpu"), target), clean)
    assert [report_of(clean, loaded, seed) for seed in range(3)] == [""] * 3
    kinds = {"a zeroed table", "two channels swapped", "a bias off by one row"}
    kinds |= {"a scale x 1.01", "a zero point + 1", "two 8-bit numbers swapped"}
    found = sample([f for f in faults(clean, target) if f.kind in kinds], 18, 0)
    assert {f.kind for f in found} == kinds
    for seed, fault in enumerate(found):
        assert try_fault(clean, loaded, fault, tmp_path, seed), fault
