"""An ONNX node without a torch lowering travels with the plan, and runs from its files alone."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from pipec.compiler.driver import emit
from pipec.compiler.verify import verify_artifacts
from pipec.errors import PlanError
from pipec.frontends.base import Loaded
from pipec.frontends.load import load
from pipec.graph import opaque
from pipec.graph.ir import origin
from pipec.plan.manifest import read_manifest
from pipec.plan.store import load_plan
from tests.plans import cut


@pytest.fixture
def model(tmp_path: Path) -> Loaded:
    """Relu, RoiAlign (no ATen op does it), Relu."""
    rois = np.array([[0, 0, 3, 3], [1, 1, 5, 5]], np.float32)
    weights = [
        numpy_helper.from_array(rois, "rois"),
        numpy_helper.from_array(np.zeros(2, np.int64), "batch"),
    ]
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], "before"),
        helper.make_node(
            "RoiAlign", ["r", "rois", "batch"], ["a"], "align", output_height=2, output_width=2
        ),
        helper.make_node("Relu", ["a"], ["y"], "after"),
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "opaque",
        [info("x", TensorProto.FLOAT, [1, 3, 6, 6])],
        [info("y", TensorProto.FLOAT, [2, 3, 2, 2])],
        weights,
    )
    opsets = [helper.make_opsetid("", 16)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), tmp_path / "m.onnx")
    return load(str(tmp_path / "m.onnx"))


@pytest.mark.parametrize("target", ["torch", "onnx"])
def test_it_runs_from_the_files(
    model: Loaded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    assert [str(n.target) for n in model.graph.calls].count("pipec.onnx.default") == 1
    out = tmp_path / "out"
    emit(cut(model.graph, 1, target=target), out)
    payloads = sorted((out / "payloads").iterdir())
    assert len(payloads) == 1
    assert f"payloads/{payloads[0].name}" in read_manifest(out)["files"]
    monkeypatch.setattr(opaque, "_payloads", {})
    opaque.engine_of.cache_clear()
    assert verify_artifacts(out, model).ok
    stage = load_plan(out).stages[1].graph
    assert stage.calls[1].meta["origin"].op == "RoiAlign"


def test_a_foreign_payload_is_refused(model: Loaded, tmp_path: Path) -> None:
    emit(cut(model.graph, 1), tmp_path / "out")
    (payload,) = (tmp_path / "out" / "payloads").iterdir()
    payload.write_bytes(b"something else")
    with pytest.raises(PlanError, match="payloads/"):
        load_plan(tmp_path / "out")


@pytest.mark.parametrize("lengths", [True, False])
def test_outputs_of_one_type_are_told_apart_where_they_cross_a_cut(
    tmp_path: Path, lengths: bool
) -> None:
    """Two of the three outputs of an LSTM: with lengths, which no ATen op takes, and without."""
    rng = np.random.default_rng(0)
    shapes = {"w": (1, 16, 6), "r": (1, 16, 4)}
    held = {n: rng.normal(size=s).astype(np.float32) for n, s in shapes.items()}
    held["lengths"] = np.array([5, 3], np.int32)
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], "before"),
        helper.make_node(
            "LSTM", ["a", "w", "r", *["", "lengths"][: 2 * lengths]], ["o", "h", "c"], hidden_size=4
        ),
        helper.make_node("Sub", ["h", "c"], ["y"], "after"),
        helper.make_node("Neg", ["o"], ["z"], "last"),
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "lstm", [info("x", TensorProto.FLOAT, [5, 2, 6])],
        [info("y", TensorProto.FLOAT, [1, 2, 4]), info("z", TensorProto.FLOAT, [5, 1, 2, 4])],
        [numpy_helper.from_array(a, n) for n, a in held.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), tmp_path / "m.onnx")
    read = load(str(tmp_path / "m.onnx"))
    bound = next(k for k, n in enumerate(read.graph.calls) if origin(n).op == "Sub")
    plan = cut(read.graph, bound, target="onnx")
    assert len(plan.channels) == 3
    emit(plan, tmp_path / "out")
    assert verify_artifacts(tmp_path / "out", read).ok
