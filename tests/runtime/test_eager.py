"""Parts that run as modules under autograd train as one process does, under every schedule."""

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pipec
from pipec.errors import PipecError
from pipec.frontends.base import Loaded, LoadOptions
from pipec.frontends.torch_module import from_module
from pipec.graph.eager import eager_parts
from tests.runtime.eager_models import CASES, PUBLISHED, Case, Part, Sometimes
from tests.sampling import each

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without:UserWarning")
MICROBATCHES, STEPS = 4, 3
SCHEDULES = ["1f1b", "interleaved", "pipedream"]
Batch = list[tuple[dict[str, Tensor], Any]]
Found = tuple[list[float], dict[str, Tensor]]


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def seeded(case: Case) -> nn.Module:
    torch.manual_seed(0)
    return case.make().train()


def batches(case: Case) -> list[Batch]:
    g = torch.Generator().manual_seed(1)
    return [[case.batch(g) for _ in range(MICROBATCHES)] for _ in range(STEPS)]


def read(case: Case, eager: tuple[str, ...]) -> Loaded:
    inputs, target = batches(case)[0][0]
    loss = case.loss if target is None else (case.loss, target)
    return from_module(seeded(case), inputs, loss, LoadOptions(training=True, eager=eager))


@cache
def found_out(name: str) -> Loaded:
    """The model with the parts that pipec finds."""
    return read(CASES[name], ("auto",))


def compiled(loaded: Loaded, schedule: str, **options: Any) -> pipec.Plan:
    return pipec.compile(
        loaded, None, "2xcpu", schedule=schedule, microbatches=MICROBATCHES, **options
    )


def named(inputs: dict[str, Tensor], target: Any) -> dict[str, Tensor]:
    if isinstance(target, tuple):
        return {**inputs, **{f"target{k}": t for k, t in enumerate(target)}}
    return inputs if target is None else {**inputs, "target": target}


def trained(case: Case, plan: pipec.Plan) -> Found:
    with pipec.Pipeline(plan, optimizer=sgd, drain=True, weight=lambda _: 1.0) as pipeline:
        losses = [pipeline.step([named(*m) for m in b]).loss for b in batches(case)]
        found = pipeline.state_dict()
    assert found is not None
    return losses, found


def expected(case: Case, version: Callable[[str, int], int] | None = None) -> Found:
    """One process, the module itself: with a flush, or each weight of its own age.

    Args:
        case: The model.
        version: Without a flush: the update whose weights microbatch k of a step uses, by name.
    """
    model, losses = seeded(case), []
    own = dict(model.named_parameters())
    newest = {n: nn.Parameter(p.detach().clone()) for n, p in own.items()}
    optimizer = sgd(list(newest.values()))
    for batch in batches(case):
        history, total = [{n: p.detach().clone() for n, p in newest.items()}], 0.0
        for k, (inputs, target) in enumerate(batch):
            for n, p in own.items():
                p.data = history[version(n, k) if version else 0][n].clone()
            targets = () if target is None else target if isinstance(target, tuple) else (target,)
            loss = case.loss(model(**inputs), *targets)
            loss.backward()
            total += float(loss.detach()) / len(batch)
            if version is None and k + 1 < len(batch):
                continue
            for n, p in newest.items():
                found = own[n].grad
                p.grad = found if found is None or version else found / len(batch)
                own[n].grad = None
            optimizer.step()
            history.append({n: p.detach().clone() for n, p in newest.items()})
        losses.append(total)
    for n, p in own.items():
        p.data = newest[n].data
    return losses, dict(model.state_dict())


def stashing(plan: pipec.Plan) -> Callable[[str, int], int]:
    """PipeDream: stage s of S uses, for microbatch k, the weights of update k - (S - 1 - s)."""
    stage_of = {n: s.index for s in plan.stages if s.training for n in s.training.trained}
    last = len(plan.stages) - 1
    return lambda name, k: max(0, k - (last - stage_of.get(name, last)))


def worst(found: Found, want: Found) -> float:
    losses = max(abs(a - b) for a, b in zip(found[0], want[0], strict=True))
    weights = (float((found[1][n] - w).abs().max()) for n, w in want[1].items() if w.numel())
    return max(losses, *weights)


@pytest.mark.parametrize("name", CASES)
def test_a_graph_cannot_hold_these_models_and_the_parts_are_found(name: str) -> None:
    case = CASES[name]
    with pytest.raises(PipecError):
        compiled(read(case, ()), "1f1b")
    assert tuple(eager_parts(found_out(name).graph).values()) == case.eager


@pytest.mark.parametrize(("name", "schedule"), each(CASES, SCHEDULES))
def test_eager_parts_train_as_one_process(name: str, schedule: str) -> None:
    case = CASES[name]
    plan = compiled(found_out(name), schedule)
    want = expected(case, stashing(plan) if schedule == "pipedream" else None)
    assert worst(trained(case, plan), want) < 1e-5


def test_weights_that_the_example_does_not_reach_are_not_left_untrained() -> None:
    model, x = nn.Sequential(Sometimes(), nn.Linear(8, 8)), torch.randn(8, 8)
    x[:4, 0], x[4:, 0] = -1, 1
    plan = pipec.compile(
        model, x[:4], "1xcpu", loss=(F.mse_loss, x[:4]), eager=True, microbatches=2
    )
    with (
        pytest.raises(PipecError, match="passes gradients on, which it did not"),
        pipec.Pipeline(plan, optimizer=sgd) as pipeline,
    ):
        pipeline.step((x, x))


class Rarely(Part):
    """Its weights are used where the first number of a microbatch is above 0, and it stays so."""

    def forward(self, x: Tensor) -> Any:
        reached = float(x.detach()[0, 0]) > 0
        return x + 0.01 * torch.tanh(self.inner(x)) if reached else x - 0.01 * x.sin()


def test_weights_that_two_calls_do_not_reach_keep_their_values() -> None:
    """Momentum would move them if the sum of two gradients that are None were zeros."""
    part, first = Rarely(), nn.Linear(8, 8)
    nn.init.eye_(first.weight)
    model = nn.Sequential(first, part, part, nn.Linear(8, 8))
    plain, steps = copy.deepcopy(model), [torch.rand(4, 8) + 1, -torch.rand(4, 8) - 1]
    optimizer = sgd(plain.parameters())
    for x in steps:
        optimizer.zero_grad()
        F.mse_loss(plain(x), x).backward()
        optimizer.step()
    x = steps[0]
    plan = pipec.compile(model, x, "1xcpu", loss=(F.mse_loss, x), eager=True, microbatches=1)
    with pipec.Pipeline(plan, optimizer=sgd) as pipeline:
        for x in steps:
            pipeline.step((x, x))
        found = pipeline.state_dict()
    assert found is not None
    for name, weight in plain.state_dict().items():
        torch.testing.assert_close(found[name], weight, rtol=0, atol=1e-6)


@cache
def published(name: str) -> Loaded:
    return read(PUBLISHED[name], PUBLISHED[name].eager)


@pytest.mark.parametrize(("name", "schedule"), each(PUBLISHED, SCHEDULES))
def test_published_models_train_as_one_process(name: str, schedule: str) -> None:
    case = PUBLISHED[name]
    plan = compiled(published(name), schedule)
    want = expected(case, stashing(plan) if schedule == "pipedream" else None)
    assert worst(trained(case, plan), want) < 2e-4
    assert any("runs eagerly" in note for t in plan.timing for note in t.notes)
