"""Normalisations written out in single steps, and transposed convolutions, on engines."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from pipec.backends.fpga.engines.norm import Norm
from pipec.backends.fpga.folding import design_at
from pipec.backends.fpga.lowering.lower import lower
from pipec.errors import BackendError
from tests.fpga.design.models import graph_of
from tests.fpga.design.numeric import execute


class Written(nn.Module):
    """A normalisation between a linear layer and its scale and shift."""

    def __init__(self, normalise: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.linear, self.normalise = nn.Linear(12, 12), normalise
        self.scale, self.shift = nn.Parameter(torch.randn(12)), nn.Parameter(torch.randn(12))

    def forward(self, x: Tensor) -> Tensor:
        return self.normalise(self.linear(x)) * self.scale + self.shift


def layer_power(x: Tensor) -> Tensor:
    d = x - x.mean(-1, keepdim=True)
    return d / torch.sqrt(d.pow(2).mean(-1, keepdim=True) + 1e-5)


def layer_product(x: Tensor) -> Tensor:
    d = x - x.mean(2, keepdim=True)
    return torch.rsqrt((d * d).mean(2, keepdim=True) + 1e-3) * d


def root_mean_square(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def root_of_the_other(x: Tensor) -> Tensor:
    """Looks alike, but one value is divided by the norm of another."""
    return x * torch.rsqrt(torch.relu(x).pow(2).mean(-1, keepdim=True) + 1e-6)


@pytest.mark.parametrize("normalise", [layer_power, layer_product, root_mean_square])
@pytest.mark.parametrize("target", [1, 400, 10**6])
def test_written_norms_are_one_engine(normalise: Callable[[Tensor], Tensor], target: int) -> None:
    torch.manual_seed(0)
    model, x = Written(normalise).eval(), torch.randn(1, 5, 12)
    network = lower(graph_of(model, x))
    (norm,) = [layer.nest for layer in network.layers if isinstance(layer.nest, Norm)]
    assert norm.op == ("rms_norm" if normalise is root_mean_square else "layer_norm")
    design = design_at(network, target)
    got = execute(design, {design.inputs[0].value: x})
    with torch.no_grad():
        want = model(x)
    assert torch.allclose(got[design.outputs[0].value].float(), want, atol=2e-5)


def test_what_is_no_norm_is_not_taken_for_one() -> None:
    torch.manual_seed(0)
    model, x = Written(root_of_the_other).eval(), torch.randn(1, 5, 12)
    network = lower(graph_of(model, x))
    assert not [layer for layer in network.layers if isinstance(layer.nest, Norm)]
    design = design_at(network, 1)
    got = execute(design, {design.inputs[0].value: x})
    with torch.no_grad():
        assert torch.allclose(got[design.outputs[0].value].float(), model(x), atol=2e-5)


CASES = [
    {"kernel_size": 3, "stride": 2, "padding": 1, "output_padding": 1},
    {"kernel_size": 2, "stride": 2},
    {"kernel_size": 4, "stride": 2, "padding": 1, "bias": False},
    {"kernel_size": 3, "stride": 1, "padding": 1},
    {"kernel_size": 3, "stride": 1, "dilation": 2},
    {"kernel_size": 4, "stride": 3, "padding": 0, "groups": 2},
]


@pytest.mark.parametrize("case", CASES, ids=[str(k) for k in range(len(CASES))])
@pytest.mark.parametrize("target", [1, 700, 10**6])
def test_transposed_convolutions(case: dict[str, int], target: int) -> None:
    torch.manual_seed(0)
    wider = nn.ConvTranspose2d(4, 6, **case)  # type: ignore[arg-type]
    model = nn.Sequential(nn.Conv2d(3, 4, 1), wider, nn.ReLU()).eval()
    x = torch.randn(1, 3, 5, 6)
    design = design_at(lower(graph_of(model, x)), target)
    got = execute(design, {design.inputs[0].value: x})
    with torch.no_grad():
        want = model(x)
    assert torch.allclose(got[design.outputs[0].value].float(), want, atol=2e-5)


def test_transposed_convolutions_with_gaps_are_refused_by_name() -> None:
    model = nn.ConvTranspose2d(4, 6, 2, stride=3).eval()
    with pytest.raises(BackendError, match="transposed convolution"):
        lower(graph_of(model, torch.randn(1, 4, 5, 6)))


class Numbers(nn.Module):
    """What an op is told by a number: an epsilon that shows, the scale of the scores."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(5, eps=0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        return nn.functional.scaled_dot_product_attention(x, x, x, scale=0.9)


def test_numbers_of_ops_that_are_taken_apart_count() -> None:
    torch.manual_seed(1)
    model, x = Numbers().eval(), torch.randn(2, 5, 4)
    design = design_at(lower(graph_of(model, x)), 100)
    got = execute(design, {design.inputs[0].value: x})[design.outputs[0].value]
    assert torch.allclose(got.float(), model(x), atol=1e-5)


class Applied(nn.Module):
    """A function, or the first result of a recurrent layer, behind a layer of its own."""

    def __init__(self, made: Callable[..., Tensor | tuple[Tensor, ...]], width: int) -> None:
        super().__init__()
        self.linear, self.made = nn.Linear(width, width), made

    def forward(self, x: Tensor) -> Tensor:
        found = self.made(self.linear(x))
        return found[0] if isinstance(found, tuple) else found


@pytest.mark.parametrize(
    "composite",
    [
        nn.LSTM(6, 5, batch_first=True),
        nn.GRU(6, 5, 2, bidirectional=True),
        nn.GRUCell(6, 5),
        nn.functional.mish,
        partial(torch.logsumexp, dim=-1),
    ],
    ids=["lstm", "gru", "cell", "mish", "logsumexp"],
)
def test_composite_ops_are_taken_apart(
    composite: Callable[..., Tensor | tuple[Tensor, ...]],
) -> None:
    """The cell's sums overwrite what they read."""
    torch.manual_seed(0)
    x = torch.randn(4, 6) if isinstance(composite, nn.GRUCell) else torch.randn(3, 2, 6)
    model = Applied(composite, 6).eval()
    design = design_at(lower(graph_of(model, x)), 400)
    got = execute(design, {design.inputs[0].value: x})
    with torch.no_grad():
        want = model(x)
    assert torch.allclose(got[design.outputs[0].value].float(), want, atol=2e-5)
