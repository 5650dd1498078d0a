"""A pipeline's state dict is the module's own: what a module keeps to itself is not in it."""

import copy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pipec
from pipec.graph.ir import InputKind
from pipec.runtime.module import StageModule


class Counting(nn.Module):
    """Scales by how often it was called, which no state dict says, and by a constant table."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.calls: Tensor
        self.table: Tensor
        self.seen: Tensor
        self.register_buffer("calls", torch.zeros(()), persistent=False)
        self.register_buffer("table", torch.linspace(0.5, 1.5, 8), persistent=False)
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        self.seen.mul_(0.9).add_(0.1 * x.detach().mean(0))
        return torch.tanh(self.inner(x)) * self.table / self.calls.sqrt()


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), Counting(), Counting(), nn.Linear(8, 3))


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


G = torch.Generator().manual_seed(1)
BATCHES = [(torch.randn(8, 8, generator=G), torch.randint(3, (8,), generator=G)) for _ in range(6)]


def pipeline(**told: object) -> pipec.Pipeline:
    x, target = BATCHES[0]
    plan = pipec.compile(
        model(), x[:2], "2xcpu", loss=(F.cross_entropy, target[:2]), schedule="1f1b", microbatches=4
    )
    return pipec.Pipeline(plan, optimizer=sgd, **told)  # type: ignore[arg-type]


def loop(module: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    update = sgd(list(module.parameters()))
    for batch in batches:
        update.zero_grad()
        for x, target in zip(*(t.split(2) for t in batch), strict=True):
            (F.cross_entropy(module(x), target) / 4).backward()
        update.step()
    return copy.deepcopy(module.state_dict())


def same(found: dict[str, Tensor] | None, want: dict[str, Tensor]) -> None:
    assert found is not None
    assert found.keys() == want.keys()
    for name, value in want.items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6, msg=name)


def test_it_has_the_modules_own_names_and_values() -> None:
    with pipeline() as found:
        graph = found.plan.graph
        assert [i.name for i in graph.inputs_of(InputKind.STATE)] == ["1.calls", "2.calls"]
        for batch in BATCHES:
            found.step(batch)
        same(found.state_dict(), loop(model(), BATCHES))


def test_a_modules_state_dict_is_taken_and_what_it_lacks_stays() -> None:
    module = model()
    loop(module, BATCHES[:2])  # its calls are counted on
    with pipeline(weights=module.state_dict()) as given, pipeline() as loaded:
        for batch in BATCHES[:2]:
            loaded.step(batch)
        loaded.load_state_dict(module.state_dict())
        for batch in BATCHES[2:]:
            loaded.step(batch)
            given.step(batch)
        fresh = model()
        fresh.load_state_dict(module.state_dict())
        same(given.state_dict(), loop(fresh, BATCHES[2:]))
        counted = found_calls(loaded)
        assert counted == [24.0, 24.0]
        assert found_calls(given) == [16.0, 16.0]


def found_calls(found: pipec.Pipeline) -> list[float]:
    held = [e.list_changing(s) for e in found._runner.executors for s in e.weights]
    return [float(w) for weights in held for n, w in weights.items() if n.endswith("calls")]


def test_it_is_a_copy_to_go_back_to() -> None:
    """As of other ranks: else the best weights so far are a mixture of old and new ones."""
    with pipeline() as found:
        found.step(BATCHES[0])
        kept = found.state_dict()
        want = copy.deepcopy(kept)
        found.step(BATCHES[1])
        assert kept is not None
        assert want is not None
        assert all(torch.equal(kept[n], want[n]) for n in want)
        found.load_state_dict(kept)
        again = found.state_dict()
        assert again is not None
        assert all(torch.equal(again[n], want[n]) for n in want)


def test_a_checkpoint_has_all_of_it(tmp_path: Path) -> None:
    with pipeline() as first:
        for batch in BATCHES[:3]:
            first.step(batch)
        first.save(tmp_path)
    with pipeline() as second:
        assert second.resume(tmp_path) == 3
        for batch in BATCHES[3:]:
            second.step(batch)
        same(second.state_dict(), loop(model(), BATCHES))


@pytest.mark.parametrize("stage", [0, 1])
def test_stages_as_modules_have_it_too(stage: int) -> None:
    with pipeline() as found:
        module = StageModule(found.plan, stage)
    names = {n for s in range(2) for n in StageModule(found.plan, s).state_dict()}
    assert names == model().state_dict().keys()
    assert not [n for n in module.state_dict() if n.endswith("calls")]
