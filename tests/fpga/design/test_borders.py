"""Padding is made whoever reads it: by the windows of its reader, or around the maps itself."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pipec.backends.fpga.folding import design_at
from pipec.backends.fpga.lowering.lower import lower
from tests.fpga.design.models import graph_of
from tests.fpga.design.numeric import execute

SIZES = (1, 2, 3, 0)


class Padded(nn.Module):
    """Maps padded with a number, and what reads them."""

    def __init__(self, number: float, reader: Callable[["Padded", Tensor], Tensor]) -> None:
        super().__init__()
        self.number, self.reader = number, reader
        self.conv, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(3)
        self.groups, self.linear = nn.GroupNorm(3, 3), nn.Linear(11, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.reader(self, F.pad(x, SIZES, value=self.number))


READERS: dict[str, Callable[[Padded, Tensor], Tensor]] = {
    "nothing": lambda m, x: x,
    "relu": lambda m, x: torch.relu(x),
    "conv": lambda m, x: m.conv(x),
    "max": lambda m, x: F.max_pool2d(x, 2, 1),
    "average": lambda m, x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "global": lambda m, x: F.adaptive_avg_pool2d(x, 1),
    "parts": lambda m, x: F.adaptive_avg_pool2d(x, (3, 1)),
    "mean": lambda m, x: x.mean((2, 3)),
    "batch norm": lambda m, x: m.norm(x),
    "group norm": lambda m, x: m.groups(x),
    "linear": lambda m, x: m.linear(x),
    "flatten": lambda m, x: x.flatten(1) * 2,
    "again": lambda m, x: m.conv(F.pad(x, (0, 1), value=2.5)),
    "two": lambda m, x: m.conv(x).amax() + x * 2,
}


def agrees(model: nn.Module, *args: Tensor) -> None:
    """The lowered network computes what the model does, folded slow and fast."""
    with torch.no_grad():
        want = model.eval()(*args)
    network = lower(graph_of(model, *args))
    for target in (1, 10**6):
        design = design_at(network, target)
        got = execute(design, dict(zip([p.value for p in design.inputs], args, strict=True)))
        found = got[design.outputs[0].value]
        assert found.shape == want.shape
        assert torch.allclose(found.float(), want, atol=2e-5)


@pytest.mark.parametrize("number", [0.0, 1.5])
@pytest.mark.parametrize("reader", READERS)
def test_padding_is_made_for_any_reader(reader: str, number: float) -> None:
    torch.manual_seed(1)
    agrees(Padded(number, READERS[reader]), torch.randn(2, 3, 6, 8))


@pytest.mark.parametrize(
    ("shape", "sizes"), [((3, 4), (1, 2, 0, 1)), ((2, 5, 7), (1, 2)), ((2, 5, 7), (1, 2, 1, 0))]
)
def test_padding_of_what_are_no_maps(shape: tuple[int, ...], sizes: tuple[int, ...]) -> None:
    class Wider(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv1d(shape[-2] + sum(sizes[2:]), 3, 2)

        def forward(self, x: Tensor) -> Tensor:
            x = F.pad(x, sizes, value=0.5)
            found: Tensor = self.conv(x) if len(shape) == 3 else x
            return found

    agrees(Wider(), torch.randn(shape))


@pytest.mark.parametrize("sizes", [(-1, 0), (-1, -2, 2, -1), (1, -2, 0, 0, -1, 0)])
def test_less_than_no_padding_cuts_off(sizes: tuple[int, ...]) -> None:
    class Cut(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.avg_pool2d(F.pad(F.pad(x, (1, 1), value=0.5), sizes, value=2.5), 2, 1)

    agrees(Cut(), torch.randn(2, 3, 6, 8))


@pytest.mark.parametrize(("number", "reader"), [(0.0, "conv"), (-math.inf, "max")])
def test_padding_in_front_of_its_own_windows_costs_no_engine(number: float, reader: str) -> None:
    network = lower(graph_of(Padded(number, READERS[reader]), torch.randn(1, 3, 6, 8)))
    assert len(network.layers) == 1


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(3, 4, 3, 2, 1),
        nn.Conv2d(3, 6, 3, padding="same", groups=3),
        nn.MaxPool2d(2),
        nn.AvgPool2d(3, 2, 1),
        nn.AdaptiveAvgPool2d((3, 4)),
    ],
)
def test_one_image_without_a_batch(layer: nn.Module) -> None:
    torch.manual_seed(2)
    agrees(nn.Sequential(nn.ReLU(), layer, nn.Tanh()), torch.randn(3, 6, 8))


def test_one_sequence_without_a_batch() -> None:
    agrees(nn.Sequential(nn.Conv1d(5, 3, 3, padding=1), nn.ReLU()), torch.randn(5, 7))
