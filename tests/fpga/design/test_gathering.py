"""Upsampling, flips, pads that reflect, repeated values, and norms over groups, on engines."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from pipec.backends.fpga.folding import design_at
from pipec.backends.fpga.lowering.gathering import runs_of
from pipec.backends.fpga.lowering.lower import lower
from pipec.errors import BackendError
from tests.fpga.design.models import graph_of
from tests.fpga.design.numeric import execute


@given(st.lists(st.integers(0, 9), min_size=1, max_size=30))
def test_runs_are_the_positions(positions: list[int]) -> None:
    for down in (False, True):
        runs = runs_of(positions, down=down)
        assert [p for run in runs for p in run.part for _ in range(run.times)] == positions


@given(st.integers(1, 9), st.integers(1, 9))
def test_an_integer_factor_is_one_run(size: int, factor: int) -> None:
    (run,) = runs_of([p for p in range(size) for _ in range(factor)])
    assert (run.part, run.times) == (range(size), factor)


def test_positions_that_fall_are_one_run_only_where_that_is_asked_for() -> None:
    assert [list(run.part) for run in runs_of([3, 2, 1])] == [[3], [2], [1]]
    assert [list(run.part) for run in runs_of([3, 2, 1], down=True)] == [[3, 2, 1]]


class Does(nn.Module):
    """A function behind a layer of its own, so that streams are not just the stage's inputs."""

    def __init__(self, function: Callable[[Tensor], Tensor], *layers: nn.Module) -> None:
        super().__init__()
        self.layers, self.function = nn.Sequential(*layers), function

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layers(self.function(torch.relu(x)))
        return found


class ChannelNorm(nn.Module):
    """Layer normalisation over channels, which come first; the centred value is written twice."""

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(1, keepdim=True)
        return (x - mean) / torch.sqrt((x - mean).pow(2).mean(1, keepdim=True) + 1e-6)


def maps(*layers: nn.Module, function: Callable[[Tensor], Tensor] = torch.abs) -> Does:
    return Does(function, *layers)


