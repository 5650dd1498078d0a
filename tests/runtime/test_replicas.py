"""Replicas of a stage share the optimizer's state: half of the bytes each, and the same weights."""

import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import nn

from pipec.cluster.cluster import parse_cluster
from pipec.compiler.facts import plan_facts
from pipec.compiler.timeline import timeline_of
from pipec.plan.model import Plan, StageTiming
from pipec.runtime.builders import optimizer_from_text
from pipec.runtime.checkpoint import Checkpoints
from pipec.runtime.executor import Settings
from pipec.runtime.runner import LocalPipeline
from pipec.runtime.train import train
from pipec.runtime.weights import OptimizerFactory
from pipec.schedule.action import ActionKind
from pipec.schedule.schedule import Schedule
from pipec.simulate.memory import CATEGORIES, Memory
from pipec.simulate.simulate import simulate
from pipec.simulate.times import Times
from tests.autodiff.chain import worst
from tests.autodiff.zoo import CASES, seeded
from tests.runtime import jobs
from tests.runtime.pipelines import accumulated, batches, scheduled, staged
from tests.runtime.processes import elastic

Named = Sequence[tuple[str, nn.Parameter]]


def adamw(named: Named) -> torch.optim.Optimizer:
    """No decay for vectors."""
    groups = [([p for _, p in named if (p.ndim > 1) == k], 0.1 * k) for k in (True, False)]
    return torch.optim.AdamW([{"params": p, "weight_decay": d} for p, d in groups if p], lr=0.01)


def momentum(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def decayed(named: Named) -> torch.optim.Optimizer:
    return torch.optim.SGD(named, lr=0.1, momentum=0.9, weight_decay=0.1)


def rates(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)


def pipeline(
    name: str, stages: int, replicas: int, settings: Settings, schedule: str = "1f1b"
) -> LocalPipeline:
    case = CASES[name]
    plan = staged(case, seeded(case), stages)
    order = scheduled(plan, schedule, 4, **({"replicas": replicas} if replicas > 1 else {}))
    return LocalPipeline(plan, batches(case, plan.graph), settings, schedule=order)


def optimizer_bytes(run: LocalPipeline) -> list[int]:
    return [sum(w.optimizer_bytes for w in e.weights.values()) for e in run.executors]


@pytest.mark.parametrize(
    ("name", "optimizer", "clip"),
    [("llama", adamw, None), ("llama", adamw, 0.1), ("gpt-2", momentum, 0.1)],
)
def test_two_replicas_hold_half_of_the_optimizers_state_each(
    name: str, optimizer: OptimizerFactory, clip: float | None
) -> None:
    settings = Settings(optimizer, clip=clip)
    shared, whole = (pipeline(name, 2, replicas, settings) for replicas in (2, 1))
    losses = shared.run(3)
    assert losses == pytest.approx(whole.run(3), rel=1e-6)
    rounding = 5e-6 if optimizer is adamw else 1e-6  # Adam divides it by small gradients
    assert worst(shared.state_dict(), whole.state_dict()) < rounding
    held = optimizer_bytes(whole)
    copies = [[e.device for e in shared.executors if s in e.weights] for s in range(2)]
    every = optimizer_bytes(shared)
    for stage, devices in enumerate(copies):
        # each keeps the number of steps of its own parameters: some bytes more in all
        assert sum(every[d] for d in devices) == held[stage]
        assert all(every[d] <= 0.55 * held[stage] for d in devices)


@pytest.mark.parametrize(
    "optimizer",
    [
        "adadelta", "adafactor", "adagrad", "adam", "adamax", "asgd", "nadam", "radam",
        "rmsprop:momentum=0.9", "rprop", "sgd:lr=0.1,momentum=0.9",
    ],
)  # fmt: skip
def test_every_optimizer_steps_its_share(optimizer: str) -> None:
    """Stages of one parameter leave a replica without any."""
    case = CASES["mlp"]
    module = seeded(case)
    plan = staged(case, module, 3)
    order = scheduled(plan, "1f1b", 4, replicas=2)
    settings = Settings(optimizer_from_text(optimizer))
    run = LocalPipeline(plan, batches(case, plan.graph), settings, schedule=order)
    run.run(3)
    _, want = accumulated(case, module, optimizer_from_text(optimizer), 3, 4)
    assert worst(run.state_dict(), want) < 2e-5  # Rprop and Adam turn rounding into steps


@pytest.mark.parametrize(
    ("before", "after"), [((2, 2), (3, 1)), ((3, 1), (2, 2)), ((2, 2), (1, 4))]
)
def test_checkpoints_are_read_on_any_number_of_replicas_and_stages(
    before: tuple[int, int], after: tuple[int, int], tmp_path: Path
) -> None:
    settings = Settings(adamw, rates)
    whole, first = (pipeline("llama", *before, settings) for _ in range(2))
    train(whole, 4)
    train(first, 2, checkpoints=Checkpoints(tmp_path, first.executors))
    second = pipeline("llama", *after, settings)
    train(second, 4, checkpoints=Checkpoints(tmp_path, second.executors))
    assert worst(second.state_dict(), whole.state_dict()) < 1e-5
    again = pipeline("llama", *before, settings)
    train(again, 2, checkpoints=Checkpoints(tmp_path, again.executors, keep=9))
    kept = {id(p) for e in again.executors for w in e.weights.values() for p in w.owned.values()}
    assert kept == {
        id(p) for e in again.executors for w in e.weights.values() if w.optimizer
        for p in w.optimizer.state
    }  # fmt: skip


@pytest.mark.parametrize("stages", [1, 2])
def test_running_statistics_are_those_of_the_first_replica(stages: int) -> None:
    """As those of rank 0 are under torch's DistributedDataParallel."""
    run = pipeline("cnn", stages, 2, Settings(momentum))
    assert run.run(1)
    module, first = seeded(CASES["cnn"]).train(), run.program.schedule.rows()[0]
    mine = {a.microbatch for a in first if a.kind is ActionKind.F and a.microbatch is not None}
    for k in sorted(mine):
        module(*CASES["cnn"].batch(k)[0])
    found, wanted = run.state_dict(), dict(module.named_buffers())
    assert len(mine) == 2
    assert any("running_mean" in name for name in wanted)
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value)


