"""Choices by a comparison: what is refused, with what hint."""

import pytest
import torch
from torch import Tensor, nn

from pipec.backends.fpga.engines.where import Where
from pipec.backends.fpga.lowering.lower import lower
from pipec.errors import BackendError
from tests.fpga.design.models import graph_of


class Choice(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x > 0.5, x, 2.0)


class Kept(nn.Module):
    """The comparison is an output too, and so no part of a choice."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        test = x > 0.5
        return torch.where(test, x, 2.0), test


def test_a_choice_is_one_layer_of_the_streams_among_its_operands() -> None:
    (layer,) = lower(graph_of(Choice(), torch.randn(2, 3, 4))).layers
    assert layer.nest == Where(6, 4, 1, "gt", "ax", b=0.5, y=2.0)
    assert [use.edge for use in layer.inputs] == ["in_x", "in_x"]


@pytest.mark.parametrize("precision", ["int8", "ap_fixed<16,6>", "bfloat16"])
def test_a_choice_that_a_rounding_may_turn_is_refused(precision: str) -> None:
    graph = graph_of(Choice(), torch.randn(2, 3, 4))
    with pytest.raises(BackendError, match=r"rounding may turn.*float32"):
        lower(graph, precision=precision)


def test_a_comparison_that_something_else_reads_is_refused() -> None:
    with pytest.raises(BackendError, match=r"aten\.gt\.Scalar"):
        lower(graph_of(Kept(), torch.randn(2, 3, 4)))
