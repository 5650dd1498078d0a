"""Operators on quantised tensors in pairs of Quantize and Dequantize: onnxruntime runs both."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from pipec.frontends.onnx.paired import replace_paired
from pipec.frontends.onnx.reader import ModelFile
from pipec.graph.opaque import ort_session

X = (1, 4, 6, 6)
Operands = dict[str, tuple[Any, ...]]
PER_CHANNEL = np.array([0.01, 0.02, 0.005], np.float32)
RNG = np.random.default_rng(0)


def weight(*shape: int) -> Any:
    """Numbers of 7 bits, whose sums no processor saturates in 16."""
    return RNG.integers(-63, 64, shape).astype(np.int8)


def format_of(name: str, scale: float, zero: int) -> dict[str, Any]:
    """A scale and a zero point."""
    return {f"{name}s": np.float32(scale), f"{name}z": np.uint8(zero)}


IN, OTHER, OUT = format_of("x", 0.02, 120), format_of("o", 0.03, 99), format_of("y", 0.05, 130)
XS, YS = ("x", "xs", "xz"), ("ys", "yz")
BIAS = np.array([900, -700, 40], np.int32)
CONV = {"w": weight(3, 4, 3, 3), "ws": PER_CHANNEL, "wz": np.zeros(3, np.int8), "b": BIAS}
GEMM = {"w": weight(3, 6), "ws": PER_CHANNEL, "wz": np.zeros(3, np.int8), "b": BIAS}
WEIGHT = ("w", "ws", "wz")
CASES: list[tuple[str, str, Sequence[str], dict[str, Any], dict[str, Any]]] = [
    ("QLinearConv", "", (*XS, *WEIGHT, *YS, "b"), CONV, {"pads": [1, 0, 1, 0]}),
    ("QLinearMatMul", "", (*XS, *WEIGHT, *YS), GEMM | {"w": weight(6, 3)}, {}),
    ("QLinearAdd", "com.microsoft", (*XS, "o", "os", "oz", *YS), {}, {}),
    ("QLinearMul", "com.microsoft", (*XS, "o", "os", "oz", *YS), {}, {}),
    ("QLinearSigmoid", "com.microsoft", (*XS, *YS), {}, {}),
    ("QLinearLeakyRelu", "com.microsoft", (*XS, *YS), {}, {"alpha": 0.3}),
    ("QLinearSoftmax", "com.microsoft", (*XS, *YS), {}, {"axis": 1, "opset": 17}),
    ("QLinearGlobalAveragePool", "com.microsoft", (*XS, *YS), {}, {"channels_last": 0}),
    ("QLinearAveragePool", "com.microsoft", (*XS, *YS), {}, {"kernel_shape": [2, 3]}),
    ("QLinearConcat", "com.microsoft", (*YS, *XS, "o", "os", "oz"), {}, {"axis": 1}),
    ("QLinearWhere", "com.microsoft", ("c", *XS, "o", "os", "oz", *YS),
     {"c": RNG.random(X) > 0.5}, {}),
]  # fmt: skip


def proto(nodes: list[onnx.NodeProto], held: dict[str, Any], shape: Sequence[int]) -> Any:
    """A model from ``x`` and ``o``, quantised, to ``y``."""
    graph = helper.make_graph(
        nodes, "net",
        [helper.make_tensor_value_info(n, TensorProto.UINT8, shape) for n in "xo"],
        [helper.make_tensor_value_info("y", TensorProto.UINT8, None)],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in held.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def check(model: Any, shape: Sequence[int], operators: set[str]) -> None:
    """Both forms within one step of each other, and nearly everywhere equal."""
    other = replace_paired(ModelFile(model)).proto
    assert {n.op_type for n in other.graph.node} >= operators | {"DequantizeLinear"}
    assert not any("QLinear" in n.op_type or n.op_type == "QGemm" for n in other.graph.node)
    rng = np.random.default_rng(1)
    fed = {n: rng.integers(0, 255, shape).astype(np.uint8) for n in "xo"}
    (want,), (found,) = (
        ort_session(m.SerializeToString(), fused=False).run(["y"], fed) for m in (model, other)
    )
    assert found.shape == want.shape
    off = np.abs(found.astype(int) - want)
    assert len(np.unique(want)) > 3
    assert off.max() <= 1
    assert (off > 0).mean() <= 0.02


@pytest.mark.parametrize("case", CASES, ids=[c[0] for c in CASES])
def test_operators(case: Any) -> None:
    op, domain, reads, held, told = case
    node = helper.make_node(op, reads, ["y"], domain=domain, **told)
    check(proto([node], IN | OTHER | OUT | held, X), X, {op.removeprefix("QLinear")})


@pytest.mark.parametrize("turned", [0, 1])
def test_a_dense_layer(turned: int) -> None:
    held = GEMM if turned else GEMM | {"w": GEMM["w"].T.copy()}
    reads = (*XS, *WEIGHT, "b", *YS)
    node = helper.make_node("QGemm", reads, ["y"], domain="com.microsoft", transB=turned)
    check(proto([node], IN | OUT | held, (8, 6)), (8, 6), {"Gemm"})


def test_what_moves_values_keeps_their_format_and_so_does_a_table() -> None:
    """Pads with numbers of 8 bits, a pool, a lookup in a quantised table."""
    low = format_of("t", 0.01, 7)
    nodes = [
        helper.make_node("Pad", ["x", "pads", "fill"], ["p"]),
        helper.make_node("MaxPool", ["p"], ["m"], kernel_shape=[2, 2]),
        helper.make_node("Transpose", ["m"], ["t"], perm=[0, 2, 3, 1]),
        helper.make_node("Gather", ["table", "at"], ["g"]),
        helper.make_node(
            "QLinearAdd", ["t", "xs", "xz", "g", "ts", "tz", *YS], ["y"], domain="com.microsoft"
        ),
    ]
    held = IN | OUT | low | {
        "pads": np.array([0, 0, 1, 1, 0, 0, 0, 0]), "fill": np.uint8(3), "at": np.array([2]),
        "table": RNG.integers(0, 255, (3, 6, 6, 4)).astype(np.uint8),
    }  # fmt: skip
    nodes.insert(0, helper.make_node("QLinearMul", [*XS, *XS, "xs", "xz"], ["x2"],
                                     domain="com.microsoft"))  # fmt: skip
    nodes[1].input[0] = "x2"
    model = proto(nodes, held, X)
    check(model, X, {"Pad", "MaxPool", "Transpose", "Gather", "Add", "Mul"})
    real = {n.op_type: n for n in replace_paired(ModelFile(model)).proto.graph.node}
    assert all(any("real" in r for r in real[op].input) for op in ("Pad", "Gather", "Transpose"))


def test_nothing_else_is_touched() -> None:
    """Channels last have no float operator; files without such operators stay as they are."""
    node = helper.make_node(
        "QLinearGlobalAveragePool", [*XS, *YS], ["y"], domain="com.microsoft", channels_last=1
    )
    model = ModelFile(proto([node], IN | OUT, X))
    assert [n.op_type for n in replace_paired(model).proto.graph.node] == [node.op_type]
    plain = ModelFile(proto([helper.make_node("Identity", ["x"], ["y"])], {}, X))
    assert replace_paired(plain) is plain