CASES: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "nearest": (maps(nn.Upsample(scale_factor=2)), (2, 3, 4, 5)),
    "nearest, uneven": (maps(nn.Upsample(size=(5, 9))), (1, 3, 4, 6)),
    "nearest, from one pixel": (maps(nn.Upsample(size=(4, 3))), (2, 3, 1, 1)),
    "nearest, sequences": (maps(nn.Upsample(scale_factor=3)), (1, 4, 5)),
    "nearest, downwards": (maps(nn.Upsample(scale_factor=0.5)), (1, 3, 6, 6)),
    "linear": (maps(nn.Upsample(scale_factor=2, mode="linear")), (2, 3, 5)),
    "bilinear": (maps(nn.Upsample(scale_factor=2, mode="bilinear")), (2, 3, 4, 5)),
    "bilinear, corners": (
        maps(nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)),
        (1, 3, 4, 5),
    ),
    "bilinear, uneven": (maps(nn.Upsample(size=(7, 9), mode="bilinear")), (1, 3, 4, 6)),
    "bilinear, one axis": (maps(nn.Upsample(size=(4, 9), mode="bilinear")), (1, 3, 4, 6)),
    "bilinear, as it is": (maps(nn.Upsample(size=(4, 6), mode="bilinear")), (1, 3, 4, 6)),
    "bilinear, given scales": (
        maps(function=lambda x: F.interpolate(x, scale_factor=(1.1, 2.3), mode="bilinear")),
        (1, 3, 5, 4),
    ),
    "bilinear, downwards": (maps(nn.Upsample(scale_factor=0.4, mode="bilinear")), (1, 3, 6, 9)),
    "bilinear, from one pixel": (maps(nn.Upsample(size=(4, 3), mode="bilinear")), (2, 3, 1, 1)),
    "bicubic": (maps(nn.Upsample(scale_factor=2, mode="bicubic")), (1, 3, 4, 5)),
    "bicubic, corners": (
        maps(nn.Upsample(size=(3, 9), mode="bicubic", align_corners=True)),
        (1, 3, 2, 5),
    ),
    "flip": (maps(function=lambda x: x.flip(1, -1)), (2, 3, 4)),
    "flip, long": (maps(function=lambda x: x.flip(1)), (2, 20, 3)),
    "flip, long rows": (maps(nn.Linear(12, 5), function=lambda x: x.flip(-1)), (3, 2, 12)),
    "flip, long maps": (maps(nn.Conv2d(3, 2, 3), function=lambda x: x.flip(2, 3)), (1, 3, 11, 12)),
    "reflect, long": (maps(nn.ReflectionPad1d((13, 10)), nn.Conv1d(3, 2, 5)), (2, 3, 20)),
    "reflect": (maps(nn.ReflectionPad2d((1, 2, 0, 3))), (1, 3, 5, 4)),
    "replicate": (maps(nn.ReplicationPad1d((2, 1))), (1, 3, 5)),
    "circular": (maps(nn.Conv2d(3, 4, 3, 1, 1, padding_mode="circular")), (1, 3, 5, 4)),
    "picked": (
        maps(function=lambda x: x.index_select(1, torch.tensor([2, 0, 1, 1]))),
        (2, 3, 4),
    ),
    "positions": (maps(function=lambda x: x[:, [2, 0, -1]]), (2, 4, 5)),
    "a table of positions": (
        maps(function=lambda x: x[..., torch.tensor([[3, 4], [0, 0]])]),
        (2, 3, 5),
    ),
    "along channels": (maps(function=lambda x: x * x.mean(1, keepdim=True)), (2, 6, 3, 4)),
    "repeated heads": (maps(function=lambda x: x.repeat_interleave(3, 1)), (1, 2, 5, 4)),
    "group norm": (maps(nn.GroupNorm(2, 6)), (2, 6, 3, 4)),
    "group norm, one row": (maps(nn.GroupNorm(3, 6)), (2, 6)),
    "instance norm": (maps(nn.InstanceNorm2d(4, affine=True)), (2, 4, 3, 5)),
    "channel norm": (maps(ChannelNorm()), (2, 5, 3, 4)),
    "slopes": (maps(nn.PReLU(5), nn.PReLU()), (2, 5, 3, 4)),
    "softplus": (maps(nn.Softplus(), function=lambda x: 30 * x), (2, 5)),
    "transposed, one axis": (
        maps(nn.ConvTranspose1d(4, 6, 4, 2, 1, 1, groups=2, bias=True)),
        (2, 4, 5),
    ),
    "batch norm, sequences": (maps(nn.BatchNorm1d(5)), (2, 5, 7)),
    "batch norm, rows made into maps": (
        maps(nn.Linear(4, 24), nn.Unflatten(1, (6, 2, 2)), nn.BatchNorm2d(6)),
        (2, 4),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_computes_what_torch_does(name: str) -> None:
    torch.manual_seed(0)
    model, shape = CASES[name]
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d | nn.GroupNorm | nn.PReLU):
            assert layer.weight is not None
            nn.init.normal_(layer.weight)
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            assert layer.running_mean is not None
            nn.init.normal_(layer.running_mean)
    x = torch.randn(shape)
    network = lower(graph_of(model.eval(), x))
    with torch.no_grad():
        want = model(x)
    design = design_at(network, 20)
    got = execute(design, {design.inputs[0].value: x})[design.outputs[0].value]
    assert torch.allclose(got.float(), want, atol=2e-5)


def test_what_it_does_not_do_has_a_reason() -> None:
    def refused(function: Callable[[Tensor], Tensor], *shape: int) -> str:
        with pytest.raises(BackendError) as caught:
            lower(graph_of(Does(function), torch.randn(shape)))
        return str(caught.value)

    mixed = torch.arange(200) * 77 % 200
    assert "in 77 runs of equal steps" in refused(lambda x: x.index_select(1, mixed), 1, 200, 4)
    emptied = refused(lambda x: nn.functional.pad(x, (1, 1, -1, 2)), 1, 2, 1, 3)
    assert "without a position" in emptied
    assert "several axes" in refused(lambda x: x[[0, 1], [1, 2]], 2, 3)
    assert "another beta" in refused(lambda x: F.softplus(x, beta=2), 2, 3)
