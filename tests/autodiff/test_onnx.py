"""A model is trained from its ONNX file."""

import contextlib
import io
import warnings
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from pipec.autodiff.differentiate import differentiate
from pipec.errors import GraphError
from pipec.frontends.base import LoadOptions
from pipec.frontends.load import load
from pipec.graph.ir import Graph, InputKind, OutputKind
from pipec.runtime.executor import Settings
from pipec.runtime.runner import LocalPipeline
from tests.autodiff.chain import backward, chained, cut, forward, worst
from tests.runtime.pipelines import scheduled, staged_graph

LOSS = """
import torch

def loss():
    return torch.nn.functional.cross_entropy, torch.tensor([0, 2])
"""


def with_loss(path: Path) -> Graph:
    """The file with a cross entropy of two targets behind it."""
    path.with_name("target.py").write_text(LOSS)
    return load(
        str(path), LoadOptions(training=True, loss=f"{path.with_name('target.py')}:loss")
    ).graph


def attention_file(path: Path) -> nn.Module:
    """MatMul, Softmax, LayerNormalization, Gelu: nodes as an exporter writes them."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v = (nn.Parameter(torch.randn(8, 8) / 3) for _ in range(3))
            self.w, self.gain = nn.Parameter(torch.randn(8, 3) / 3), nn.Parameter(torch.ones(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scores = torch.softmax(x @ self.q @ (x @ self.k).transpose(-1, -2), -1)
            y = F.layer_norm(x + scores @ (x @ self.v), (8,), self.gain, torch.zeros(8))
            return (F.gelu(y) @ self.w).mean(1)

    module = Block()
    nodes = [
        helper.make_node("MatMul", ["x", "q"], ["xq"]),
        helper.make_node("MatMul", ["x", "k"], ["xk"]),
        helper.make_node("Transpose", ["xk"], ["kt"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["xq", "kt"], ["s"]),
        helper.make_node("Softmax", ["s"], ["p"], axis=-1),
        helper.make_node("MatMul", ["x", "v"], ["xv"]),
        helper.make_node("MatMul", ["p", "xv"], ["a"]),
        helper.make_node("Add", ["x", "a"], ["r"]),
        helper.make_node("LayerNormalization", ["r", "gain", "zero"], ["n"], axis=-1),
        helper.make_node("Gelu", ["n"], ["g"]),
        helper.make_node("MatMul", ["g", "w"], ["o"]),
        helper.make_node("ReduceMean", ["o", "axes"], ["y"], keepdims=0),
    ]
    weights = {n: p.detach() for n, p in module.named_parameters()}
    save(path, nodes, {**weights, "zero": torch.zeros(8), "axes": torch.tensor([1])}, [2, 5, 8])
    return module


def cnn_file(path: Path) -> nn.Module:
    """Conv, Relu, MaxPool, Gemm."""
    module = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 3)
    )
    nodes = [
        helper.make_node("Conv", ["x", "0.weight", "0.bias"], ["c"], pads=[1] * 4),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["m"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["m"], ["f"]),
        helper.make_node("Gemm", ["f", "4.weight", "4.bias"], ["y"], transB=1),
    ]
    save(path, nodes, {n: p.detach() for n, p in module.named_parameters()}, [2, 3, 8, 8])
    return module


def save(
    path: Path, nodes: list[onnx.NodeProto], weights: dict[str, torch.Tensor], shape: list[int]
) -> None:
    held = [numpy_helper.from_array(w.numpy(), n) for n, w in weights.items()]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "model", [x], [y], held)
    opset = [helper.make_opsetid("", 20)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=10), path)


@pytest.mark.parametrize("write", [attention_file, cnn_file])
def test_gradients_of_a_file_are_those_of_the_same_module(
    write: Callable[[Path], nn.Module], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    path = tmp_path / "model.onnx"
    module = write(path)
    target = torch.tensor([0, 2])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = with_loss(path)
    shape = graph.node(graph.inputs_of(InputKind.INPUT)[0].node).meta["val"].shape
    x = torch.randn(shape)
    chain = chained(graph, 3)
    (loss,) = graph.outputs_of(OutputKind.LOSS)
    names = [i.name for i in graph.inputs_of(InputKind.INPUT)]
    assert names == ["x", "target"]
    saved, values, _ = forward(chain, dict(zip(names, (x, target), strict=True)))
    want = F.cross_entropy(module(x), target)
    want.backward()
    torch.testing.assert_close(values[loss.name], want.detach())
    grads = backward(chain, saved, loss.name, torch.ones(()), split=False)
    expected = {n: p.grad for n, p in module.named_parameters() if p.grad is not None}
    assert expected.keys() == grads.keys() - {"zero"}
    assert worst(grads, expected) < 1e-5


def train_beside(
    graph: Graph,
    stages: int,
    module: nn.Module,
    optimizer: Callable[..., torch.optim.Optimizer],
    xs: torch.Tensor,
    targets: torch.Tensor,
) -> dict[str, torch.Tensor]:
    """Train a file's graph and its module on four microbatches a step: the graph's weights."""
    plan = staged_graph(graph, cut(graph, stages))
    pipeline = LocalPipeline(
        plan, lambda k: {"x": xs[k], "target": targets[k]}, Settings(optimizer),
        schedule=scheduled(plan, "1f1b", 4),
    )  # fmt: skip
    losses, update = pipeline.run(len(xs) // 4), optimizer(module.parameters())
    for step in range(len(xs) // 4):
        update.zero_grad()
        for k in range(4 * step, 4 * step + 4):
            loss = F.cross_entropy(module(xs[k]), targets[k])
            (loss / 4).backward()
            assert losses[k] == pytest.approx(float(loss.detach()), abs=1e-5)
        update.step()
    found: dict[str, torch.Tensor] = pipeline.state_dict()
    return found


def test_a_file_is_trained_like_the_same_module(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = cnn_file(tmp_path / "model.onnx")
    xs, targets = torch.randn(8, 2, 3, 8, 8), torch.randint(0, 3, (8, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = with_loss(tmp_path / "model.onnx")
    weights = train_beside(graph, 3, module, lambda p: torch.optim.Adam(p, lr=0.01), xs, targets)
    assert worst(weights, module.state_dict()) < 1e-4


class Noted(nn.Module):
    """A table, a constant and scales, which are no parameters; a number, which is one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(8, 2, batch_first=True)
        self.end, self.gain = nn.Linear(8, 3), nn.Parameter(torch.tensor(1.5))
        self.table: torch.Tensor
        self.register_buffer("table", torch.randn(5, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * self.table
        y = y + self.layer(y, y, y, need_weights=False)[0] * torch.tensor([1.0, 2.0] * 4)
        result: torch.Tensor = self.gain * self.end(y).mean(1)
        return result


def test_what_torch_exported_is_trained_as_its_module(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Noted().eval()
    for p in module.parameters():  # equal weights of an export are one
        nn.init.normal_(p, std=0.3)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        path = tmp_path / "model.onnx"
        torch.onnx.export(module, (torch.randn(2, 5, 8),), path, input_names=["x"], dynamo=True)
        graph = with_loss(path)
    xs, targets = torch.randn(12, 2, 5, 8), torch.randint(0, 3, (12, 2))
    weights = train_beside(graph, 2, module, lambda p: torch.optim.SGD(p, lr=0.1), xs, targets)
    assert torch.equal(weights["table"], module.table)
    assert weights["gain"] == pytest.approx(float(module.gain.detach()), abs=1e-5)


class Folded(nn.Module):
    """A product of a parameter and a buffer, and one of a buffer and a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(8, 3))
        self.mask: torch.Tensor
        self.shift: torch.Tensor
        self.register_buffer("mask", torch.rand(8, 3))
        self.register_buffer("shift", torch.randn(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ (self.w * self.mask) + self.shift * torch.tensor([1.0, 2.0, 3.0])


def test_what_an_exporter_folds_is_trained_where_a_parameter_is_in_it(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        torch.onnx.export(Folded(), (torch.randn(2, 8),), path, input_names=["x"], dynamo=True)
    found = with_loss(path).inputs_of(InputKind.PARAMETER, InputKind.BUFFER)
    shapes = {i.kind: tuple(with_loss(path).weights[i.name].shape) for i in found}
    assert shapes == {InputKind.PARAMETER: (8, 3), InputKind.BUFFER: (3,)}


@pytest.mark.parametrize("op", ["SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"])
def test_weights_of_classes_in_a_files_loss_are_not_trained(op: str, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["scores"]),
        helper.make_node("LogSoftmax", ["scores"], ["logs"], axis=-1),
        helper.make_node(op, ["logs", "target", "classes"], ["y"], ignore_index=2),
    ]
    torch.manual_seed(0)
    w, classes, target = torch.randn(8, 3), torch.tensor([0.5, 2, 1]), torch.tensor([1, 2, 0, 1])
    save(tmp_path / "net.onnx", nodes, {"w": w, "classes": classes, "target": target}, [4, 8])
    graph = load(str(tmp_path / "net.onnx"), LoadOptions(training=True)).graph
    chain, x = chained(graph, 1), torch.randn(4, 8)
    saved, values, _ = forward(chain, {"x": x})
    grads = backward(chain, saved, "y", torch.ones(()), split=False)
    loss = F.cross_entropy(x @ w.requires_grad_(), target, classes, ignore_index=2)
    torch.testing.assert_close(values["y"], loss.detach())
    assert grads.keys() == {"w"}
    torch.testing.assert_close(grads["w"], torch.autograd.grad(loss, w)[0])


def test_a_node_that_an_engine_runs_is_named_where_its_gradient_is_needed(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Mul", ["x", "gain"], ["scaled"]),
        helper.make_node(
            "Resize", ["scaled", "", "s"], ["r"], name="small", mode="linear", antialias=1
        ),
        helper.make_node("ReduceMean", ["r", "axes"], ["y"], keepdims=0),
    ]
    weights = {"gain": torch.ones(3, 1, 1), "s": torch.tensor([1, 1, 0.5, 0.5])}
    save(tmp_path / "net.onnx", nodes, {**weights, "axes": torch.tensor([2, 3])}, [2, 3, 4, 4])
    graph = with_loss(tmp_path / "net.onnx")
    with pytest.raises(GraphError, match="cannot be differentiated\n  where: Resize small"):
        differentiate(graph, [graph])
