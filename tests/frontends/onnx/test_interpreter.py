"""Known and traced values, control flow, weights, and what must be bound."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from pipec.cli.options import parse_assignments
from pipec.errors import FrontendError
from pipec.frontends.base import LoadOptions
from pipec.frontends.onnx import OnnxFrontend
from pipec.graph.ir import InputKind, OutputKind, op_name, origin
from tests.frontends.onnx.models import load, model, run, worst

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
node = helper.make_node


def check(proto: onnx.ModelProto, folder: Path, **options: object) -> list[str]:
    """The model's graph gives what onnxruntime gives; returns the ops of the graph."""
    loaded = load(proto, folder, **options)
    inputs = loaded.example_inputs
    assert worst(run(loaded.graph, inputs), loaded.original(inputs)) < 1e-6
    return [op_name(n) for n in loaded.graph.calls]


def test_shape_arithmetic_vanishes(tmp_path: Path) -> None:
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["n"], axis=0),
        node("Unsqueeze", ["n", "axis"], ["n1"]),
        node("Concat", ["n1", "rest"], ["shape"], axis=0),
        node("Reshape", ["x", "shape"], ["y"]),
    ]
    known = {
        "zero": np.array(0),
        "axis": np.array([0]),
        "rest": np.array([-1]),
    }
    proto = model(nodes, {"x": (FLOAT, [2, 3, 4])}, ["y"], known)
    assert check(proto, tmp_path) == ["aten.reshape.default"]


def test_a_known_scalar_stays_a_number(tmp_path: Path) -> None:
    nodes = [node("Mul", ["x", "half"], ["h"]), node("Pow", ["h", "two"], ["y"])]
    known = {"half": np.array(0.5, np.float32), "two": np.array(2, np.float32)}
    proto = model(nodes, {"x": (FLOAT, [3])}, ["y"], known)
    assert check(proto, tmp_path) == ["aten.mul.Tensor", "aten.pow.Tensor_Scalar"]


def test_kinds_of_weights(tmp_path: Path) -> None:
    eye = onnx.numpy_helper.from_array(np.eye(3, dtype=np.float32))
    nodes = [
        node("Constant", [], ["w2"], value=eye),
        node("MatMul", ["x", "w"], ["a"]),
        node("MatMul", ["a", "w2"], ["b"]),
        node("Add", ["b", "mask"], ["c"]),
        node("Gather", ["c", "ids"], ["y"]),
    ]  # fmt: skip
    known = {"w": np.ones((3, 3), np.float32), "ids": np.array([1, 0])}
    nodes.insert(
        0, node("Constant", [], ["mask"], value_floats=[1.0, 2.0, 3.0])
    )  # one per channel: a shift
    loaded = load(model(nodes, {"x": (FLOAT, [2, 3])}, ["y"], known), tmp_path)
    kinds = {i.name: i.kind for i in loaded.graph.inputs}
    assert kinds == {
        "w": InputKind.PARAMETER,
        "w2": InputKind.PARAMETER,
        "mask": InputKind.PARAMETER,
        "ids": InputKind.CONSTANT,
        "x": InputKind.INPUT,
    }


def test_a_float_initialiser_that_must_be_known_is_no_parameter(tmp_path: Path) -> None:
    nodes = [
        node("Mul", ["scales", "one"], ["s"]),
        node("Resize", ["x", "", "s"], ["y"], mode="nearest"),
    ]
    known = {"scales": np.array([1, 1, 2, 2], np.float32), "one": np.array(1, np.float32)}
    proto = model(nodes, {"x": (FLOAT, [1, 1, 2, 3])}, ["y"], known)
    loaded = load(proto, tmp_path)
    assert not loaded.graph.inputs_of(InputKind.PARAMETER)
    assert (
        worst(run(loaded.graph, loaded.example_inputs), loaded.original(loaded.example_inputs)) == 0
    )


