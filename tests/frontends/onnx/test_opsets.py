"""Old forms of ops, where attributes became inputs or defaults changed; numpy by hand judges."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from pipec.errors import FrontendError
from pipec.frontends.onnx.evaluation import evaluate
from pipec.frontends.onnx.module import OnnxModule
from pipec.frontends.onnx.reader import ModelFile
from pipec.frontends.onnx.values import Value
from pipec.graph.arrays import Array
from tests.frontends.onnx.models import model

X = np.random.default_rng(0).standard_normal((2, 3, 4, 6)).astype(np.float32)
V = np.array([10, 20, 30], np.float32)
FLAT = X.reshape(2, -1)


@dataclass(frozen=True)
class Old:
    """One node in an old form, its other inputs as initialisers, and what it must yield."""

    op: str
    opset: int
    want: Callable[[], Sequence[Array]]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    others: Sequence[Array] = ()
    x: Array = field(default_factory=lambda: X)

    def __str__(self) -> str:
        mode = self.attributes.get("mode", "")
        return f"{self.op}-{self.opset}{mode}"


def softmax(x: Array, axis: int) -> Array:
    e = np.exp(x - x.max(axis, keepdims=True))
    result: Array = e / e.sum(axis, keepdims=True)
    return result


def hardmax(x: Array) -> Array:
    hot: Array = np.eye(x.shape[1], dtype=x.dtype)[x.argmax(1)]
    return hot


def linear(x: Array, axis: int, scale: float) -> Array:
    """Linear interpolation at ``i / scale``, the edge repeated."""
    at = np.arange(int(x.shape[axis] * scale)) / scale
    low = np.floor(at).astype(int)
    high = np.minimum(low + 1, x.shape[axis] - 1)
    shape = [-1 if k == axis else 1 for k in range(x.ndim)]
    part = (at - low).reshape(shape)
    result: Array = np.take(x, low, axis) * (1 - part) + np.take(x, high, axis) * part
    return result


def twice(x: Array) -> Array:
    return x.repeat(2, 2).repeat(2, 3)


LONG = np.array([1, 1, 2, 2], np.float32)
LINEAR = [linear(linear(X, 2, 2), 3, 1.5)]
SCALES = np.array([1, 1, 2, 1.5], np.float32)

CASES = [
    Old("Add", 6, lambda: [X + V[:, None, None]], {"broadcast": 1, "axis": 1}, [V]),
    Old("Mul", 6, lambda: [X * V[:, None, None]], {"broadcast": 1, "axis": 1}, [V]),
    Old("Greater", 6, lambda: [np.greater(X, V[:, None, None])], {"broadcast": 1, "axis": 1}, [V]),
    Old("Softmax", 7, lambda: [softmax(FLAT, 1).reshape(X.shape)]),
    Old("Softmax", 12, lambda: [softmax(X.reshape(6, -1), 1).reshape(X.shape)], {"axis": 2}),
    Old("Softmax", 13, lambda: [softmax(X, -1)]),
    Old("LogSoftmax", 11, lambda: [np.log(softmax(FLAT, 1)).reshape(X.shape)]),
    Old("Hardmax", 11, lambda: [hardmax(FLAT).reshape(X.shape)]),
    Old("Clip", 7, lambda: [X.clip(-0.5, 0.25)], {"min": -0.5, "max": 0.25}),
    Old("Clip", 10, lambda: [X.clip(None, 0.25)], {"max": 0.25}),
    Old(
        "Pad",
        7,
        lambda: [np.pad(X, [(0, 0), (0, 0), (1, 3), (2, 4)], constant_values=5)],
        {"pads": [0, 0, 1, 2, 0, 0, 3, 4], "value": 5.0},
    ),
    Old(
        "Pad",
        10,
        lambda: [np.pad(X, [(0, 0), (0, 0), (1, 2), (0, 0)], mode="reflect")],
        {"pads": [0, 0, 1, 0, 0, 0, 2, 0], "mode": "reflect"},
    ),
    Old(
        "Slice",
        9,
        lambda: [X[:, :, 1:-1, 2:6]],
        {"starts": [1, 2], "ends": [-1, 99], "axes": [2, 3]},
    ),
    Old("Squeeze", 11, lambda: [X[:1, :, :1].squeeze((0, 2))], {"axes": [0, 2]}, x=X[:1, :, :1]),
    Old("Unsqueeze", 11, lambda: [X[None, :, :, None]], {"axes": [0, 3]}),
    Old(
        "Slice",
        10,
        lambda: [X[..., 2::-1]],
        {},
        [np.array([k]) for k in (2, 2**31 - 1, -1, -1)],
    ),
    Old("Split", 7, lambda: [X[..., :1], X[..., 1:]], {"axis": 3, "split": [1, 5]}),
    Old("Split", 12, lambda: [X[..., :3], X[..., 3:]], {"axis": 3}),
    Old("ReduceSum", 11, lambda: [X.sum((1, 3))], {"axes": [1, 3], "keepdims": 0}),
    Old("ReduceMax", 11, lambda: [X.max(-1, keepdims=True)], {"axes": [-1]}),
    Old("ReduceMean", 7, lambda: [X.mean(keepdims=True)]),
    Old("Upsample", 7, lambda: [twice(X)], {"scales": [1.0, 1.0, 2.0, 2.0]}),
    Old("Upsample", 9, lambda: [twice(X)], {}, [LONG]),
    Old("Upsample", 9, lambda: LINEAR, {"mode": "linear"}, [SCALES]),
    Old("Resize", 10, lambda: [twice(X)], {}, [LONG]),
    Old("Resize", 10, lambda: LINEAR, {"mode": "linear"}, [SCALES]),
    Old("Dropout", 7, lambda: [X, np.ones_like(X)], {"ratio": 0.3}),
    Old("Dropout", 10, lambda: [X, np.ones_like(X, dtype=bool)], {"ratio": 0.3}),
    Old("TopK", 9, lambda: [-np.sort(-X)[..., :2], np.argsort(-X)[..., :2]], {"k": 2}),
    Old("Reshape", 4, lambda: [X.reshape(2, 3, 24)], {"shape": [0, 3, -1]}),
    Old("Cast", 5, lambda: [X.astype(np.int32)], {"to": "INT32"}),
    Old("Cast", 6, lambda: [X.astype(np.float64)], {"to": TensorProto.DOUBLE}),
    Old("Concat", 3, lambda: [np.concatenate([X, X], 1)], {}, [X]),
    Old("Flatten", 1, lambda: [X.reshape(6, 24)], {"axis": 2}),
    Old("PRelu", 6, lambda: [np.where(X < 0, X * V[:, None, None], X)], {}, [V]),
    Old("Tile", 5, lambda: [np.tile(X, (1, 1, 2, 1))], {}, [np.array(2.0), np.array(2.0)]),
    Old("ArgMax", 11, lambda: [X.argmax(2)], {"axis": 2, "keepdims": 0}),
    Old("Sum", 6, lambda: [X + X], {}, [X]),
    Old(
        "BatchNormalization",
        8,
        lambda: [(X - 1) / np.sqrt(4 + 1e-5) * V[:, None, None] + 3],
        {},
        [V, np.full(3, 3, np.float32), np.ones(3, np.float32), np.full(3, 4, np.float32)],
    ),
    Old(
        "Scatter",
        9,
        lambda: [np.stack([np.full((3, 4, 6), 7, np.float32), X[1]])],
        {"axis": 0},
        [np.zeros((1, 3, 4, 6), np.int64), np.full((1, 3, 4, 6), 7, np.float32)],
    ),
    Old("Gemm", 6, lambda: [FLAT @ FLAT.T * 2 + 1], {"alpha": 2.0, "transB": 1, "broadcast": 1},
        [FLAT, np.ones(1, np.float32)], FLAT),
]  # fmt: skip


KNOWN = [
    *(case for case in CASES if case.opset >= 7 and case.op != "Dropout"),
    Old("BatchNormalization", 9, lambda: [(X - 1) / np.sqrt(4.1) * V[:, None, None] + 3],
        {"epsilon": 0.1}, [V, *(np.full(3, n, np.float32) for n in (3, 1, 4))]),
    Old("LRN", 13, lambda: [X / (X**2 * 0.1 + 1.5) ** 0.6],
        {"size": 1, "alpha": 0.1, "beta": 0.6, "bias": 1.5}),
    Old("LpNormalization", 1, lambda: [X / np.abs(X).sum(1, keepdims=True)], {"axis": 1, "p": 1}),
    Old("MaxPool", 12, lambda: [X], {"kernel_shape": [1, 1], "auto_pad": "SAME_UPPER"}),
    Old("Cast", 19, lambda: [np.full(X.shape, 448, ml_dtypes.float8_e4m3fn)],
        {"to": TensorProto.FLOAT8E4M3FN}, x=np.full_like(X, 1e9)),
    Old("ReduceSumSquare", 11, lambda: [np.array([[14]], np.int32)], {"axes": [1]},
        x=np.array([[1, 2, 3]], np.int32)),
    Old("Slice", 13, lambda: [X[:, :, 2::-1]], {},
        [np.array([k]) for k in (2, 2**63 - 1, 2, -1)]),
]  # fmt: skip


@pytest.mark.parametrize("case", KNOWN, ids=str)
def test_a_known_value_is_what_a_node_yields(case: Old) -> None:
    values = {f"c{k}": a for k, a in enumerate([case.x, *case.others])}
    wanted = case.want()
    results = [f"y{k}" for k in range(len(wanted))]
    node = helper.make_node(case.op, list(values), results, **case.attributes)
    constants = [
        helper.make_node("Constant", [], [n], value=numpy_helper.from_array(a, n))
        for n, a in values.items()
    ]
    known = evaluate(ModelFile(model([*constants, node], {}, results, {}, case.opset)), {}).known
    for name, want in zip(results, wanted, strict=True):
        exact = want.astype(np.float32) if want.dtype == np.float64 else want
        assert known[name].dtype == exact.dtype
        assert known[name].shape == want.shape
        np.testing.assert_allclose(known[name].astype(float), want.astype(float), 1e-5, 1e-5)


def evaluated(case: Old, outputs: int) -> list[Array]:
    names = [f"c{k}" for k in range(len(case.others))]
    results = [f"y{k}" for k in range(outputs)]
    node = helper.make_node(case.op, ["x", *names], results, **case.attributes)
    others = {
        n: a if a.dtype != np.float64 else a.astype(np.float32)
        for n, a in zip(names, case.others, strict=True)
    }
    inputs = {"x": (TensorProto.FLOAT, list(case.x.shape))}
    proto = model([node], inputs, results, others, case.opset)
    given: dict[str, Value] = {"x": torch.from_numpy(case.x.copy())}
    evaluation = evaluate(ModelFile(proto), given)
    assert set(evaluation.ways.values()) == {"native"}
    found = OnnxModule(evaluation)(given["x"])
    return [t.detach().numpy() for t in found]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_old_form(case: Old) -> None:
    wanted = case.want()
    found = evaluated(case, len(wanted))
    for have, want in zip(found, wanted, strict=True):
        assert have.shape == want.shape
        np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-5)
        assert have.dtype.kind == want.dtype.kind


@pytest.mark.parametrize("op", ["Dropout", "BatchNormalization"])
def test_training_modes_of_the_first_opsets_are_refused(op: str) -> None:
    others = [V] * 4 if op == "BatchNormalization" else []
    with pytest.raises(FrontendError, match="is_test"):
        evaluated(Old(op, 6, lambda: [X], {}, others), 1)
