"""A run that is interrupted and continued ends with the bits of one that was not."""

from pathlib import Path

import pytest
import torch
from torch import nn

from pipec.errors import PipecError
from pipec.plan.model import Plan
from pipec.runtime.checkpoint import Checkpoints
from pipec.runtime.executor import Settings
from pipec.runtime.local import LocalPipeline
from pipec.runtime.rules import Correction
from pipec.runtime.train import train
from tests.autodiff.chain import Case, worst
from tests.autodiff.zoo import CASES, seeded
from tests.runtime.pipelines import batches, scheduled, staged

SETTINGS = Settings(
    lambda p: torch.optim.AdamW(p, lr=0.01),
    lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=20),
    correction=Correction(t1_steps=10, t2_decay=0.1),
)


def pipeline(case: Case, plan: Plan, schedule: str, seed: int = 0) -> LocalPipeline:
    order = scheduled(plan, schedule, 4)
    settings = Settings(SETTINGS.optimizer, SETTINGS.scheduler, seed=seed)
    if schedule == "pipemare":
        settings = SETTINGS
    return LocalPipeline(plan, batches(case, plan.graph), settings, schedule=order)


@pytest.mark.parametrize("schedule", ["1f1b", "pipedream", "pipemare", "pipefb"])
@pytest.mark.parametrize("name", ["cnn", "dropout"])
def test_continuing_is_bit_identical(name: str, schedule: str, tmp_path: Path) -> None:
    case = CASES[name]
    plan = staged(case, seeded(case), 3)
    whole = pipeline(case, plan, schedule)
    losses = train(whole, 6)
    first = pipeline(case, plan, schedule)
    train(first, 4, checkpoints=Checkpoints(tmp_path, first.executors), every=2)
    second = pipeline(case, plan, schedule)
    checkpoints = Checkpoints(tmp_path, second.executors)
    assert checkpoints.complete() == [2, 4]
    assert train(second, 6, checkpoints=checkpoints) == losses[4:]
    assert worst(second.state_dict(), whole.state_dict()) == 0


@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 4)])
def test_a_checkpoint_fits_another_number_of_stages(
    before: int, after: int, tmp_path: Path
) -> None:
    case = CASES["cnn"]
    module: nn.Module = seeded(case)
    plans = [staged(case, module, n) for n in (before, after)]
    whole = pipeline(case, plans[0], "1f1b")
    train(whole, 4)
    first = pipeline(case, plans[0], "1f1b")
    train(first, 2, checkpoints=Checkpoints(tmp_path, first.executors))
    second = pipeline(case, plans[1], "1f1b")
    train(second, 4, checkpoints=Checkpoints(tmp_path, second.executors))
    assert worst(second.state_dict(), whole.state_dict()) == 0


def test_a_half_written_checkpoint_does_not_count(tmp_path: Path) -> None:
    case = CASES["mlp"]
    plan = staged(case, seeded(case), 3)
    run = pipeline(case, plan, "1f1b")
    train(run, 2, checkpoints=Checkpoints(tmp_path, run.executors))
    (tmp_path / "round-9.part").mkdir()
    assert Checkpoints(tmp_path, run.executors).complete() == [2]


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    for name in ("mlp", "cnn"):
        case = CASES[name]
        run = pipeline(case, staged(case, seeded(case), 3), "1f1b")
        checkpoints = Checkpoints(tmp_path, run.executors)
        if name == "cnn":
            with pytest.raises(PipecError, match="lacks a weight"):
                checkpoints.resume()
        else:
            train(run, 1, checkpoints=checkpoints)
