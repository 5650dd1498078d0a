"""Ops of quantised models: one node each, the integers of onnxruntime, bit for bit."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper

from pipec.cost.flops import FlopCounter
from pipec.frontends.base import Loaded, LoadOptions
from pipec.frontends.onnx import OnnxFrontend
from pipec.graph.arrays import to_tensor
from pipec.graph.quantised import QUANTISED
from tests.frontends.onnx.models import load, model, run

Arrays = Mapping[str, Any]
RNG = np.random.default_rng(3)


def integers(dtype: str, *shape: int, narrow: bool = False) -> NDArray[Any]:
    """All numbers of a type; ``narrow``: 7 bits, whose sums no processor saturates in 16."""
    info = np.iinfo(dtype)
    low, high = (info.min // 2, info.max // 2) if narrow else (info.min, info.max)
    return RNG.integers(low, high + 1, shape).astype(dtype)


def scales(*shape: int) -> NDArray[Any]:
    return RNG.uniform(0.01, 0.2, shape).astype(np.float32)


def made(
    folder: Path, op: str, traced: Arrays, held: Arrays, domain: str = "", **attributes: Any
) -> Loaded:
    """A model of one node; of several outputs the first."""
    names = [*traced, *held]
    order = sorted(names, key=lambda n: int(n[1:]))
    node = helper.make_node(
        op, order, ["y"] + ["s", "z"] * (op[:3] == "Dyn"), domain=domain, **attributes
    )
    like = {n: helper.np_dtype_to_tensor_dtype(a.dtype) for n, a in traced.items()}
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info(n, like[n], a.shape) for n, a in traced.items()],
        [onnx.ValueInfoProto(name=o) for o in node.output],
        [onnx.numpy_helper.from_array(a, n) for n, a in held.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    inferred = onnx.shape_inference.infer_shapes(proto).graph.output
    by_hand = helper.make_tensor_value_info("y", TensorProto.UINT8, None)
    for k, info in enumerate(proto.graph.output):
        info.CopyFrom(by_hand if domain else inferred[k])
    onnx.save(proto, folder / "one.onnx")
    return OnnxFrontend().load(str(folder / "one.onnx"), LoadOptions())


def check(loaded: Loaded, traced: Arrays) -> None:
    """One node of a quantised op; what it computes is what onnxruntime computes."""
    (node,) = (n for n in loaded.graph.calls if n.target in QUANTISED)
    assert FlopCounter().flops(node) > 0
    inputs = {n: to_tensor(a) for n, a in traced.items()}
    found, want = run(loaded.graph, inputs), loaded.original(inputs)
    assert found.keys() == want.keys()
    for name, tensor in want.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].equal(tensor), name


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16"])
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_quantize_linear(tmp_path: Path, dtype: str, axis: int | None) -> None:
    shape = (4, 5, 6)
    count = () if axis is None else (shape[axis],)
    scale, zero = scales(*count), integers(dtype, *count)
    held = {"i1": scale, "i2": zero}
    steps = RNG.integers(-1400, 1400, shape) / 2  # ties, and numbers beyond the type's range
    spread = scale.reshape([-1 if axis is not None and k == axis % 3 else 1 for k in range(3)])
    traced = {
        "i0": (steps * (1 if axis is None else spread) * (scale if axis is None else 1)).astype(
            np.float32
        )
    }
    attributes: dict[str, Any] = {} if axis is None else {"axis": axis}
    check(made(tmp_path, "QuantizeLinear", traced, held, **attributes), traced)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16", "int32"])
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_dequantize_linear(tmp_path: Path, dtype: str, axis: int | None) -> None:
    count = () if axis is None else ((4, 5)[axis],)
    zero = np.zeros(count, dtype) if dtype == "int32" else integers(dtype, *count)
    traced = {"i0": integers(dtype, 4, 5, 2)}
    attributes: dict[str, Any] = {} if axis is None else {"axis": axis}
    check(
        made(
            tmp_path, "DequantizeLinear", traced, {"i1": scales(*count), "i2": zero}, **attributes
        ),
        traced,
    )


@pytest.mark.parametrize("scale", [1.0, 1e-3, 0.0])
def test_dynamic_quantize_linear(tmp_path: Path, scale: float) -> None:
    traced = {"i0": (scale * RNG.normal(1, 2, (7, 9))).astype(np.float32)}
    check(made(tmp_path, "DynamicQuantizeLinear", traced, {}), traced)


@pytest.mark.parametrize(("x", "w"), [("uint8", "uint8"), ("uint8", "int8")])
@pytest.mark.parametrize("inner", [9, 700])
def test_matmul_integer(tmp_path: Path, x: str, w: str, inner: int) -> None:
    traced = {"i0": integers(x, 3, 4, inner)}
    held = {
        "i1": integers(w, inner, 5, narrow=True),
        "i2": integers(x),
        "i3": integers(w, 5, narrow=True),
    }
    check(made(tmp_path, "MatMulInteger", traced, held), traced)


@pytest.mark.parametrize("per_column", [False, True])
@pytest.mark.parametrize("inner", [9, 700])
def test_qlinear_matmul(tmp_path: Path, inner: int, per_column: bool) -> None:
    count = (5,) if per_column else ()
    traced = {"i0": integers("uint8", 4, inner)}
    held = {
        "i1": scales(), "i2": integers("uint8"),
        "i3": integers("int8", inner, 5, narrow=True),
        "i4": scales(*count), "i5": np.zeros(count, "int8"),
        "i6": np.float32(0.1 * inner), "i7": integers("uint8"),
    }  # fmt: skip
    check(made(tmp_path, "QLinearMatMul", traced, held), traced)


def test_qgemm(tmp_path: Path) -> None:
    traced = {"i0": integers("uint8", 4, 40)}
    held = {
        "i1": scales(), "i2": integers("uint8"),
        "i3": integers("int8", 5, 40, narrow=True), "i4": scales(5), "i5": np.zeros(5, "int8"),
        "i6": integers("int32", 5) // 2**18, "i7": np.float32(7.7), "i8": integers("uint8"),
    }  # fmt: skip
    check(made(tmp_path, "QGemm", traced, held, "com.microsoft", transB=1), traced)


WINDOWS: list[dict[str, Any]] = [
    {}, {"pads": [1, 0, 2, 1], "strides": [2, 1]}, {"auto_pad": "SAME_LOWER"},
    {"dilations": [2, 1]}, {"group": 4, "pads": [1, 1, 1, 1]},
]  # fmt: skip


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("channels", [4, 128])
def test_integer_conv(tmp_path: Path, window: dict[str, Any], channels: int) -> None:
    traced = {"i0": integers("uint8", 2, channels, 7, 8)}
    weights = integers("uint8", 8, channels // window.get("group", 1), 3, 3)
    held = {"i1": weights, "i2": integers("uint8"), "i3": integers("uint8")}
    check(made(tmp_path, "ConvInteger", traced, held, **window), traced)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_qlinear_conv(
    tmp_path: Path, window: dict[str, Any], per_channel: bool, dtype: str
) -> None:
    channels, count = 40, (8,) if per_channel else ()
    traced = {"i0": integers(dtype, 2, channels, 7, 8, narrow=True)}
    held = {
        "i1": scales(), "i2": integers(dtype),
        "i3": integers("int8", 8, channels // window.get("group", 1), 3, 3, narrow=True),
        "i4": scales(*count), "i5": np.zeros(count, "int8"),
        "i6": np.float32(6.6), "i7": integers(dtype), "i8": integers("int32", 8) // 2**16,
    }  # fmt: skip
    check(made(tmp_path, "QLinearConv", traced, held, **window), traced)


def test_a_table_that_only_a_dead_node_reads_is_left_out(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tables = {n: rng.integers(-9, 9, (4, 3)).astype(np.int8) for n in ("w", "unread")}
    nodes = [
        helper.make_node("MatMulInteger", ["x", "unread"], ["dead"]),
        helper.make_node("MatMulInteger", ["x", "w"], ["y"]),
    ]
    proto = model(nodes, {"x": (TensorProto.INT8, [2, 4])}, ["y"], tables)
    proto.graph.output[0].type.tensor_type.elem_type = TensorProto.INT32
    loaded = load(proto, tmp_path)
    assert [i.name for i in loaded.graph.inputs] == ["w", "x"]
    inputs = {"x": torch.arange(8).reshape(2, 4).to(torch.int8)}
    assert torch.equal(run(loaded.graph, inputs)["y"], loaded.original(inputs)["y"])
