"""Operands that broadcast, masks that arrive at run time, outputs that are constant."""

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pipec.backends.fpga.folding import design_at
from pipec.backends.fpga.lowering.lower import lower
from pipec.cluster.cluster import parse_cluster
from pipec.compiler.driver import make_plan
from pipec.errors import BackendError
from tests.fpga.design.models import MODELS, graph_of, made
from tests.fpga.design.numeric import execute


class Of(nn.Module):
    """A function as a model."""

    def __init__(self, fn: Callable[..., Tensor]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, *args: Tensor) -> Tensor:
        return self.fn(*args)


def computed(model: nn.Module, *args: Tensor) -> Tensor:
    """The only output of the lowered network."""
    design = design_at(lower(graph_of(model, *args)), 40)
    got = execute(design, dict(zip([p.value for p in design.inputs], args, strict=True)))
    return got[design.outputs[0].value].float()


SMALL = list(itertools.product((1, 2), (1, 3), (1, 4), (1, 5)))


@pytest.mark.parametrize("small", SMALL)
def test_a_stream_broadcasts_along_any_axes(small: tuple[int, ...]) -> None:
    """Over channels last, channels first, and mixed orders of the larger operand."""
    torch.manual_seed(3)
    x, y = torch.randn(2, 3, 4, 5), torch.randn(small)

    def mixed(x: Tensor) -> Tensor:
        moved = x.permute(0, 3, 1, 2).reshape(10, 12) * 2
        return moved.reshape(2, 5, 3, 4).permute(0, 2, 3, 1)

    orders: list[Callable[[Tensor], Tensor]] = [
        lambda x: x * 2,
        lambda x: (x.reshape(6, 20) * 2).reshape(2, 3, 4, 5),
        mixed,
    ]
    for order in orders:
        model = Of(lambda x, y, order=order: order(x) - y)
        assert torch.allclose(computed(model, x, y), model(x, y), atol=1e-5)


@pytest.mark.parametrize("shape", [(2, 3, 5, 6), (5, 6), (2, 1, 5, 6), (1, 3, 5, 6), (2, 1, 1, 6)])
def test_attention_masks_may_arrive_at_run_time(shape: tuple[int, ...]) -> None:
    torch.manual_seed(4)
    q, k, mask = torch.randn(2, 5, 12), torch.randn(2, 6, 12), torch.randn(shape)
    mask[..., 2] = -torch.inf

    def heads(x: Tensor) -> Tensor:
        return x.reshape(2, -1, 3, 4).transpose(1, 2)

    def attend(q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
        found = F.scaled_dot_product_attention(heads(q), heads(k), heads(k), attn_mask=mask)
        return found.transpose(1, 2).reshape(q.shape)

    assert torch.allclose(computed(Of(attend), q, k, mask), attend(q, k, mask), atol=1e-5)


def test_a_mask_of_truth_values_at_run_time_is_refused_with_the_remedy() -> None:
    q = torch.randn(1, 2, 5, 4)
    keep = torch.rand(5, 5) > 0.5
    model = Of(lambda q, keep: F.scaled_dot_product_attention(q, q, q, attn_mask=keep))
    with pytest.raises(BackendError, match="what is added to the scores"):
        lower(graph_of(model, q, keep))


def test_outputs_may_be_constant() -> None:
    class Constants(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.maps = nn.Parameter(torch.randn(2, 3, 4, 5))
            self.one = nn.Parameter(torch.tensor(2.0))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            return x + 1, self.maps * 3, self.one

    model, x = Constants().eval(), torch.randn(2, 6)
    design = design_at(lower(graph_of(model, x)), 40)
    got = execute(design, {design.inputs[0].value: x})
    for port, want in zip(design.outputs, model(x), strict=True):
        assert got[port.value].shape == want.shape
        assert torch.allclose(got[port.value].float(), want)


def test_a_recurrent_layer_is_cut_behind_its_initial_state() -> None:
    """Zeros that steps on both sides of the cut begin with cross it."""
    model, x = nn.LSTM(1, 4, batch_first=True).eval(), torch.randn(1, 6, 1)
    graph = graph_of(Of(lambda x: model(x)[0]), x)
    plan = make_plan(graph, parse_cluster("2xvcu118"), "fpga")
    assert len(plan.stages) == 2


class OneChannel(nn.Module):
    """Maps of one channel: pixel by pixel, or row by row, are the same order of elements."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 1, 3, padding=1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = self.conv(x)
        return y, y.reshape(2, -1, 10), torch.relu(y).mean(2)


def test_both_ends_of_a_link_have_the_same_tokens() -> None:
    """A stage that gets the outputs of another reads them in the rows in which they are sent."""
    one = OneChannel(), torch.randn(2, 1, 6, 20)
    for model, x in [one, *(made(name) for name in MODELS)]:
        with torch.no_grad():
            found = model(x)
        values = found if isinstance(found, tuple) else (found,)
        sent = lower(graph_of(model, x)).outputs
        for port, value in zip(sent, values, strict=True):
            there = lower(graph_of(Of(torch.tanh), value), orders={"args.0": port.order}).inputs[0]
            assert (there.use.rows, there.use.channels) == (port.use.rows, port.use.channels)
