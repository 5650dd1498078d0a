"""The nine CNNs of the onnx package with random weights under the same names, against onnxruntime.

Their own weights are constant, so that nearly any input gives the stored output.
"""

import math
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, numpy_helper

from pipec.frontends.base import LoadOptions
from pipec.frontends.onnx import OnnxFrontend
from pipec.frontends.onnx.evaluation import evaluate
from pipec.frontends.onnx.frontend import Original, graph_of
from pipec.frontends.onnx.inputs import examples, input_types
from pipec.frontends.onnx.reader import ModelFile
from pipec.graph.ir import InputKind, Source, origin
from tests.frontends.onnx.models import LIGHT, run, worst

NAMES = sorted(p.stem.removeprefix("light_") for p in LIGHT.glob("light_*.onnx"))


def random_weights(proto: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """The model with every float weight, initialiser or ConstantOfShape, replaced."""
    rng = np.random.default_rng(seed)
    block = rng.standard_normal(2**20).astype(np.float32)
    variances = {n.input[4] for n in proto.graph.node if n.op_type == "BatchNormalization"}
    shapes = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer if t.data_type == 7}

    def weight(name: str, shape: tuple[int, ...]) -> TensorProto:
        start = int(rng.integers(block.size))
        numbers = np.resize(np.roll(block, start), shape)
        numbers *= math.sqrt(2 / math.prod(shape[1:])) if len(shape) > 1 else 0.3
        return numpy_helper.from_array(
            np.abs(numbers) + 0.5 if name in variances else numbers, name
        )

    for t in proto.graph.initializer:
        if t.data_type == TensorProto.FLOAT:
            t.CopyFrom(weight(t.name, tuple(t.dims)))
    made = [n for n in proto.graph.node if n.op_type == "ConstantOfShape"]
    for n in made:
        proto.graph.initializer.append(weight(n.output[0], tuple(shapes[n.input[0]])))
        proto.graph.node.remove(n)
    proto.ir_version = 8
    return proto


@pytest.mark.parametrize("name", NAMES)
def test_random_weights_match_onnxruntime(name: str) -> None:
    proto = random_weights(onnx.load(LIGHT / f"light_{name}.onnx"), seed=len(name))
    model = ModelFile(proto)
    inputs = examples(model, input_types(model, LoadOptions()), {}, seed=1)
    evaluation = evaluate(model, inputs)
    graph = graph_of(evaluation, Source("onnx", name))
    fed = {n: v for n, v in inputs.items() if isinstance(v, torch.Tensor)}
    wanted = Original(model, inputs)(fed)
    assert all(float(v.std()) > 0 for v in wanted.values())
    assert worst(run(graph, fed), wanted) < 1e-5
    assert set(evaluation.ways.values()) <= {"native", "structural", "folded"}


@pytest.mark.parametrize("name", ["resnet50", "squeezenet"])
def test_the_files_as_they_are(name: str) -> None:
    path = LIGHT / f"light_{name}.onnx"
    loaded = OnnxFrontend().load(str(path), LoadOptions())
    graph, proto = loaded.graph, onnx.load(path)
    assert worst(run(graph, loaded.example_inputs), loaded.original(loaded.example_inputs)) < 1e-6
    for node in graph.calls:
        index = origin(node).index
        assert index is not None
        assert origin(node).op == proto.graph.node[index].op_type
    names = {n for node in proto.graph.node for n in (*node.input, *node.output)}
    assert {i.name for i in graph.inputs} <= names
    assert graph.source.location == str(path)


def test_weights_in_constant_nodes_are_parameters_and_statistics_are_buffers() -> None:
    loaded = OnnxFrontend().load(str(LIGHT / "light_resnet50.onnx"), LoadOptions())
    kinds = [i.kind for i in loaded.graph.inputs]
    assert kinds.count(InputKind.PARAMETER) == 161
    assert kinds.count(InputKind.BUFFER) == 106
    assert kinds.count(InputKind.CONSTANT) == 0


def test_a_file_is_traced_the_same_way_twice() -> None:
    path = Path(LIGHT / "light_squeezenet.onnx")
    graphs = [OnnxFrontend().load(str(path), LoadOptions()).graph for _ in range(2)]
    assert str(graphs[0].module.graph) == str(graphs[1].module.graph)
    assert graphs[0].source == graphs[1].source