@pytest.mark.parametrize("optimizer", [adamw, decayed])
def test_replicas_leave_alone_what_no_microbatch_has_reached(optimizer: OptimizerFactory) -> None:
    want, first = jobs.sparse_alone(optimizer, 3), jobs.sparse_alone(optimizer, 1)
    assert torch.equal(want["0.inner.weight"], first["0.inner.weight"])  # neither decay nor moment
    found = jobs.sparse(optimizer, 2)
    assert found is not None
    assert worst(found, want) < 1e-6


def test_so_do_replicas_in_processes() -> None:
    found = elastic(jobs.sparse, adamw, 1, ranks=2)[0]
    assert worst(found, jobs.sparse_alone(adamw, 3)) < 1e-6


def test_the_prediction_counts_a_share_of_the_optimizers_state() -> None:
    def held(order: Schedule) -> list[float]:
        memory = Memory(weights=[1.0] * 2, gradients=[1.0] * 2, optimizer=[8.0, 4.0])
        curves = simulate(order, Times.uniform(2), memory).memory_curves
        column = CATEGORIES.index("optimizer")
        return [float(c.held[:, column].max()) for c in curves]

    case = CASES["mlp"]
    plan = staged(case, seeded(case), 2)
    assert held(scheduled(plan, "1f1b", 4)) == [8, 4]
    assert sorted(held(scheduled(plan, "1f1b", 4, replicas=2))) == [2, 2, 4, 4]


def timed(plan: Plan) -> Plan:
    """Every stage computes for a second and steps for another, on one of six devices."""
    timing = (StageTiming(1.0, 1.0, "", step_seconds=1.0),) * len(plan.stages)
    return plan.replace(timing=timing, cluster=parse_cluster("6xh100"))


@pytest.mark.parametrize(("name", "stages", "replicas"), [("llama", 2, 2), ("cnn", 1, 4)])
def test_what_each_replica_really_keeps_is_predicted(name: str, stages: int, replicas: int) -> None:
    """One weight is most of a stage: shares are uneven, and the prediction knows them."""

    def adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=0.01)

    run = pipeline(name, stages, replicas, Settings(adam))
    run.run(1)
    timeline = timeline_of(plan_facts(timed(run.program.plan)), run.program.schedule)
    column = CATEGORIES.index("optimizer")
    predicted = [float(c.held[:, column].max()) for c in timeline.memory_curves]
    counts = [4 * len(w.owned) for e in run.executors for w in e.weights.values()]  # Adam's steps
    real = [b - n for b, n in zip(optimizer_bytes(run), counts, strict=True)]
    assert predicted == real
    assert len(set(real)) > 1


def test_a_replica_steps_in_the_time_of_its_share() -> None:
    case = CASES["llama"]
    plan = timed(staged(case, seeded(case), 2))
    once, shared = (
        timeline_of(plan_facts(plan), scheduled(plan, "1f1b", 4, **options)).times.step
        for options in ({}, {"replicas": 2})
    )
    assert all(0.5 * a <= b < 0.8 * a for a, b in zip(once, shared, strict=True))


def test_a_step_is_work_and_no_bubble() -> None:
    """An optimizer that sleeps keeps both devices busy."""

    class Slow(torch.optim.SGD):
        def step(self, closure: None = None) -> None:  # type: ignore[override]
            time.sleep(0.05)
            super().step(closure)

    run = pipeline("mlp", 2, 1, Settings(lambda parameters: Slow(parameters, lr=0.1)))
    run.run(1)
    assert sum(e.result.busy for e in run.executors) > 0.1
