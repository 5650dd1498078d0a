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
    opaque._engine.cache_clear()
    assert verify_artifacts(out, model).ok
    stage = load_plan(out).stages[1].graph
    assert stage.calls[1].meta["origin"].op == "RoiAlign"


def test_a_foreign_payload_is_refused(model: Loaded, tmp_path: Path) -> None:
    emit(cut(model.graph, 1), tmp_path / "out")
    (payload,) = (tmp_path / "out" / "payloads").iterdir()
    payload.write_bytes(b"something else")
    with pytest.raises(PlanError, match="payloads/"):
        load_plan(tmp_path / "out")
