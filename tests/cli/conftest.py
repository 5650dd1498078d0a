"""Fixtures of the command line's tests."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.cli.running import Pipec


@pytest.fixture
def pipec(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Pipec:
    return Pipec(monkeypatch, capsys)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Four Gemm + Relu in a row, input ``x`` [batch, 8]; the batch is named."""
    return write_mlp(tmp_path / "mlp.onnx")


def write_mlp(path: Path, batch: int | str = 2, layers: int = 4) -> Path:
    rng = np.random.default_rng(0)
    nodes, weights, value = [], [], "x"
    for k in range(layers):
        array = rng.normal(size=(8, 8)).astype(np.float32)
        weights.append(numpy_helper.from_array(array, f"w{k}"))
        nodes.append(helper.make_node("MatMul", [value, f"w{k}"], [f"m{k}"], name=f"matmul_{k}"))
        nodes.append(helper.make_node("Relu", [f"m{k}"], [f"r{k}"], name=f"relu_{k}"))
        value = f"r{k}"
    graph = helper.make_graph(
        nodes,
        "mlp",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 8])],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, [batch, 8])],
        weights,
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path
