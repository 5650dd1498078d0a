"""Sums of gradients are made in place, but only where nothing else has the memory."""

import resource

import pytest
import torch
from torch import Tensor, nn

from pipec.runtime.allocations import Allocations
from pipec.runtime.executor import Settings
from pipec.runtime.host_memory import keep_freed_memory
from pipec.runtime.runner import LocalPipeline
from pipec.runtime.weights import StageWeights
from tests.autodiff.chain import Case, worst
from tests.autodiff.zoo import floats, seeded
from tests.runtime.pipelines import accumulated, batches, scheduled, staged
from tests.runtime.processes import elastic


class Shifts(nn.Module):
    """The gradients of ``a``, of ``b`` and of what they are added to are one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)
        self.a, self.b = (nn.Parameter(torch.randn(4, 6)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.last(self.first(x) + self.a + self.b)
        return result


CASE = Case(Shifts, lambda y, _: (y**2).sum(), floats(4, 6))


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1"])
@pytest.mark.parametrize("stages", [1, 2, 3])
def test_gradients_that_share_memory_are_added_up_apart(
    stages: int, schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    owned: set[str] = set()
    given = StageWeights.accumulate

    def seen(
        self: StageWeights, update: int, grads: dict[str, Tensor], mine: frozenset[str]
    ) -> None:
        owned.update(mine)
        given(self, update, grads, mine)

    monkeypatch.setattr(StageWeights, "accumulate", seen)
    module = seeded(CASE)
    plan = staged(CASE, module, stages)
    order = scheduled(plan, schedule, 5)
    pipeline = LocalPipeline(plan, batches(CASE, plan.graph), Settings(sgd), schedule=order)
    losses = pipeline.run(2)
    want, weights = accumulated(CASE, module, sgd, 2, 5)
    assert losses == pytest.approx(want, rel=1e-6)
    assert worst(pipeline.state_dict(), weights) < 1e-6
    assert {"first.weight", "last.weight"} <= owned
    assert not {"a", "b"} <= owned


def test_only_sums_of_gradients_that_others_hold_take_new_memory() -> None:
    weights = StageWeights(0, {n: torch.zeros(1000) for n in "vw"}, ("v", "w"), None)
    grads = [{n: torch.ones(1000) for n in "vw"} for _ in range(3)]
    with Allocations() as found:
        for each in grads:
            weights.accumulate(1, each, frozenset("v"))
        assert found.peak == 4000
    sums = weights.gradients(1)
    assert all(torch.equal(sums[n], torch.full((1000,), 3.0)) for n in "vw")
    assert torch.equal(grads[0]["w"], torch.ones(1000))


TENSORS = 400


def pages() -> int:
    """Pages that the system gives for what was allocated and freed once before; 0 if not ours."""
    if not keep_freed_memory():
        return 0
    taken = [resource.getrusage(resource.RUSAGE_SELF).ru_minflt]
    for _ in range(3):
        held = [torch.ones(100_000) for _ in range(TENSORS)]
        del held
        taken.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
    return taken[-1] - taken[-2]


def test_freed_memory_is_kept_where_the_allocator_can() -> None:
    # what is given back without it depends on what else lies in the heap
    assert elastic(pages, ranks=1)[0] < TENSORS * 400_000 / resource.getpagesize() / 10
