"""Choices by a comparison: what is refused, with what hint."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from pipec.backends.fpga.backend import FpgaBackend
from pipec.backends.fpga.engines.where import Where
from pipec.backends.fpga.lowering.lower import lower
from pipec.cluster.cluster import parse_cluster
from pipec.compiler.driver import emit, make_plan
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


class Unknown(nn.Module):
    """As torch writes ``xlogy``, of which a Kullback-Leibler divergence is made."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(torch.isnan(x), math.nan, x * 2)


def test_a_number_that_is_none_is_refused_where_it_stands() -> None:
    with pytest.raises(BackendError, match=r"aten\.where\.self where, .*\.py:\d+.* operand nan"):
        lower(graph_of(Unknown(), torch.randn(2, 3)))


class Safe(nn.Module):
    """As exporters write a softmax whose row may be masked as a whole."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y = torch.softmax(x + mask, -1)
        return torch.where(torch.isnan(y), 0.25, y)


@pytest.mark.parametrize(("precision", "layers"), [("float32", 3), ("bfloat16", 3), ("int8", 2)])
def test_numbers_that_are_none_are_replaced_where_a_type_has_them(
    precision: str, layers: int
) -> None:
    graph = graph_of(Safe(), torch.randn(2, 4), torch.zeros(2, 4))
    found = lower(graph, precision=precision).layers
    assert len(found) == layers
    assert isinstance(found[-1].nest, Where) == (layers == 3)


def test_a_row_that_is_masked_as_a_whole(tmp_path: Path) -> None:
    mask = torch.zeros(3, 4)
    mask[1] = -torch.inf
    mask[2, 0] = -torch.inf
    x = torch.randn(3, 4)
    plan = make_plan(graph_of(Safe(), x, mask), parse_cluster("1xvcu118"), "fpga")
    emit(plan, tmp_path / "out")
    (runner,) = FpgaBackend().load(plan, tmp_path / "out").stages
    (found,) = runner({"x": x, "mask": mask}).values()
    want = Safe()(x, mask)
    assert float(want[1].sum()) == 1.0
    assert torch.allclose(found.to(want.dtype), want, atol=1e-6)
