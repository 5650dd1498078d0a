"""A stage as a module trains what the model trains, and is refused where it could not."""

import pytest
import torch
from torch import Tensor, nn

from pipec.errors import PipecError
from pipec.frontends.trace import trace
from pipec.graph.ir import Source
from pipec.plan.model import Plan
from pipec.runtime.module import StageModule
from tests.autodiff.chain import Case, cut
from tests.autodiff.zoo import floats, seeded
from tests.runtime.pipelines import staged, staged_graph


class Shared(nn.Module):
    """The first and the last layer have one weight; a layer between is frozen."""

    def __init__(self, *, frozen: bool = False) -> None:
        super().__init__()
        self.first, self.middle, self.last = (nn.Linear(8, 8, bias=False) for _ in range(3))
        self.last.weight = self.first.weight
        self.middle.requires_grad_(False)
        self.first.requires_grad_(not frozen)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(torch.tanh(self.middle(torch.tanh(self.first(x)))))
        return found


CASE = Case(Shared, nn.functional.cross_entropy, floats(4, 8))


def whole(module: nn.Module, stages: int) -> Plan:
    """Not differentiated, as an inference plan."""
    graph = trace(module, CASE.batch(0)[0], source=Source("memory", "test"))
    return staged_graph(graph, cut(graph, stages))


@pytest.mark.parametrize("differentiated", [False, True])
def test_what_is_frozen_stays_frozen_and_what_is_shared_shared(differentiated: bool) -> None:
    model = seeded(CASE)
    module = StageModule(staged(CASE, model, 1) if differentiated else whole(model, 1), 0)
    assert module.state_dict().keys() == model.state_dict().keys()
    module.load_state_dict(model.state_dict())
    trained = {n for n, p in module.named_parameters() if p.requires_grad}
    assert trained == {n for n, p in model.named_parameters() if p.requires_grad}
    assert module.get_parameter("last.weight") is module.get_parameter("first.weight")


@pytest.mark.parametrize("differentiated", [False, True])
def test_a_weight_of_several_stages_is_refused(differentiated: bool) -> None:
    model = seeded(CASE)
    plan = staged(CASE, model, 3) if differentiated else whole(model, 3)
    with pytest.raises(PipecError, match=r"several stages(.|\n)*first.weight(.|\n)*stages 0, 2"):
        StageModule(plan, 0)
    StageModule(plan, 1)


def test_a_frozen_weight_may_be_in_several_stages() -> None:
    plan = whole(Shared(frozen=True), 3)
    assert not any(p.requires_grad for s in range(3) for p in StageModule(plan, s).parameters())


BAD = {
    "shape": {"middle.weight": torch.zeros(8, 1)},
    "dtype": {"middle.weight": torch.zeros(8, 8, dtype=torch.float64)},
    "unknown": {"center.weight": torch.zeros(8, 8)},
}


@pytest.mark.parametrize("what", [*BAD, "missing"])
def test_weights_of_another_model_are_refused(what: str) -> None:
    plan, weights = whole(seeded(CASE), 1), dict(seeded(CASE).state_dict())
    given = {"first.weight": weights["first.weight"]} if what == "missing" else weights | BAD[what]
    with pytest.raises(PipecError):
        StageModule(plan, 0, given)
    StageModule(plan, 0, weights)