@pytest.mark.parametrize("mode", ["half_pixel", "asymmetric", "align_corners"])
@pytest.mark.parametrize(
    "nearest", ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil", "linear"]
)
def test_places_are_rounded_as_onnxruntime_does(mode: str, nearest: str, tmp_path: Path) -> None:
    """At these sizes 32 and 64 bits differ: 12 of 21 elements, say, of which the 4th is no. 7.

    By scales that leave no whole number, corners are those of the last elements, and 2.8 times 5 is
    14 in 32 bits.
    """
    sizes: list[tuple[int, float]] = [
        (a, b) for a in (7, 15, 19, 20, 21, 22, 23) for b in (3, 7, 12, 13, 21, 23) if a != b
    ]
    scales: list[tuple[int, float]] = [
        (a, b) for a in (3, 5, 10, 17, 30) for b in (0.3, 0.4, 0.9, 1.2, 1.7, 1.9, 2.8)
    ]
    nodes, known = list[onnx.NodeProto](), dict[str, np.ndarray[Any, Any]]()
    options = {"mode": "linear"} if nearest == "linear" else {"nearest_mode": nearest}
    options["coordinate_transformation_mode"] = mode
    for k, (a, b) in enumerate([*sizes, *scales]):
        known |= {f"axis{k}": np.arange(a, dtype=np.float32)[None, None, None]}
        known[f"by{k}"] = np.array([1, 1, 1, b], np.int64 if k < len(sizes) else np.float32)
        by = ["", f"by{k}"] if k < len(sizes) else [f"by{k}"]
        nodes += [
            node("Add", [f"axis{k}", "x"], [f"in{k}"]),
            node("Resize", [f"in{k}", "", *by], [f"y{k}"], **options),
        ]
    outputs = [f"y{k}" for k in range(len(sizes + scales))]
    loaded = load(model(nodes, {"x": (FLOAT, [1])}, outputs, known), tmp_path)
    found, want = run(loaded.graph, loaded.example_inputs), loaded.original(loaded.example_inputs)
    assert worst(found, want) < (1e-5 if nearest == "linear" else 1e-9)


def test_a_shape_input_must_be_bound_and_then_is_no_input(tmp_path: Path) -> None:
    nodes = [node("Expand", ["x", "shape"], ["h"]), node("Relu", ["h"], ["y"])]
    proto = model(nodes, {"x": (FLOAT, [1, 3]), "shape": (INT64, [2])}, ["y"])
    with pytest.raises(FrontendError, match="--bind shape=") as caught:
        load(proto, tmp_path)
    assert "Expand (node 0)" in str(caught.value)
    loaded = load(proto, tmp_path, bind={"shape": (4, 3)})
    assert list(loaded.example_inputs) == ["x"]
    x = {"x": torch.randn(1, 3)}
    assert worst(run(loaded.graph, x), loaded.original(x)) == 0
    with pytest.raises(FrontendError, match="wrong number"):
        load(proto, tmp_path, bind={"shape": (4,)})


def test_bound_inputs_may_be_empty_or_infinite_but_no_strings(tmp_path: Path) -> None:
    nodes = [node("ReduceSum", ["x", "axes"], ["h"]), node("Min", ["h", "most"], ["y"])]
    proto = model(nodes, {"x": (FLOAT, ["n", 3]), "axes": (INT64, [0]), "most": (FLOAT, ())}, ["y"])
    loaded = load(proto, tmp_path, bind=parse_assignments(("axes=", "most=inf", "n=2"), "--bind"))
    assert list(loaded.example_inputs) == ["x"]
    x = {"x": torch.ones(2, 3)}
    assert run(loaded.graph, x)["y"].tolist() == [[6.0]]
    strings = {"x": (TensorProto.STRING, [2])}
    proto = model([node("StringConcat", ["x", "x"], ["y"])], strings, ["y"], opset=20)
    proto.graph.output[0].type.tensor_type.elem_type = TensorProto.STRING
    with pytest.raises(FrontendError, match="cut off"):
        load(proto, tmp_path)


@pytest.mark.parametrize("count", [3, 0])
def test_control_flow_is_run_while_tracing(count: int, tmp_path: Path) -> None:
    def graph(
        nodes: list[onnx.NodeProto], outputs: list[str], inputs: list[str]
    ) -> onnx.GraphProto:
        types: dict[str, tuple[int, list[int]]] = {"i": (INT64, []), "go": (BOOL, [])}
        return helper.make_graph(
            nodes, "body",
            [helper.make_tensor_value_info(n, *types.get(n, (FLOAT, [3]))) for n in inputs],
            [helper.make_tensor_value_info(n, *types.get(n, (FLOAT, [3]))) for n in outputs],
        )  # fmt: skip

    body = graph(
        [node("Identity", ["go"], ["on"]), node("Add", ["s", "x"], ["t"])],
        ["on", "t", "t"],
        ["i", "go", "s"],
    )
    body.output[0].type.tensor_type.elem_type = BOOL
    body.output[0].type.tensor_type.shape.ClearField("dim")
    then = graph([node("Neg", ["x"], ["n"])], ["n"], [])
    other = graph([node("Abs", ["x"], ["n"])], ["n"], [])
    nodes = [
        node("Loop", ["count", "", "x"], ["last", "all"], body=body),
        node("If", ["yes"], ["r"], then_branch=then, else_branch=other),
        node("Mul", ["last", "r"], ["y"]),
    ]
    known = {"count": np.array(count), "yes": np.array(True)}
    proto = model(nodes, {"x": (FLOAT, [3])}, ["y", "all"], known)
    ops = check(proto, tmp_path)
    assert ops.count("aten.add.Tensor") == max(count, 1)  # of none, what its rows are like
    assert "aten.neg.default" in ops


