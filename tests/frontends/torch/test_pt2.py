"""Exported programs: read only on trust, and then the same graph as the module's own."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipec.errors import FrontendError
from pipec.frontends.base import LoadOptions
from pipec.frontends.load import load, reload
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
    with pytest.raises(FrontendError, match="no such model file"):
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


class Summing(nn.Module):
    """Two inputs of one batch, a table that is read twice, a region without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(11, 6), nn.Linear(6, 11, bias=False)
        self.head.weight = self.table.weight
        self.mix = nn.Linear(6, 6)

    def forward(self, ids: Tensor, start: Tensor, scale: float) -> Tensor:
        with torch.no_grad():
            steps = torch.arange(ids.shape[1]) * 0.1
        hidden = self.mix(self.table(ids) + steps[None, :, None]).cumsum(1) + start[:, None, :]
        loss: Tensor = (self.head(hidden) * scale * hidden.detach().mean()).square().mean()
        return loss


def open_program(
    path: Path, *, examples: bool = True
) -> tuple[nn.Module, tuple[Tensor, Tensor, float]]:
    torch.manual_seed(0)
    module, batch = Summing(), torch.export.Dim("batch", min=2, max=9)
    inputs = (torch.randint(0, 11, (3, 5)), torch.randn(3, 6), 2.0)
    program = torch.export.export(
        module,
        inputs,
        dynamic_shapes={
            "ids": {0: batch, 1: torch.export.Dim.DYNAMIC},
            "start": {0: batch},
            "scale": None,
        },
        strict=False,
    )
    if not examples:
        program.example_inputs = None
    torch.export.save(program, path)
    return module, inputs


@pytest.mark.parametrize("training", [False, True])
def test_open_dimensions_are_those_of_the_example(*, training: bool, tmp_path: Path) -> None:
    module, inputs = open_program(tmp_path / "open.pt2")
    options = replace(TRUST, training=training)
    found = load(str(tmp_path / "open.pt2"), options)
    static = tmp_path / "static.pt2"
    torch.export.save(torch.export.export(module, inputs, strict=False), static)
    want = load(str(static), options)
    assert [op_name(n) for n in found.graph.calls] == [op_name(n) for n in want.graph.calls]
    assert [origin(n).name for n in found.graph.calls] == [origin(n).name for n in want.graph.calls]
    assert found.graph.tied == want.graph.tied
    (got,) = run(found.graph, found.example_inputs).values()
    assert torch.equal(got, module(*inputs))


def test_a_shape_is_the_size_of_all_inputs_that_share_it(tmp_path: Path) -> None:
    path = tmp_path / "open.pt2"
    module, _ = open_program(path, examples=False)
    planned = load(str(path), TRUST)
    assert [tuple(x.shape) for x in planned.example_inputs.values()] == [(3, 5), (3, 6)]
    found = load(str(path), replace(TRUST, shapes={"ids": (4, 7)}))
    assert [tuple(x.shape) for x in found.example_inputs.values()] == [(4, 7), (4, 6)]
    (got,) = run(found.graph, found.example_inputs).values()
    (want,) = found.original(found.example_inputs).values()
    assert torch.equal(got, want)
    assert torch.equal(got, module(*found.example_inputs.values(), 2.0))
    assert reload(found.graph.source, trust=True).example_inputs["ids"].shape == (4, 7)


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"shapes": {"ids": (1, 5)}}, r"ids, axis 0\n  got:   1 of 1,5\n  want:  2 to 9$"),
        ({"shapes": {"ids": (4, 1)}}, r"ids, axis 1\n  got:   1 of 4,1\n  want:  at least 2$"),
        ({"shapes": {"start": (4, 7)}}, r"start, axis 1\n  got:   7 of 4,7\n  want:  6$"),
        ({"shapes": {"ids": (4,)}}, r"where: ids\n  got:   4\n  want:  2 sizes$"),
        ({"shapes": {"ids": (4, 5), "start": (3, 6)}}, r"axis 0\n  got:   3 of 3,6\n  want:  4$"),
        ({"shapes": {"x": (4, 5)}}, "no such input"),
        ({"bind": {"ids": (4.0,)}}, "cannot be bound"),
    ],
)
def test_shapes_that_a_program_does_not_take(
    told: dict[str, Any], said: str, tmp_path: Path
) -> None:
    open_program(tmp_path / "open.pt2")
    with pytest.raises(FrontendError, match=said):
        load(str(tmp_path / "open.pt2"), replace(TRUST, **told))
