"""Any optimizer of torch: the bits of plain training, and of a run that was not interrupted."""

import re
from functools import cache
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from pipec.errors import PipecError
from pipec.plan.model import Plan
from pipec.runtime.builders import optimizer_from_text, scheduler_from_text
from pipec.runtime.checkpoint import Checkpoints
from pipec.runtime.coupling import check_uncoupled
from pipec.runtime.executor import Settings
from pipec.runtime.runner import LocalPipeline
from pipec.runtime.train import train
from pipec.runtime.weights import OptimizerFactory
from tests.autodiff.chain import Case, worst
from tests.autodiff.zoo import CASES, seeded
from tests.runtime.pipelines import accumulated, batches, scheduled, staged


@cache
def mlp() -> tuple[Case, nn.Module, Plan]:
    case = CASES["mlp"]
    module = seeded(case)
    return case, module, staged(case, module, 3)


def pipeline(optimizer: str, rates: str | None = None) -> LocalPipeline:
    case, _, plan = mlp()
    scheduler = scheduler_from_text(rates) if rates else None
    settings = Settings(optimizer_from_text(optimizer), scheduler)
    order = scheduled(plan, "1f1b", 2)
    return LocalPipeline(plan, batches(case, plan.graph), settings, schedule=order)


def interrupted(directory: Path, optimizer: str, rates: str | None = None) -> LocalPipeline:
    first, second = (pipeline(optimizer, rates) for _ in range(2))
    train(first, 2, checkpoints=Checkpoints(directory, first.executors))
    train(second, 4, checkpoints=Checkpoints(directory, second.executors))
    return second


@pytest.mark.parametrize(
    "optimizer",
    [
        "adadelta", "adafactor", "adagrad", "adam:betas=0.8/0.95", "adamax", "adamw", "asgd",
        "nadam", "radam", "rmsprop:momentum=0.9", "rprop", "sgd:lr=0.1,momentum=0.9,nesterov=true",
    ],
)  # fmt: skip
def test_every_optimizer_is_that_of_plain_training(optimizer: str, tmp_path: Path) -> None:
    case, module, _ = mlp()
    _, want = accumulated(case, module, optimizer_from_text(optimizer), 4, 2)
    assert worst(interrupted(tmp_path, optimizer).state_dict(), want) == 0


@pytest.mark.parametrize(
    "rates",
    [
        "onecyclelr:max_lr=0.1,total_steps=10", "cycliclr:base_lr=0.01,max_lr=0.1,step_size_up=3",
        "multisteplr:milestones=1/3", "cosineannealingwarmrestarts:T_0=3", "linearlr",
    ],
)  # fmt: skip
@pytest.mark.parametrize("optimizer", ["sgd:lr=0.05,momentum=0.9", "adamw:lr=0.01"])
def test_learning_rates_and_betas_go_on_where_they_were(
    optimizer: str, rates: str, tmp_path: Path
) -> None:
    whole = pipeline(optimizer, rates)
    train(whole, 4)
    assert worst(interrupted(tmp_path, optimizer, rates).state_dict(), whole.state_dict()) == 0


@pytest.mark.parametrize(
    ("optimizer", "rates", "said"),
    [
        ("muon", None, r"optimizer cannot be made(.|\n)*only supports 2D"),
        ("sgd:lr=-1", None, r"optimizer cannot be made(.|\n)*Invalid learning rate"),
        ("sgd:lr=a/b", None, "an option of the optimizer cannot be read"),
        ("lbfgs", None, r"lbfgs, which needs closure(.|\n)*want:  adadelta"),
        ("sparseadam", None, r"cannot make a step(.|\n)*dense gradients"),
        ("sgd", "multisteplr", r"learning-rate schedule cannot be made(.|\n)*milestones"),
        ("sgd", "reducelronplateau", r"which needs metrics(.|\n)*want:  constantlr"),
        ("sgd", "lambdalr", r"which needs lr_lambda(.|\n)*want:  constantlr"),
        ("sgd", "_lrscheduler", "no such learning-rate schedule"),
        ("sgd", "onecyclelr:max_lr=1,total_steps=1", r"cannot make a step(.|\n)*total steps is 1"),
    ],
)
def test_what_cannot_be_used_is_refused(optimizer: str, rates: str | None, said: str) -> None:
    with pytest.raises(PipecError, match=said):
        train(pipeline(optimizer, rates), 2)


OFFERED = {
    "constantlr": "", "cosineannealinglr": "T_max=3", "cosineannealingwarmrestarts": "T_0=3",
    "cycliclr": "base_lr=0.01,max_lr=0.1", "exponentiallr": "gamma=0.5", "linearlr": "",
    "multisteplr": "milestones=1/3", "onecyclelr": "max_lr=0.1,total_steps=10",
    "polynomiallr": "", "steplr": "step_size=2",
}  # fmt: skip


