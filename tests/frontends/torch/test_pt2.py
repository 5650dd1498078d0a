"""Exported programs: read only on trust, and then the same graph as the module's own."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from pipec.errors import FrontendError
from pipec.frontends.base import LoadOptions
from pipec.frontends.load import load
from pipec.frontends.torch_module import from_module
from pipec.graph.ir import OutputKind, op_name, origin
from tests.frontends.torch.running import run

TRUST = LoadOptions(trust=True)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

    def forward(self, image: Tensor, scale: Tensor, flag: bool = True) -> dict[str, Tensor]:
        y = self.norm(self.conv(image)).relu()
        with torch.no_grad():
            gate = y.exp()
        return {"features": y * gate if flag else y, "scaled": y.sum() * scale}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, nn.Module, dict[str, Tensor]]:
    torch.manual_seed(0)
    module = Net().eval()
    inputs = {"image": torch.randn(2, 3, 6, 6), "scale": torch.tensor(2.0)}
    path = tmp_path_factory.mktemp("pt2") / "net.pt2"
    torch.export.save(torch.export.export(module, (inputs["image"], inputs["scale"])), path)
    return path, module, inputs


def test_same_graph_as_the_module(saved: tuple[Path, nn.Module, dict[str, Tensor]]) -> None:
    path, module, inputs = saved
    loaded = load(str(path), TRUST)
    own = from_module(module, inputs)
    assert list(map(op_name, loaded.graph.calls)) == list(map(op_name, own.graph.calls))
    assert [str(origin(n)) for n in loaded.graph.calls] == [str(origin(n)) for n in own.graph.calls]
    assert {k: v.shape for k, v in loaded.example_inputs.items()} == {
        k: v.shape for k, v in inputs.items()
    }
    got, want = run(loaded.graph, inputs), own.original(inputs)
    assert got.keys() == want.keys() == loaded.original(inputs).keys()
    for key in want:
        torch.testing.assert_close(got[key], want[key])
        torch.testing.assert_close(loaded.original(inputs)[key], want[key])


def test_it_must_be_trusted(saved: tuple[Path, nn.Module, dict[str, Tensor]]) -> None:
    with pytest.raises(FrontendError, match="can run any code") as caught:
        load(str(saved[0]))
    assert "--trust" in str(caught.value)


def test_a_program_without_examples_gets_some(tmp_path: Path) -> None:
    program = torch.export.export(nn.Linear(4, 2), (torch.ones(3, 4),))
    program.example_inputs = None
    torch.export.save(program, tmp_path / "bare.pt2")
    loaded = load(str(tmp_path / "bare.pt2"), TRUST)
    assert loaded.example_inputs["input"].shape == (3, 4)


def test_damage_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "noise.pt2").write_bytes(b"PK\x03\x04 and then noise")
    with pytest.raises(FrontendError, match="cannot be read"):
        load(str(tmp_path / "noise.pt2"), TRUST)
    with pytest.raises(FrontendError, match="no such file"):
        load(str(tmp_path / "absent.pt2"), TRUST)


def test_training_needs_the_loss_inside(tmp_path: Path) -> None:
    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            loss: Tensor = self.inner(x).square().mean()
            return loss

    path = str(tmp_path / "loss.pt2")
    torch.export.save(torch.export.export(WithLoss(), (torch.ones(3, 4),)), path)
    graph = load(path, LoadOptions(trust=True, training=True)).graph
    assert [o.kind for o in graph.outputs] == [OutputKind.LOSS]
    path = str(tmp_path / "plain.pt2")
    torch.export.save(torch.export.export(nn.Linear(4, 2), (torch.ones(3, 4),)), path)
    with pytest.raises(FrontendError, match="its one output is the loss"):
        load(path, LoadOptions(trust=True, training=True))
