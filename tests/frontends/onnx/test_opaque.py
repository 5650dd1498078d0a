"""Nodes without lowering: one opaque node each, run by an engine; no gradient, clear errors."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from pipec.errors import GraphError
from pipec.graph import opaque
from pipec.graph.ir import origin
from pipec.graph.opaque import ONNX, opaque_payload, register_payload
from pipec.graph.tensor_type import metas_of_types, types_text
from tests.frontends.onnx.models import load, model, run, worst


def resize(folder: Path) -> object:
    nodes = [
        helper.make_node("Relu", ["x"], ["h"], name="before"),
        helper.make_node("Resize", ["h", "", "s"], ["y"], name="small", mode="linear", antialias=1),
    ]
    scales = np.array([1, 1, 0.5, 0.6], np.float32)
    return model(nodes, {"x": (TensorProto.FLOAT, [1, 2, 6, 10])}, ["y"], {"s": scales}, 18)


def test_an_opaque_node_runs_and_is_described(tmp_path: Path) -> None:
    loaded = load(resize(tmp_path), tmp_path)  # type: ignore[arg-type]
    (node,) = (n for n in loaded.graph.calls if n.target is ONNX)
    assert origin(node).name == "small"
    assert origin(node).op == "Resize"
    assert node.args[2:] == ("ort", "float32[1,2,3,6]")
    x = {"x": torch.randn(1, 2, 6, 10)}
    assert worst(run(loaded.graph, x), loaded.original(x)) < 1e-6


def test_payloads_travel_with_a_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load(resize(tmp_path), tmp_path)  # type: ignore[arg-type]
    (key,) = {str(n.args[1]) for n in loaded.graph.calls if n.target is ONNX}
    payload = opaque_payload(key)
    assert [n.op_type for n in onnx.load_from_string(payload).graph.node] == ["Resize"]
    monkeypatch.setattr(opaque, "_payloads", {})
    with pytest.raises(GraphError, match="missing"):
        opaque_payload(key)
    assert register_payload(payload) == key
    assert opaque_payload(key) == payload


def test_an_opaque_node_has_no_gradient(tmp_path: Path) -> None:
    loaded = load(resize(tmp_path), tmp_path)  # type: ignore[arg-type]
    x = torch.randn(1, 2, 6, 10, requires_grad=True)
    (y,) = loaded.graph.module(x)
    with pytest.raises(RuntimeError, match="backward"):
        y.sum().backward()


def test_several_outputs_and_types() -> None:
    text = "float32[2,3];int64[];bfloat16[0]"
    assert [(t.dtype, t.shape) for t in metas_of_types(text)] == [
        (torch.float32, (2, 3)),
        (torch.int64, ()),
        (torch.bfloat16, (0,)),
    ]
    assert types_text(metas_of_types(text)) == text
    with pytest.raises(GraphError):
        metas_of_types("float32[2,3);x")


@pytest.mark.parametrize("engine", ["ort", "reference"])
@pytest.mark.parametrize("shape", [(3,), (0, 3)])
def test_engines_hand_back_what_numpy_lacks(engine: str, shape: tuple[int, ...]) -> None:
    node = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.BFLOAT16)
    proto = model([node], {"x": (TensorProto.FLOAT, list(shape))}, ["y"], opset=19)
    proto.graph.output[0].type.tensor_type.elem_type = TensorProto.BFLOAT16
    key = register_payload(proto.SerializeToString())
    x = torch.full(shape, 1.2345)
    spec = f"bfloat16[{','.join(map(str, shape))}]"
    (y,) = torch.ops.pipec.onnx([x], key, engine, spec)
    assert torch.equal(y, x.bfloat16())


def test_an_output_of_another_shape_than_declared_is_an_error() -> None:
    proto = model([helper.make_node("Relu", ["x"], ["y"])], {"x": (TensorProto.FLOAT, [3])}, ["y"])
    key = register_payload(proto.SerializeToString())
    for engine in ("ort", "reference"):
        with pytest.raises(GraphError):
            torch.ops.pipec.onnx([torch.zeros(3)], key, engine, "float32[4]")
    with pytest.raises(GraphError, match="engine"):
        torch.ops.pipec.onnx([torch.zeros(3)], key, "magic", "float32[3]")


def test_a_payload_that_names_a_file_is_refused() -> None:
    proto = model([helper.make_node("Relu", ["x"], ["y"])], {"x": (TensorProto.FLOAT, [3])}, ["y"])
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="secret")
    proto.graph.initializer.append(tensor)
    with pytest.raises(GraphError, match="names a file"):
        register_payload(proto.SerializeToString())
    with pytest.raises(GraphError, match="no ONNX model"):
        register_payload(b"nonsense")
