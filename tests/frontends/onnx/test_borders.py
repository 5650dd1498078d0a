"""Single nodes at the borders of what their operators say, against onnxruntime."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from pipec.errors import FrontendError
from tests.frontends.onnx.models import load, model, run

FLOAT, INT64, UINT8 = TensorProto.FLOAT, TensorProto.INT64, TensorProto.UINT8
UINT32, UINT64, INT32 = TensorProto.UINT32, TensorProto.UINT64, TensorProto.INT32
Given = Mapping[str, tuple[int, list[int]]]


def _ones(*shape: int) -> Any:
    return (1 + np.arange(np.prod(shape), dtype=np.float32)).reshape(shape) / 8


def _longs(*values: int) -> Any:
    return np.array(values, np.int64)


def _conv_transpose(**attributes: Any) -> Any:
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], **attributes)
    return node, {"x": (FLOAT, [1, 1, 3, 4])}, {"w": _ones(1, 2, 2, 4)}, 17


def _slice(start: int, end: int, step: int, kind: int = FLOAT) -> Any:
    node = helper.make_node("Slice", ["x", "start", "end", "axis", "step"], ["y"])
    held = {"start": _longs(start), "end": _longs(end), "axis": _longs(1), "step": _longs(step)}
    return node, {"x": (kind, [2, 5])}, held, 17


def _norm(op: str, opset: int, **attributes: Any) -> Any:
    node = helper.make_node(op, ["x", "scale", "bias"], ["y"], **attributes)
    return node, {"x": (FLOAT, [2, 4, 1])}, {"scale": _ones(4), "bias": _ones(4)}, opset


def _of(op: str, opset: int, given: Given, held: Mapping[str, Any], **attributes: Any) -> Any:
    return helper.make_node(op, [*given, *held], ["y"], **attributes), given, held, opset


CASES: dict[str, Any] = {
    "stride over kernel": _conv_transpose(strides=[3, 5], auto_pad="SAME_UPPER"),
    "one axis grows": _conv_transpose(strides=[3, 2], output_shape=[9, 7]),
    "one axis grows, upper": _conv_transpose(
        strides=[3, 2], output_shape=[9, 7], auto_pad="SAME_UPPER"
    ),
    "start before the first": _slice(-9, -9, -1),
    "backwards from before": _slice(-9, -99, -2),
    "backwards, unsigned": _slice(4, 0, -2, UINT64),
    "all backwards, unsigned": _slice(4, -99, -1, UINT32),
    "picked, unsigned": _of(
        "Compress", 11, {"x": (UINT32, [3, 4])}, {"which": np.array([True, False, True])}, axis=1
    ),
    "one place, traced": _of("Gather", 13, {"x": (FLOAT, [3, 4]), "at": (INT32, [])}, {}, axis=1),
    "least, unsigned": _of("Min", 13, {"x": (UINT64, [3]), "z": (UINT64, [3])}, {}),
    "shifted, unsigned": _of(
        "BitShift", 11, {"x": (UINT64, [3])}, {"by": np.array([0, 1, 3], np.uint64)},
        direction="RIGHT",
    ),
    "slope, unsigned": _of("PRelu", 16, {"x": (UINT32, [3])}, {"slope": np.array([2], "uint32")}),
    "slope per channel, whole": _of(
        "PRelu", 16, {"x": (INT32, [2, 3, 4])}, {"slope": np.array([[2], [3], [-1]], np.int32)}
    ),
    "one slope": _of("PRelu", 16, {"x": (FLOAT, [3])}, {"slope": np.float32(0.5)}),
    "planes of one element": _norm("InstanceNormalization", 17),
    "groups of one element": _norm("GroupNormalization", 21, num_groups=4),
    "whole numbers between": _of(
        "Resize", 13, {"x": (UINT8, [1, 1, 4, 3])},
        {"": None, "scales": np.array([1, 1, 2.5, 1.3], np.float32)}, mode="linear",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_equals_onnxruntime(case: str, tmp_path: Path) -> None:
    import onnxruntime as ort

    node, given, held, opset = CASES[case]
    held = {name: np.asarray(a) for name, a in held.items() if name}
    proto = model([node], given, ["y"], held, opset)
    proto.graph.output[0].type.tensor_type.elem_type = given["x"][0]
    rng = np.random.default_rng(0)
    fed = {
        n: np.asarray(rng.integers(0, 100, shape) if n == "x" else np.full(shape, 2)).astype(
            helper.tensor_dtype_to_np_dtype(kind)
        )
        for n, (kind, shape) in given.items()
    }
    (want,) = ort.InferenceSession(proto.SerializeToString()).run(None, fed)
    tensors = {n: torch.from_numpy(a) for n, a in fed.items()}
    found = run(load(proto, tmp_path).graph, tensors)["y"].numpy()
    assert (found.dtype, found.shape) == (want.dtype, want.shape)
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-3)


def test_sparse_weights(tmp_path: Path) -> None:
    values = numpy_helper.from_array(np.array([1.5, 2], np.float32), "w")
    places = numpy_helper.from_array(np.array([[0, 1], [2, 0]], np.int64), "places")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    proto = model(nodes, {"x": (FLOAT, [2, 3])}, ["y"])
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [3, 3]))
    x = torch.arange(6.0).reshape(2, 3)
    want = torch.tensor([[4, 0, 0], [10, 4.5, 0]])
    torch.testing.assert_close(run(load(proto, tmp_path).graph, {"x": x})["y"], want)


def test_dilated_pools_of_equal_size_are_refused(tmp_path: Path) -> None:
    same: dict[str, Any] = {"kernel_shape": [3], "dilations": [2], "auto_pad": "SAME_UPPER"}
    node = helper.make_node("MaxPool", ["x"], ["y"], **same)
    with pytest.raises(FrontendError, match="SAME with dilations"):
        load(model([node], {"x": (FLOAT, [1, 2, 9])}, ["y"]), tmp_path)
