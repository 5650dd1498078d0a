"""Control flow in files: known conditions are inlined, others stay one opaque node."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from pipec.compiler.driver import emit
from pipec.compiler.verify import verify_artifacts
from pipec.errors import FrontendError
from pipec.graph.ir import origin
from tests.frontends.onnx.models import load, model, run, worst
from tests.plans import cut

RNG = np.random.default_rng(0)
W = {n: (RNG.normal(size=(4, 4)) / 2).astype(np.float32) for n in "abcd"}
X = {"x": (TensorProto.FLOAT, [3, 4])}


def branch(name: str, *weights: str) -> onnx.GraphProto:
    """Products with weights that the branch itself holds; all branches use the same names."""
    nodes, last = [], "h"
    for k in range(len(weights)):
        nodes.append(helper.make_node("MatMul", [last, f"w{k}"], [f"v{k}"], name=f"{name}{k}"))
        last = f"v{k}"
    out = helper.make_tensor_value_info(last, TensorProto.FLOAT, [3, 4])
    held = [numpy_helper.from_array(W[w], f"w{k}") for k, w in enumerate(weights)]
    return helper.make_graph(nodes, name, [], [out], held)


def with_if(condition: list[onnx.NodeProto], more: dict[str, Any] | None = None) -> onnx.ModelProto:
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["h"]),
        *condition,
        helper.make_node(
            "If", ["go"], ["v0"], then_branch=branch("t", "b", "c"), else_branch=branch("e", "d")
        ),
        helper.make_node("Tanh", ["v0"], ["y"]),
    ]
    return model(nodes, X, ["y"], {"a": W["a"], **(more or {})})


@pytest.mark.parametrize("taken", [True, False])
def test_an_if_on_a_known_condition_is_its_branch(taken: bool, tmp_path: Path) -> None:
    loaded = load(with_if([], {"go": np.array(taken)}), tmp_path)
    found = run(loaded.graph, loaded.example_inputs)
    assert worst(found, loaded.original(loaded.example_inputs)) < 1e-6
    ops = [origin(n).op for n in loaded.graph.calls]
    assert ops == ["MatMul"] * (3 if taken else 2) + ["Tanh"]
    assert len({origin(n).index for n in loaded.graph.calls}) == len(ops)
    held = [W["a"], *([W["b"], W["c"]] if taken else [W["d"]])]
    assert len(loaded.graph.weights) == len(held)


def test_an_if_on_a_value_of_run_time_is_one_node(tmp_path: Path) -> None:
    test = [
        helper.make_node("ReduceSum", ["h"], ["s"], keepdims=0),
        helper.make_node("Greater", ["s", "zero"], ["go"]),
    ]
    loaded = load(with_if(test, {"zero": np.float32(0)}), tmp_path)
    assert [origin(n).op for n in loaded.graph.calls].count("If") <= 2  # the node, its getitem
    seen = set()
    for sign in (1.0, -1.0):
        inputs = {"x": loaded.example_inputs["x"] * sign}
        want = loaded.original(inputs)
        assert worst(run(loaded.graph, inputs), want) < 1e-6
        seen.add(float(want["y"].sum()))
    assert len(seen) == 2


def test_a_loop_of_unknown_count_is_one_node_or_refused(tmp_path: Path) -> None:
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["c"], ["c2"]),
            helper.make_node("Tanh", ["s"], ["s2"]),
            helper.make_node("Identity", ["s2"], ["row"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("k", TensorProto.INT64, []),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            helper.make_tensor_value_info("s", TensorProto.FLOAT, [3, 4]),
        ],
        [
            helper.make_tensor_value_info("c2", TensorProto.BOOL, []),
            helper.make_tensor_value_info("s2", TensorProto.FLOAT, [3, 4]),
            helper.make_tensor_value_info("row", TensorProto.FLOAT, [3, 4]),
        ],
    )
    count = helper.make_node("ReduceMax", ["n"], ["trips"], keepdims=0)

    def looped(*outputs: str) -> onnx.ModelProto:
        inner = onnx.GraphProto()
        inner.CopyFrom(body)
        del inner.output[1 + len(outputs) :]
        loop = helper.make_node("Loop", ["trips", "", "x"], outputs, body=inner)
        return model([count, loop], {**X, "n": (TensorProto.INT64, [100])}, outputs)

    loaded = load(looped("y"), tmp_path)
    inputs = {**loaded.example_inputs, "n": torch.arange(100) % 3}
    assert worst(run(loaded.graph, inputs), loaded.original(inputs)) < 1e-6
    with pytest.raises(FrontendError, match="depends on data"):
        load(looped("y", "rows"), tmp_path)


def test_contrib_ops_are_opaque_nodes_typed_by_onnxruntime(tmp_path: Path) -> None:
    nodes = [
        helper.make_node(
            "FusedMatMul", ["x", "a"], ["h"], domain="com.microsoft", alpha=0.5, transB=1
        ),
        helper.make_node("Tanh", ["h"], ["y"]),
    ]
    proto = model(nodes, X, ["y"], {"a": W["a"]})
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    loaded = load(proto, tmp_path)
    assert worst(
        run(loaded.graph, loaded.example_inputs), loaded.original(loaded.example_inputs)
    ) < 1e-6  # fmt: skip


def test_ops_of_ai_onnx_ml_are_typed_by_onnxruntime(tmp_path: Path) -> None:
    """ONNX has schemas of a Scaler and a tree, and infers no shape of what they yield."""
    tree = {
        "nodes_treeids": [0, 0, 0], "nodes_nodeids": [0, 1, 2], "nodes_featureids": [1, 0, 0],
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"], "nodes_values": [0.1, 0.0, 0.0],
        "nodes_truenodeids": [1, 0, 0], "nodes_falsenodeids": [2, 0, 0],
        "class_treeids": [0, 0], "class_nodeids": [1, 2], "class_ids": [0, 0],
        "class_weights": [0.2, 0.9], "classlabels_int64s": [3, 8], "post_transform": "NONE",
    }  # fmt: skip
    scaler = helper.make_node("Scaler", ["x"], ["h"], offset=[0.1] * 4, scale=[2.0, 1, 1, 3])
    trees = helper.make_node("TreeEnsembleClassifier", ["h"], ["label", "p"])
    trees.attribute.extend(helper.make_attribute(k, v) for k, v in tree.items())
    nodes = [scaler, trees]
    for n in nodes:
        n.domain = "ai.onnx.ml"
    proto = model(nodes, X, ["label", "p"])
    proto.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    loaded = load(proto, tmp_path)
    inputs = {"x": torch.linspace(-1, 1, 12).reshape(3, 4).sin()}
    found = run(loaded.graph, inputs)
    assert set(found["label"].tolist()) == {3, 8}
    assert worst(found, loaded.original(inputs)) == 0


@pytest.mark.parametrize(
    ("op", "said", "told"),
    [
        ("ZipMap", "'zipmap': False", {"classlabels_int64s": [0, 1, 2, 3]}),
        ("LabelEncoder", "yield numbers", {"keys_floats": [0.0], "values_strings": ["no"]}),
    ],
)
def test_of_what_yields_no_numbers_the_message_says_what_to_do(
    op: str, said: str, told: dict[str, Any], tmp_path: Path
) -> None:
    last = helper.make_node(op, ["h"], ["y"], domain="ai.onnx.ml")
    last.attribute.extend(helper.make_attribute(k, v) for k, v in told.items())
    proto = model([helper.make_node("Relu", ["x"], ["h"]), last], X, ["y"])
    proto.graph.output[0].ClearField("type")
    proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 2))
    with pytest.raises(FrontendError, match=said):
        load(proto, tmp_path)


def test_two_open_dimensions_called_question_mark_may_differ(tmp_path: Path) -> None:
    nodes = [helper.make_node("Tanh", ["x"], ["y"])]
    proto = model(nodes, {"x": (TensorProto.FLOAT, ["?", "?"])}, ["y"])
    assert load(proto, tmp_path, shapes={"x": (2, 5)}).example_inputs["x"].shape == (2, 5)


def test_names_of_an_inlined_branch_differ_from_those_inside_of_another_if(tmp_path: Path) -> None:
    node = helper.make_node

    def choose(condition: str, to: str) -> onnx.NodeProto:
        branches = {"then_branch": branch("t", "a"), "else_branch": branch("e", "b")}
        return node("If", [condition], [to], **branches)

    nodes = [
        node("Tanh", ["x"], ["h"]),
        choose("yes", "i"),
        node("ReduceSum", ["x"], ["s"], keepdims=0),
        node("Greater", ["s", "zero"], ["go"]),
        choose("go", "j"),
        node("Add", ["i", "j"], ["y"]),
    ]
    known = {"yes": np.array(True), "zero": np.zeros((), np.float32)}
    read = load(model(nodes, X, ["y"], known), tmp_path)
    emit(cut(read.graph, target="onnx"), tmp_path / "out")
    assert verify_artifacts(tmp_path / "out", read).ok
