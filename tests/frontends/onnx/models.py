"""Small ONNX models for tests, and how the front end and onnxruntime run them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

from pipec.frontends.base import Loaded, LoadOptions
from pipec.frontends.onnx import OnnxFrontend
from pipec.graph.ir import Graph

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, tuple[int, Sequence[int | str]]],
    outputs: Sequence[str],
    initializers: Mapping[str, np.ndarray[Any, Any]] | None = None,
    opset: int = 17,
) -> onnx.ModelProto:
    """A model; inputs as name to (element type, shape)."""
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info(n, t, s) for n, (t, s) in inputs.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs],
        [numpy_helper.from_array(a, n) for n, a in (initializers or {}).items()],
    )
    built = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    built.ir_version = 9
    return built


def load(proto: onnx.ModelProto, folder: Path, **options: Any) -> Loaded:
    path = folder / "model.onnx"
    onnx.save(proto, path)
    return OnnxFrontend().load(str(path), LoadOptions(**options))


def run(graph: Graph, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    args = [graph.weights[i.name] if i.kind.is_weight else inputs[i.name] for i in graph.inputs]
    with torch.no_grad():
        return dict(zip([o.name for o in graph.outputs], graph.module(*args), strict=True))


def worst(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> float:
    """Largest difference, relative to the largest number of the output."""
    assert found.keys() == wanted.keys()
    errors = [0.0]
    for name, want in wanted.items():
        assert found[name].shape == want.shape
        assert found[name].dtype == want.dtype
        a, b = found[name].double(), want.double()
        scale = max(1e-30, float(b.abs().max())) if b.numel() else 1.0
        errors.append(float((a - b).abs().max()) / scale if b.numel() else 0.0)
    return max(errors)