def test_a_choice_at_run_time_is_one_opaque_node(tmp_path: Path) -> None:
    branch = helper.make_graph(
        [node("Neg", ["x"], ["n"])], "b", [], [helper.make_tensor_value_info("n", FLOAT, [3])]
    )
    nodes = [
        node("ReduceSum", ["x"], ["total"], keepdims=0),
        node("Cast", ["total"], ["c"], to=BOOL),
        node("If", ["c"], ["y"], then_branch=branch, else_branch=branch, name="choice"),
    ]
    ops = check(model(nodes, {"x": (FLOAT, [3])}, ["y"]), tmp_path)
    assert sum("pipec" in op for op in ops) == 1


def test_identities_known_outputs_and_equal_outputs(tmp_path: Path) -> None:
    nodes = [
        node("Relu", ["x"], ["h"]),
        node("Identity", ["h"], ["y"]),
        node("Shape", ["x"], ["s"]),
        node("Identity", ["x"], ["same"]),
    ]
    proto = model(nodes, {"x": (FLOAT, [2, 3])}, ["h", "y", "s", "same"])
    proto.graph.output[2].type.tensor_type.elem_type = INT64
    calls = check(proto, tmp_path)
    assert calls[0] == "aten.relu.default"
    assert len(calls) == 3  # what is passed on, or known, is a node too, so that a stage yields it


def test_function_bodies_keep_the_origin_of_the_node(tmp_path: Path) -> None:
    nodes = [node("MeanVarianceNormalization", ["x"], ["y"], name="mvn", axes=[0, 2, 3])]
    loaded = load(model(nodes, {"x": (FLOAT, [2, 3, 4, 4])}, ["y"]), tmp_path)
    assert len(loaded.graph.calls) > 3
    assert {origin(n).name for n in loaded.graph.calls} == {"mvn"}


def test_a_function_of_the_file(tmp_path: Path) -> None:
    body = [node("Mul", ["a", "a"], ["b"]), node("LeakyRelu", ["b"], ["c"])]
    body[1].attribute.append(
        onnx.AttributeProto(name="alpha", type=onnx.AttributeProto.FLOAT, ref_attr_name="slope")
    )
    proto = model([node("Mine", ["x"], ["y"], domain="own", slope=0.5)], {"x": (FLOAT, [3])}, ["y"])
    proto.opset_import.append(helper.make_opsetid("own", 1))
    imports = [helper.make_opsetid("", 17)]
    proto.functions.append(
        helper.make_function("own", "Mine", ["a"], ["c"], body, imports, ["slope"])
    )
    assert check(proto, tmp_path) == ["aten.mul.Tensor", "aten.leaky_relu.default"]


def test_negative_positions_count_from_the_end(tmp_path: Path) -> None:
    proto = model(
        [node("Gather", ["table", "ids"], ["y"])],
        {"ids": (INT64, [2, 3])},
        ["y"],
        {"table": np.arange(12, dtype=np.float32).reshape(4, 3)},
    )
    loaded = load(proto, tmp_path)
    assert int(loaded.example_inputs["ids"].max()) < 4
    ids = {"ids": torch.tensor([[-1, 0, 3], [2, -4, 1]])}
    assert worst(run(loaded.graph, ids), loaded.original(ids)) == 0


def test_gradients_reach_every_parameter(tmp_path: Path) -> None:
    weights = {"w": np.ones((3, 2), np.float32), "b": np.zeros(2, np.float32)}
    nodes = [
        node("Gemm", ["x", "w", "b"], ["h"]),
        node("SoftmaxCrossEntropyLoss", ["h", "t"], ["loss"]),
    ]
    inputs = {"x": (FLOAT, [4, 3]), "t": (INT64, [4])}
    graph = load(model(nodes, inputs, ["loss"], weights), tmp_path, training=True).graph
    assert [o.kind for o in graph.outputs] == [OutputKind.LOSS]
    given = {"x": torch.randn(4, 3), "t": torch.tensor([0, 1, 1, 1])}
    values = {
        i.name: graph.weights[i.name].detach().requires_grad_()
        if i.kind.is_weight
        else given[i.name]
        for i in graph.inputs
    }
    (loss,) = graph.module(*values.values())
    loss.backward()
    assert all(float(values[n].grad.abs().sum()) > 0 for n in weights)  # type: ignore[union-attr]


def test_the_front_end_takes_onnx_files_only() -> None:
    assert OnnxFrontend().accepts("a/b.onnx")
    assert not OnnxFrontend().accepts("a/b.pt2")
    with pytest.raises(FrontendError):
        OnnxFrontend().load("nowhere.onnx", LoadOptions())
