"""Files that are no valid ONNX are refused when they are read, as onnxruntime refuses them."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from pipec.errors import FrontendError
from pipec.frontends.onnx.reader import read
from tests.frontends.onnx.fuzzing import bases, judge, mutant
from tests.frontends.onnx.models import load, model, run, worst

SAMPLE = 100
"""Mutants of the suite; ``make fuzz-onnx`` runs 50,000."""


def sound() -> onnx.ModelProto:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Softmax", ["h"], ["y"]),
    ]
    return model(
        nodes, {"x": (TensorProto.FLOAT, [2, 4])}, ["y"], {"w": np.ones((4, 3), np.float32)}
    )


def unknown_attribute(p: onnx.ModelProto) -> None:
    p.graph.node[1].attribute.append(helper.make_attribute("nonsense", 1))


def attribute_twice(p: onnx.ModelProto) -> None:
    p.graph.node[1].attribute.extend([helper.make_attribute("axis", 1)] * 2)


def two_types(p: onnx.ModelProto) -> None:
    p.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.ones((4, 3)), "w"))


def wrong_output_type(p: onnx.ModelProto) -> None:
    p.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64


def inner_dimensions_differ(p: onnx.ModelProto) -> None:
    p.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.ones((5, 3), np.float32), "w"))


def negative_dimension(p: onnx.ModelProto) -> None:
    p.graph.initializer[0].dims[0] = -4


def overflowing_dimension(p: onnx.ModelProto) -> None:
    p.graph.initializer[0].dims[0] = 2**62


def one_name_twice(p: onnx.ModelProto) -> None:
    p.graph.initializer.append(p.graph.initializer[0])


def external_constant(p: onnx.ModelProto) -> None:
    tensor = TensorProto(name="c", data_type=1, dims=[3], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="c.bin")
    p.graph.node.append(helper.make_node("Constant", [], ["c"], value=tensor))


def no_version(p: onnx.ModelProto) -> None:
    p.ClearField("ir_version")


def no_element_type(p: onnx.ModelProto) -> None:
    p.graph.initializer.append(numpy_helper.from_array(np.ones(3, np.float32), "unused"))
    p.graph.initializer[-1].data_type = TensorProto.UNDEFINED


def no_output_type(p: onnx.ModelProto) -> None:
    p.graph.output[0].type.tensor_type.elem_type = TensorProto.UNDEFINED


def no_hidden_size(p: onnx.ModelProto, **size: Any) -> None:
    shapes = {"wide": (1, 9, 3), "again": (1, 9, 3), "three": (2, 1, 3)}
    for name, shape in shapes.items():
        p.graph.initializer.append(numpy_helper.from_array(np.ones(shape, np.float32), name))
    node = helper.make_node("GRU", ["three", "wide", "again"], ["", "last"], **size)
    p.graph.node.append(node)
    p.graph.output.append(helper.make_tensor_value_info("last", TensorProto.FLOAT, [1, 1, 3]))


def negative_hidden_size(p: onnx.ModelProto) -> None:
    no_hidden_size(p, hidden_size=-1)


def endless_equation(p: onnx.ModelProto) -> None:
    """ONNX's own inference does not come back from this one."""
    equation = b"b\303 \217m\272-\177#C\007"
    p.graph.node.append(helper.make_node("Einsum", ["h", "w"], ["e"], equation=equation))


def biases_of_8_bits(p: onnx.ModelProto) -> None:
    """As onnxruntime's own quantiser has written them; ONNX knows no types of its operators."""
    for name, dtype in (("z", np.uint8), ("b", np.int8), ("k", np.int8)):
        shape = {"z": (), "b": (3,), "k": (4, 3)}[name]
        p.graph.initializer.append(numpy_helper.from_array(np.ones(shape, dtype), name))
    p.graph.initializer.append(numpy_helper.from_array(np.array(0.1, np.float32), "s"))
    p.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    reads = ["q", "s", "z", "k", "s", "z", "b", "s", "z"]
    p.graph.node.append(helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]))
    p.graph.node.append(helper.make_node("QGemm", reads, ["o"], domain="com.microsoft"))
    p.graph.output.append(helper.make_tensor_value_info("o", TensorProto.UINT8, [2, 3]))


@pytest.mark.parametrize(
    "damage",
    [
        biases_of_8_bits,
        endless_equation, no_version, no_element_type, no_output_type,
        no_hidden_size, negative_hidden_size,
        unknown_attribute, attribute_twice, two_types, wrong_output_type, inner_dimensions_differ,
        negative_dimension, overflowing_dimension, one_name_twice, external_constant,
    ],
)  # fmt: skip
def test_what_breaks_a_rule_is_refused(
    damage: Callable[[onnx.ModelProto], None], tmp_path: Path
) -> None:
    load(sound(), tmp_path)
    proto = sound()
    damage(proto)
    with pytest.raises(FrontendError, match="not a valid ONNX model"):
        load(proto, tmp_path)


