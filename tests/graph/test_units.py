"""Views are made where they are read: what crosses a cut, and what gradients add up to."""

import pytest
import torch
from torch import Tensor, nn

from pipec.cluster.cluster import parse_cluster
from pipec.compiler.driver import make_plan
from pipec.compiler.verify_training import compare_gradients
from pipec.frontends.torch_module import from_module
from pipec.frontends.trace import trace
from pipec.graph.ir import Source
from pipec.graph.units import placement_units
from pipec.plan.model import Plan
from tests.toys import Builder, aten

LAYERS = 4


class Rotated(nn.Module):
    """Every layer reads its own views of one value that all of them share, and that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(LAYERS))
        self.angle = nn.Parameter(torch.randn(5, 16))

    def forward(self, x: Tensor) -> Tensor:
        phase = torch.sin(self.angle)
        for layer in self.layers:
            x = torch.tanh(layer(x)) * phase.unsqueeze(0) + phase.unsqueeze(0).expand(2, 5, 16)
        return x


def _plan() -> tuple[Plan, dict[str, Tensor]]:
    torch.manual_seed(0)
    x, y = torch.randn(2, 5, 16), torch.randn(2, 5, 16)
    loaded = from_module(Rotated(), (x,), (nn.functional.mse_loss, y))
    inputs = dict(loaded.example_inputs)
    return make_plan(loaded.graph, parse_cluster("4xh100")), inputs


def test_what_is_viewed_crosses_and_no_view_of_it() -> None:
    plan, _ = _plan()
    assert plan.partition is not None
    of = plan.partition.stage_of
    crossing = {
        n.target
        for n in plan.graph.calls
        if any(of.get(user.name, of[n.name]) > of[n.name] for user in n.users)
    }
    assert aten.sin.default in crossing
    assert not crossing & {aten.unsqueeze.default, aten.expand.default}


def test_the_gradients_of_all_views_add_up() -> None:
    plan, inputs = _plan()
    found = compare_gradients(plan, plan.graph, [inputs], 1e-5, seed=1)
    assert "angle" in {c.name for c in found}
    assert all(c.ok for c in found)


@pytest.mark.parametrize("contiguous", [True, False])
def test_a_view_of_other_strides_stays(contiguous: bool) -> None:
    """A value arrives contiguous: a view that its own strides allow may not be made there."""
    b = Builder()
    x = b.input("x", 3, 4)
    made = b.call(aten.relu.default, x if contiguous else b.call(aten.t.default, x), name="made")
    view = b.call(aten.unsqueeze.default, made, 0, name="view")
    other = b.call(aten.neg.default, made, name="other")
    units = placement_units(b.graph(other, b.call(aten.abs.default, view, name="reader")))
    assert (units["view"] == units["reader"]) is contiguous
    assert (units["view"] == units["made"]) is not contiguous


class Heads(nn.Module):
    """Attention of two heads over projections for q, k and v, or over one for all three."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.projections = nn.ModuleList(nn.Linear(16, 48 if fused else 16) for _ in range(3))
        self.fused = fused

    def forward(self, x: Tensor) -> Tensor:
        parts = (
            self.projections[0](x).split(16, 2) if self.fused else [f(x) for f in self.projections]
        )
        q, k, v = (y.view(2, 8, 2, 8).transpose(1, 2) for y in parts)
        return nn.functional.scaled_dot_product_attention(q, k, v)


@pytest.mark.parametrize("fused", [False, True])
def test_a_view_that_would_be_copied_to_be_sent_is_made_by_its_reader(fused: bool) -> None:
    """Between q, k, v and attention the projections cross, as they lie; no transposed copy does."""
    graph = trace(Heads(fused), (torch.zeros(2, 8, 16),), source=Source("memory", "heads"))
    units = placement_units(graph)
    (attention,) = (n for n in graph.calls if "attention" in n.name)
    for n in attention.all_input_nodes:
        assert units[n.name] == units[attention.name]
    made = [n for n in graph.calls if "linear" in n.name or "addmm" in n.name]
    assert made
    assert units[attention.name] not in {units[n.name] for n in made}
