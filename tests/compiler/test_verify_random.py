"""Random numbers of an ONNX file: onnxruntime draws others than torch, and others each time."""

import io
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from rich.console import Console

from benchmarks.faults.inject import reseal
from pipec.cluster.cluster import parse_cluster
from pipec.compiler.driver import emit, make_plan
from pipec.compiler.verify import VerifyReport, verify_artifacts
from pipec.frontends.load import load
from pipec.report.found import print_report

NOISE = {
    "normal": [helper.make_node("RandomNormalLike", ["a"], ["n"])],
    "uniform": [helper.make_node("RandomUniform", [], ["n"], shape=[4, 6], seed=1.0)],
    "dropout": [helper.make_node("Dropout", ["a", "half", "on"], ["n"])],
}


def write(path: Path, noise: str, kept: bool = True) -> Path:
    """``y`` is the noise through a matrix, ``z`` has none."""
    rng, info = np.random.default_rng(0), helper.make_tensor_value_info
    matrices = {n: rng.normal(size=(6, 6)).astype(np.float32) for n in ("first", "second")}
    held = {**matrices, "half": np.float32(0.5), "on": np.array(True)}
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["a"]),
        *NOISE[noise],
        helper.make_node("Tanh", ["a"], ["z"]),
        helper.make_node("Add", ["a", "n"], ["b"]),
        helper.make_node("MatMul", ["b", "second"], ["y"]),
    ]
    outputs = [info(n, TensorProto.FLOAT, [4, 6]) for n in ("y", "z")]
    graph = helper.make_graph(
        nodes, "noisy", [info("x", TensorProto.FLOAT, [4, 6])], outputs if kept else outputs[:1],
        [numpy_helper.from_array(np.asarray(t), n) for n, t in held.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


def verified(path: Path, out: Path, target: str, cluster: str = "2xcpu") -> VerifyReport:
    loaded = load(str(path))
    if not out.exists():
        emit(make_plan(loaded.graph, parse_cluster(cluster), target), out)
    return verify_artifacts(out, loaded)


def printed(report: VerifyReport) -> str:
    print_report(report, Console(file=(told := io.StringIO()), width=200))
    return told.getvalue()


@pytest.mark.parametrize("target", ["onnx", "torch"])
@pytest.mark.parametrize("noise", [*NOISE])
def test_what_follows_no_random_number_is_compared(noise: str, target: str, tmp_path: Path) -> None:
    report = verified(write(tmp_path / "noisy.onnx", noise), tmp_path / "out", target)
    assert report.ok, report
    assert "y" in report.drawn
    assert "z" not in report.drawn
    assert {b.name for b in report.boundaries} >= {"z"}
    assert "with the file, as another engine draws random numbers" in printed(report)


@pytest.mark.parametrize("name", ["first", "second"])
def test_a_wrong_weight_is_noticed_beside_noise(name: str, tmp_path: Path) -> None:
    """The first stage draws; what the second makes of it is as exact as ever."""
    path, out = write(tmp_path / "noisy.onnx", "normal"), tmp_path / "out"
    verified(path, out, "onnx")
    for file in out.glob("stage*/*.onnx"):
        model = onnx.load(file)
        for held in (t for t in model.graph.initializer if t.name == name):
            held.CopyFrom(numpy_helper.from_array(1.01 * numpy_helper.to_array(held), name))
        onnx.save(model, file)
    reseal(out)
    report = verified(path, out, "onnx")
    off = [b.name for b in report.boundaries if not b.ok]
    assert off == (["y", "z"] if name == "first" else ["y"])


def test_noise_alone_is_not_verified(tmp_path: Path) -> None:
    path = write(tmp_path / "noisy.onnx", "normal", kept=False)
    report = verified(path, tmp_path / "out", "onnx", "1xcpu")
    assert not report.ok
    assert report.drawn == ("y",)
    assert report.boundaries == ()
    assert "nothing was compared" in printed(report)