def test_every_schedule_that_is_offered_makes_steps() -> None:
    with pytest.raises(PipecError) as refused:
        scheduler_from_text("up")
    assert re.findall(r"\w+", str(refused.value.want)) == [*OFFERED]
    for name, options in OFFERED.items():
        sgd = torch.optim.SGD([nn.Parameter(torch.ones(1))], momentum=0.9)
        rates = scheduler_from_text(f"{name}:{options}")(sgd)
        sgd.step()
        rates.step()
        assert rates.last_epoch == 1


def test_a_schedule_that_waits_for_a_loss_is_refused_by_its_steps() -> None:
    case, _, plan = mlp()
    settings = Settings(optimizer_from_text("sgd"), torch.optim.lr_scheduler.ReduceLROnPlateau)
    order = scheduled(plan, "1f1b", 2)
    local = LocalPipeline(plan, batches(case, plan.graph), settings, schedule=order)
    with pytest.raises(PipecError, match=r"cannot make a step(.|\n)*stage 0(.|\n)*metrics"):
        train(local, 2)


class GlobalNorm(torch.optim.SGD):
    """Divides by the norm of all gradients together, as LAMB may."""

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        del closure
        held = [p for group in self.param_groups for p in group["params"]]
        norm = torch.stack([p.grad.square().sum() for p in held]).sum().sqrt()
        for p in held:
            p.grad /= norm
        super().step()


class Estimating(torch.optim.SGD):
    """Its rate grows as all gradients together agree with the last ones, as Prodigy's does."""

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        del closure
        held = [p for group in self.param_groups for p in group["params"]]
        for group in self.param_groups:
            agree = sum(float((p.grad * self.state[p].get("last", 0)).sum()) for p in held)
            group["seen"] = group.get("seen", 0.0) + agree
        super().step()
        for p in held:
            self.state[p]["last"] = p.grad.clone()


class Noisy(torch.optim.SGD):
    """Draws: not what couples."""

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        del closure
        super().step()
        for p in (p for group in self.param_groups for p in group["params"]):
            p.data.add_(torch.randn(p.shape), alpha=1e-3)


def run_with(make: OptimizerFactory, stages: int, replicas: int = 1) -> None:
    case, module, _ = mlp()
    plan = staged(case, module, stages)
    order = scheduled(plan, "1f1b", 2, **({"replicas": replicas} if replicas > 1 else {}))
    LocalPipeline(plan, batches(case, plan.graph), Settings(make), schedule=order).run(1)


@pytest.mark.parametrize("kind", [GlobalNorm, Estimating])
def test_what_couples_parameters_is_refused_where_they_are_stepped_apart(
    kind: type[torch.optim.SGD],
) -> None:
    def make(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return kind(parameters, lr=0.1)

    for stages, replicas in ((2, 1), (1, 2)):
        with pytest.raises(PipecError, match=r"gradients of others(.|\n)*clip="):
            run_with(make, stages, replicas)
    run_with(make, 1)


def clipped(optimizer: torch.optim.Optimizer, *_: object) -> None:
    """A hook before a step."""
    torch.nn.utils.clip_grad_norm_([p for g in optimizer.param_groups for p in g["params"]], 0.1)


@pytest.mark.parametrize("every", [False, True])
def test_hooks_of_torchs_own_optimizers_couple_parameters_too(every: bool) -> None:
    def make(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        if not every:
            optimizer.register_step_pre_hook(clipped)
        return optimizer

    hook = register_optimizer_step_pre_hook(clipped) if every else None
    try:
        with pytest.raises(PipecError, match=r"gradients of others(.|\n)*clip="):
            run_with(make, 2)
    finally:
        if hook is not None:
            hook.remove()


def test_torchs_own_optimizers_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their steps are each parameter's own; what a subclass does is not known."""
    steps = Mock(side_effect=torch.optim.SGD.step)
    monkeypatch.setattr(torch.optim.SGD, "step", lambda self, closure=None: steps(self, closure))
    parameters = {n: torch.ones(2) for n in "ab"}
    check_uncoupled(lambda p: torch.optim.SGD(p, lr=0.1), parameters)
    assert not steps.called
    check_uncoupled(lambda p: Noisy(p, lr=0.1), parameters)
    assert steps.called


def test_what_draws_is_not_taken_for_coupled() -> None:
    before = torch.get_rng_state()
    with torch.random.fork_rng():
        run_with(lambda p: Noisy(p, lr=0.1), 2)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("make", "got"),
    [
        (lambda _: None, "NoneType"),
        (torch.optim.SGD([torch.zeros(1)]), "not callable"),
        (lambda p: torch.optim.SGD([q[1] * 1 for q in p]), "non-leaf"),
    ],
)
def test_a_function_that_makes_no_optimizer_is_refused(make: OptimizerFactory, got: str) -> None:
    with pytest.raises(PipecError, match=rf"makes no Optimizer(.|\n)*stage 0(.|\n)*{got}"):
        run_with(make, 2)
