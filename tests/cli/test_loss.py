"""``--loss``: models without a loss of their own are trained by one that the user names."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from safetensors.torch import load_file
from torch import nn

from pipec.frontends.base import LoadOptions
from pipec.frontends.load import load
from pipec.graph.ir import InputKind
from tests.cli.running import Pipec

LOSSES = """
import torch
from torch import nn
from torch.nn import functional as F


def classes():
    return F.cross_entropy, torch.tensor([0, 2])


def both(logits, hidden, target):
    return F.cross_entropy(logits, target) + hidden.square().mean()


def of_two():
    return both, {"target": torch.tensor([0, 2])}


def weighted():
    return nn.CrossEntropyLoss(torch.tensor([0.5, 1.0, 2.0])), torch.tensor([0, 2])


def vector():
    return lambda logits, target: logits.sum(1), torch.tensor([0, 2])


def data(k):
    g = torch.Generator().manual_seed(k)
    return {"x": torch.randn(2, 6, generator=g), "target": torch.randint(3, (2,), generator=g)}


def net():
    return nn.Linear(6, 3), (torch.randn(2, 6),)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Losses, and ONNX files of one layer and of two, the second with its hidden values."""
    place = tmp_path_factory.mktemp("loss")
    (place / "losses.py").write_text(LOSSES)
    generator = np.random.default_rng(0)
    shapes = {"w1": (8, 6), "b1": (8,), "w2": (3, 8), "b2": (3,)}
    held = {n: generator.standard_normal(s).astype(np.float32) / 3 for n, s in shapes.items()}
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["a"], transB=1),
        helper.make_node("Tanh", ["a"], ["hidden"]),
        helper.make_node("Gemm", ["hidden", "w2", "b2"], ["logits"], transB=1),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 6])
    for name, outputs in {"one": ["logits"], "two": ["logits", "hidden"]}.items():
        ends = [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in outputs]
        weights = [numpy_helper.from_array(w, n) for n, w in held.items()]
        graph = helper.make_graph(nodes, name, [x], ends, weights)
        opset = [helper.make_opsetid("", 20)]
        path = place / f"{name}.onnx"
        onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=10), path)
    return place


def as_module(path: Path) -> nn.Sequential:
    """The file's network in torch."""
    held = {w.name: numpy_helper.to_array(w) for w in onnx.load(path).graph.initializer}
    module = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    names = {"0.weight": "w1", "0.bias": "b1", "2.weight": "w2", "2.bias": "b2"}
    module.load_state_dict({n: torch.tensor(held[w]) for n, w in names.items()})
    return module


def test_an_onnx_file_is_trained_by_a_loss_beside_it(pipec: Pipec, place: Path) -> None:
    file, losses, out = place / "one.onnx", place / "losses.py", place / "out"
    pipec(
        "compile", file, "--loss", f"{losses}:classes", "--shape", "x=2,6", "--devices", "2xcpu",
        "--schedule", "1f1b", "--microbatches", "4", "-o", out,
    )  # fmt: skip
    told = pipec("verify", out)
    assert told.code == 0
    assert "verified: 6 values" in told.out
    pipec(
        "run", out, "--local", "--rounds", "2", "--data", f"{losses}:data", "--optimizer",
        "sgd:lr=0.1", "--save", place / "trained.safetensors",
    )  # fmt: skip

    module = as_module(file)
    update = torch.optim.SGD(module.parameters(), lr=0.1)
    for first in (0, 4):
        update.zero_grad()
        for k in range(first, first + 4):
            g = torch.Generator().manual_seed(k)
            x, target = torch.randn(2, 6, generator=g), torch.randint(3, (2,), generator=g)
            (nn.functional.cross_entropy(module(x), target) / 4).backward()
        update.step()
    found = load_file(place / "trained.safetensors")
    torch.testing.assert_close(found["w1"], module.state_dict()["0.weight"])
    torch.testing.assert_close(found["b2"], module.state_dict()["2.bias"])


@pytest.mark.parametrize(
    ("file", "loss", "spared"), [("two", "of_two", set()), ("one", "weighted", {"loss.fn.weight"})]
)
def test_a_loss_of_several_outputs_or_with_weights_of_its_own(
    pipec: Pipec, place: Path, file: str, loss: str, spared: set[str]
) -> None:
    pipec(
        "compile", place / f"{file}.onnx", "--loss", f"{place}/losses.py:{loss}", "--shape",
        "x=2,6", "--devices", "2xcpu", "-o", place / loss,
    )  # fmt: skip
    assert pipec("verify", place / loss).code == 0
    told = LoadOptions(shapes={"x": (2, 6)}, training=True, loss=f"{place}/losses.py:{loss}")
    graph = load(f"{place}/{file}.onnx", told).graph
    assert {i.name for i in graph.inputs if i.kind.is_weight} == {"w1", "b1", "w2", "b2"} | spared


def test_targets_have_the_shapes_that_are_asked_for(place: Path) -> None:
    told = LoadOptions(
        shapes={"x": (5, 6), "target": (5,)}, training=True, loss=f"{place}/losses.py:classes"
    )
    loaded = load(f"{place}/one.onnx", told)
    assert loaded.example_inputs["target"].shape == (5,)
    assert {i.name for i in loaded.graph.inputs_of(InputKind.INPUT)} == {"x", "target"}
    (loss,) = loaded.original(loaded.example_inputs).values()
    want = nn.functional.cross_entropy(
        as_module(place / "one.onnx")(loaded.example_inputs["x"]), loaded.example_inputs["target"]
    )
    torch.testing.assert_close(loss, want.detach())


def test_a_factory_without_a_loss_takes_one(pipec: Pipec, place: Path) -> None:
    losses = place / "losses.py"
    out = place / "net"
    pipec(
        "compile", f"{losses}:net", "--loss", f"{losses}:classes", "--devices", "1xcpu", "-o", out
    )
    assert "loss" in pipec("verify", out).out


@pytest.mark.parametrize(
    ("model", "loss", "said"),
    [
        ("one.onnx", "losses.py:vector", "not one floating point number"),
        ("one.onnx", "losses.py:absent", "no such factory"),
        ("one.onnx", "losses.py:both", "called without arguments"),
        ("one.onnx", "losses.py", "not named"),
        ("one.onnx", "", "--loss path/file.py:function"),
    ],
)
def test_refusals(pipec: Pipec, place: Path, model: str, loss: str, said: str) -> None:
    given = ("--loss", f"{place}/{loss}") if loss else ("--training",)
    told = pipec("compile", place / model, *given, "--shape", "x=2,6", "--devices", "2xcpu")
    assert told.code != 0
    assert said in told.err
