"""A checkpoint read into a pipeline that has trained, and groups with rates of their own."""

import copy
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import lr_scheduler

import pipec
from pipec.runtime.weights import OptimizerFactory, SchedulerFactory

G = torch.Generator().manual_seed(1)
BATCHES = [(torch.randn(8, 8, generator=G), torch.randint(3, (8,), generator=G)) for _ in range(4)]


@cache
def compiled(schedule: str, stages: int, **told: Any) -> pipec.Plan:
    torch.manual_seed(0)
    layers = (nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    x, target = BATCHES[0]
    return pipec.compile(
        nn.Sequential(*layers), x[:2], "4xcpu" if schedule == "pipefb" else f"{stages}xcpu",
        loss=(F.cross_entropy, target[:2]), schedule=schedule, stages=stages, microbatches=4,
        **told,
    )  # fmt: skip


def pipeline(
    schedule: str,
    optimizer: OptimizerFactory,
    stages: int = 2,
    scheduler: SchedulerFactory | None = None,
    **told: Any,
) -> pipec.Pipeline:
    plan = compiled(schedule, stages, **told)
    return pipec.Pipeline(plan, optimizer=optimizer, scheduler=scheduler)


def trained(found: pipec.Pipeline, batches: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    for batch in batches:
        found.step(batch)
    found.drain()
    return found.state_dict() or {}


def sgd(parameters: list[Any]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize(
    ("schedule", "waits"),
    [("1f1b", False), ("1f1b", True), ("pipedream", False), ("pipemare", False), ("pipefb", False)],
)
def test_a_run_goes_back_to_what_it_was(
    schedule: str, waits: bool, before: int, tmp_path: Path
) -> None:
    """Nothing of later steps is left: no momentum, no microbatches that are under way."""
    with pipeline(schedule, sgd, offload_optimizer=waits) as found:
        for batch in BATCHES[:before]:
            found.step(batch)
        found.drain()
        found.save(tmp_path)
        found._finish_saving()
        for batch in BATCHES[before:]:
            found.step(batch)
        assert found.resume(tmp_path) == before
        got = trained(found, BATCHES[before:])
    with pipeline(schedule, sgd, offload_optimizer=waits) as fresh:
        trained(fresh, BATCHES[:before])
        want = trained(fresh, BATCHES[before:])
    assert all(torch.equal(got[n], w) for n, w in want.items())


def own_rates(parameters: list[Any]) -> torch.optim.Optimizer:
    """A group for each parameter, the last one first, each with a rate of its own."""
    groups = [{"params": [p], "lr": 0.01 * (1 + int(p[0][0]) + len(p[0]))} for p in parameters]
    return torch.optim.SGD(groups[::-1], lr=0.1, momentum=0.9)


SCHEDULES: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "two phases": lambda o: lr_scheduler.OneCycleLR(o, _rates(o), total_steps=9),
    "sequence": lambda o: lr_scheduler.SequentialLR(
        o,
        [lr_scheduler.LambdaLR(o, lambda k: 0.1 * (k + 1)), lr_scheduler.ExponentialLR(o, 0.7)],
        [3],
    ),
    "chain": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.LambdaLR(o, lambda k: 1 / (k + 1)), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
}


def _rates(optimizer: torch.optim.Optimizer) -> list[float]:
    return [group["lr"] for group in optimizer.param_groups]


@pytest.mark.parametrize("stages", [(3, 1), (1, 3), (2, 3)])
@pytest.mark.parametrize("name", SCHEDULES)
def test_every_group_keeps_its_own_rates_on_other_stages(
    name: str, stages: tuple[int, int], tmp_path: Path
) -> None:
    before, after = stages
    with pipeline("1f1b", own_rates, before, SCHEDULES[name]) as first:
        trained(first, BATCHES[:2])
        first.save(tmp_path)
    with pipeline("1f1b", own_rates, after, SCHEDULES[name]) as second:
        second.resume(tmp_path)
        got = trained(second, BATCHES[2:])
    with pipeline("1f1b", own_rates, before, SCHEDULES[name]) as whole:
        want = trained(whole, BATCHES)
    torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)


class Follows(nn.Module):
    """Scales by a running mean: what a replica has seen shows in its gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.mean = nn.Linear(8, 8), nn.Buffer(torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.inner(x))
        self.mean.lerp_(h.detach().mean(0), 0.5)
        return h * (1 + 5 * self.mean)


def test_each_replica_goes_on_with_buffers_of_its_own(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(Follows(), nn.Linear(8, 8), Follows(), nn.Linear(8, 3))
    plain, seen = copy.deepcopy(module), [dict(copy.deepcopy(module).named_buffers())] * 2
    update = sgd(list(plain.parameters()))
    for rows in BATCHES:
        update.zero_grad()
        for m, (x, target) in enumerate(zip(*(t.split(2) for t in rows), strict=True)):
            plain.load_state_dict(seen[m % 2], strict=False)
            (F.cross_entropy(plain(x), target) / 4).backward()
            seen[m % 2] = {n: b.clone() for n, b in plain.named_buffers()}
        update.step()
    x, target = BATCHES[0]

    def pipeline(schedule: str) -> pipec.Pipeline:
        plan = pipec.compile(
            module, x[:2], "4xcpu", loss=(F.cross_entropy, target[:2]), stages=2, microbatches=4,
            schedule=schedule,
        )  # fmt: skip
        return pipec.Pipeline(plan, optimizer=sgd)

    with pipeline("1f1b{replicas=2}") as first:
        kept = trained(first, BATCHES[:2])
        first.save(tmp_path)
    with pipeline("1f1b{replicas=2}") as second:
        second.resume(tmp_path)
        got = trained(second, BATCHES[2:])
    with pipeline("1f1b") as alone:
        alone.resume(tmp_path)
        assert all(torch.equal(kept[n], w) for n, w in (alone.state_dict() or {}).items())
    assert not torch.allclose(seen[0]["0.mean"], seen[1]["0.mean"], rtol=0.01)
    torch.testing.assert_close(got, {**plain.state_dict(), **seen[0]}, rtol=1e-5, atol=1e-6)


def test_without_replicas_a_run_goes_on_with_the_buffers_of_the_first(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(Follows(), nn.Linear(8, 8), nn.Linear(8, 8), Follows())
    (x, target), states = BATCHES[0], list[dict[str, Tensor]]()
    for stages, schedule in ((1, "1f1b{replicas=4}"), (4, "1f1b")):
        plan = pipec.compile(
            module, x[:2], "4xcpu", loss=(F.cross_entropy, target[:2]), stages=stages,
            schedule=schedule, microbatches=4,
        )  # fmt: skip
        with pipec.Pipeline(plan, optimizer=sgd) as found:
            if not states:
                trained(found, BATCHES[:2])
                found.save(tmp_path)
            else:
                found.resume(tmp_path)
            states.append(found.state_dict() or {})
    assert all(torch.equal(states[0][n], w) for n, w in states[1].items())
