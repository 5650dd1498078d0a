"""Rounds that are short, that repeat, or whose update is left out, beside a plain loop."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pipec

Batch = tuple[Tensor, Tensor]


def model(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    layers = (nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh())
    return nn.Sequential(*layers, nn.Dropout(dropout), nn.Linear(8, 3))


def batch(rows: int, number: int) -> Batch:
    g = torch.Generator().manual_seed(number)
    return torch.randn(rows, 8, generator=g), torch.randint(3, (rows,), generator=g)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def halved(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)


def pipeline(module: nn.Module, schedule: str = "1f1b", count: int = 4, **told: Any) -> Any:
    x, target = batch(4, 0)
    plan = pipec.compile(
        module, x, "2xcpu", loss=(F.cross_entropy, target), schedule=schedule, microbatches=count
    )
    told = {"optimizer": sgd, "model": module, "loss": F.cross_entropy, **told}
    return pipec.Pipeline(plan, **told)


def trained(module: nn.Module, batches: list[Batch]) -> dict[str, Tensor]:
    """Plainly, in microbatches of four rows; what is not finite is as if it had not been."""
    module = copy.deepcopy(module)
    update = sgd(module.parameters())
    rates = halved(update)
    for x, target in batches:
        update.zero_grad()
        before = {n: b.clone() for n, b in module.named_buffers()}
        for part, wanted in zip(x.split(4), target.split(4), strict=True):
            (F.cross_entropy(module(part), wanted) * len(part) / len(x)).backward()
        if all(p.grad is not None and p.grad.isfinite().all() for p in module.parameters()):
            update.step()
            rates.step()
        for name, buffer in module.named_buffers():
            buffer.copy_(buffer if buffer.isfinite().all() else before[name])
    return module.state_dict()


def test_a_round_that_is_left_out_moves_no_statistics_and_no_rate() -> None:
    module, batches = model(), [batch(16, k) for k in range(4)]
    batches[1][0][5, 0] = float("nan")
    with pipeline(copy.deepcopy(module), scheduler=halved, on_nan="skip") as found:
        skipped = [found.step(b).skipped for b in batches]
        got = found.state_dict()
    assert skipped == [False, True, False, False]
    torch.testing.assert_close(got, trained(module, batches), rtol=1e-5, atol=1e-6)


def test_microbatches_that_are_not_there_leave_nothing() -> None:
    module, batches = model(), [batch(rows, k) for k, rows in enumerate((16, 4, 10))]
    with pipeline(copy.deepcopy(module), scheduler=halved) as found:
        for b in batches:
            found.step(b)
        got, scores = found.state_dict(), found.evaluate(batches, outputs=True).outputs["output"]
    plain = model()
    plain.load_state_dict(trained(module, batches))
    torch.testing.assert_close(got, plain.state_dict(), rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        want = plain.eval()(torch.cat([x for x, _ in batches]))
    torch.testing.assert_close(scores, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("schedule", ["1f1b", "pipedream"])
def test_each_microbatch_of_a_run_has_masks_of_its_own(schedule: str) -> None:
    """Two rounds of two draw what one of four draws, and no two microbatches draw the same."""

    def still(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.0)

    (x, target), found = batch(4, 0), []
    for rounds in (1, 2, 4):
        each = 4 // rounds
        b = x.repeat(each, 1), target.repeat(each)
        with pipeline(model(0.5), schedule, each, optimizer=still, drain=True) as made:
            found.append([made.step(b).loss for _ in range(rounds)])
    assert len(set(found[2])) == 4
    assert found[0][0] == pytest.approx(sum(found[2]) / 4)
    assert found[1] == pytest.approx([sum(found[2][:2]) / 2, sum(found[2][2:]) / 2])


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1", "pipedream"])
def test_a_microbatch_without_valid_targets_has_outputs_and_no_gradient(schedule: str) -> None:
    x, target = batch(16, 0)
    target[4:8] = -100
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    with pipeline(copy.deepcopy(module), schedule) as found:
        before = found.evaluate([(x, target)], outputs=True)
        found.step((x, target))
        found.drain()
        got = found.state_dict()
    with torch.no_grad():
        torch.testing.assert_close(before.outputs["output"], module.eval()(x))
        assert before.loss == pytest.approx(float(F.cross_entropy(module(x), target)), rel=1e-5)
    assert all(w.isfinite().all() for w in got.values())
    if schedule != "pipedream":
        module.train()
        F.cross_entropy(module(x), target).backward()
        sgd(module.parameters()).step()
        torch.testing.assert_close(got, dict(module.state_dict()), rtol=1e-5, atol=1e-6)
