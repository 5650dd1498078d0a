"""Any optimizer of torch: the bits of plain training, and of a run that was not interrupted."""

from functools import cache
from pathlib import Path

import pytest
from torch import nn

from pipec.errors import PipecError
from pipec.plan.model import Plan
from pipec.runtime.builders import optimizer_from_text, scheduler_from_text
from pipec.runtime.checkpoint import Checkpoints
from pipec.runtime.executor import Settings
from pipec.runtime.local import LocalPipeline
from pipec.runtime.train import train
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
        ("lbfgs", None, r"cannot make a step(.|\n)*stage 2(.|\n)*closure"),
        ("sparseadam", None, r"cannot make a step(.|\n)*dense gradients"),
        ("sgd", "multisteplr", r"learning-rate schedule cannot be made(.|\n)*milestones"),
        ("sgd", "reducelronplateau", r"cannot make a step(.|\n)*metrics"),
        ("sgd", "_lrscheduler", "no such learning-rate schedule"),
        ("sgd", "onecyclelr:max_lr=1,total_steps=1", r"cannot make a step(.|\n)*total steps is 1"),
    ],
)
def test_what_cannot_be_used_is_refused(optimizer: str, rates: str | None, said: str) -> None:
    with pytest.raises(PipecError, match=said):
        train(pipeline(optimizer, rates), 2)