def test_operators_of_no_opset_are_refused(tmp_path: Path) -> None:
    """onnxruntime takes the newest for it, in which Softmax is another one than in the first."""
    proto = bases()["attention"]
    load(proto, tmp_path)
    proto.opset_import[0].domain = "somebody"
    with pytest.raises(FrontendError, match="no opset of the standard operators"):
        load(proto, tmp_path)


def test_an_attribute_without_its_value_has_the_default(tmp_path: Path) -> None:
    proto = model(
        [helper.make_node("Softmax", ["x"], ["y"], axis=0)],
        {"x": (TensorProto.FLOAT, [2, 4])},
        ["y"],
    )
    proto.graph.node[0].attribute[0].ClearField("i")
    loaded = load(proto, tmp_path)
    want = loaded.original(loaded.example_inputs)
    assert worst(run(loaded.graph, loaded.example_inputs), want) < 1e-6
    (attribute,) = read(tmp_path / "model.onnx").proto.graph.node[0].attribute
    assert attribute.HasField("i")  # the checker refuses a stage without
    assert attribute.i == 0


@pytest.mark.parametrize(
    ("op", "shape", "held", "said"),
    [("Tile", [1, 2, 3], {"n": np.ones(3, np.int64)}, "3 repeats for 2 dimensions"),
     ("LSTM", [1, 5, 2, 6, 2],
      {"w": np.ones((1, 16, 6), np.float32), "r": np.ones((1, 16, 4), np.float32)},
      "an input of 4 dimensions")],
)  # fmt: skip
def test_what_torch_would_take_and_onnx_does_not_is_refused(
    op: str, shape: list[int], held: dict[str, np.ndarray[Any, Any]], said: str, tmp_path: Path
) -> None:
    """Inference does not see it: the axis that is dropped is computed."""
    options: dict[str, Any] = {"hidden_size": 4} if op == "LSTM" else {}
    nodes = [
        helper.make_node("Abs", ["first"], ["axes"]),
        helper.make_node("Squeeze", ["a", "axes"], ["h"]),
        helper.make_node(op, ["h", *held], ["y"], **options),
    ]
    held = {**held, "first": np.zeros(1, np.int64)}
    with pytest.raises(FrontendError, match=said):
        load(model(nodes, {"a": (TensorProto.FLOAT, shape)}, ["y"], held), tmp_path)


def test_a_mode_that_no_engine_has_is_refused(tmp_path: Path) -> None:
    """ONNX's reference would run it in some other mode."""
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="")
    held = {"scales": np.array([1, 1, 2, 2], np.float32)}
    proto = model([node], {"x": (TensorProto.FLOAT, [1, 2, 3, 4])}, ["y"], held)
    with pytest.raises(FrontendError, match="mode ''"):
        load(proto, tmp_path)


def test_rows_without_end_are_refused_before_they_are_made(tmp_path: Path) -> None:
    held = {"depth": np.int64(2**40), "values": np.arange(2, dtype=np.float32)}
    node = helper.make_node("OneHot", ["ids", "depth", "values"], ["y"])
    inputs = {"ids": (TensorProto.INT64, [2])}
    proto = model([node], inputs, ["y"], {n: np.asarray(a) for n, a in held.items()})
    with pytest.raises(FrontendError, match="1099511627776 entries"):
        load(proto, tmp_path)


def test_a_table_without_rows_is_a_file_that_engines_take(tmp_path: Path) -> None:
    node = helper.make_node("Gather", ["table", "ids"], ["y"])
    table = {"table": np.ones((0, 4), np.float32)}
    loaded = load(model([node], {"ids": (TensorProto.INT64, [2])}, ["y"], table), tmp_path)
    assert loaded.example_inputs["ids"].tolist() == [0, 0]
    with pytest.raises(FrontendError, match="onnxruntime cannot run"):
        loaded.original(loaded.example_inputs)


def test_mutants_are_judged_as_onnxruntime_judges_them(tmp_path: Path) -> None:
    held = [p.SerializeToString() for p in bases().values()]
    outcomes = [
        judge(mutant(held[k % len(held)], random.Random(k)), tmp_path / "m.onnx")
        for k in range(SAMPLE)
    ]
    assert not [o.crash for o in outcomes if o.crash]
    assert not [o.differs for o in outcomes if o.differs]
    assert not [o.reason for o in outcomes if o.accepted and not o.by_onnxruntime]
    assert sum(o.accepted for o in outcomes) >= SAMPLE // 20


def test_the_ten_models_themselves_are_accepted_and_right(tmp_path: Path) -> None:
    for name, proto in bases().items():
        outcome = judge(proto.SerializeToString(), tmp_path / "m.onnx")
        assert outcome.accepted, f"{name}: {outcome.reason}{outcome.crash}"
        assert outcome.by_onnxruntime, f"{name}: {outcome.reason}"
        assert not outcome.differs, f"{name}: {outcome.differs}"
