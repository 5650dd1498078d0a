"""A run that is interrupted and continued ends with the bits of one that was not."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict_loader import load

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


def pipeline(
    case: Case, plan: Plan, schedule: str, seed: int = 0, clip: float | None = None
) -> LocalPipeline:
    order = scheduled(plan, schedule, 4)
    settings = Settings(SETTINGS.optimizer, SETTINGS.scheduler, seed=seed, clip=clip)
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


@pytest.mark.parametrize("name", ["cnn", "dropout"])
@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 4)])
def test_a_checkpoint_fits_another_number_of_stages(
    before: int, after: int, name: str, tmp_path: Path
) -> None:
    case = CASES[name]
    module: nn.Module = seeded(case)
    plans = [staged(case, module, n) for n in (before, after)]
    whole = pipeline(case, plans[0], "1f1b", clip=0.1)
    train(whole, 4)
    first = pipeline(case, plans[0], "1f1b", clip=0.1)
    train(first, 2, checkpoints=Checkpoints(tmp_path, first.executors))
    second = pipeline(case, plans[1], "1f1b", clip=0.1)
    train(second, 4, checkpoints=Checkpoints(tmp_path, second.executors))
    assert worst(second.state_dict(), whole.state_dict()) == 0


@pytest.mark.parametrize("schedule", ["pipedream", "pipedream-2bw", "pipemare", "pipefb"])
def test_without_a_flush_nothing_is_lost_on_another_number_of_stages(
    schedule: str, tmp_path: Path
) -> None:
    case = CASES["dropout"]
    module: nn.Module = seeded(case)
    plans = [staged(case, module, n) for n in (4, 2)]
    whole = pipeline(case, plans[0], schedule)
    train(whole, 4)
    first = pipeline(case, plans[0], schedule)
    train(first, 2, checkpoints=Checkpoints(tmp_path, first.executors))
    between = pipeline(case, plans[1], schedule)
    checkpoints = Checkpoints(tmp_path, between.executors)
    assert checkpoints.resume() == 2
    (tmp_path / "round-2").rename(tmp_path / "not read again")
    checkpoints.save()
    checkpoints.wait()
    last = pipeline(case, plans[0], schedule)
    train(last, 4, checkpoints=Checkpoints(tmp_path, last.executors))
    assert worst(last.state_dict(), whole.state_dict()) == 0


@pytest.mark.parametrize("schedule", ["pipedream", "pipedream-2bw", "pipefb"])
def test_without_a_flush_other_stages_go_on_with_their_own_delays(
    schedule: str, tmp_path: Path
) -> None:
    case = CASES["dropout"]
    module: nn.Module = seeded(case)
    settings = Settings(lambda p: torch.optim.SGD(p, lr=0.05))

    def run(plan: Plan, weights: Mapping[str, torch.Tensor] | None = None) -> LocalPipeline:
        order, batch = scheduled(plan, schedule, 8), batches(case, plan.graph)
        return LocalPipeline(plan, batch, settings, schedule=order, weights=weights)

    plans = [staged(case, module, n) for n in (4, 2)]
    first = run(plans[0])
    train(first, 1, checkpoints=Checkpoints(tmp_path, first.executors))
    second = run(plans[1])
    losses = train(second, 2, checkpoints=Checkpoints(tmp_path, second.executors))
    begun = run(plans[1], {**plans[1].graph.weights, **first.state_dict()})
    for e in begun.executors:
        e.resume(1, 8)
    assert losses == train(begun, 1)
    assert worst(second.state_dict(), begun.state_dict()) == 0


def test_a_checkpoint_is_one_of_torchs_own(tmp_path: Path) -> None:
    case = CASES["mlp"]
    run = pipeline(case, staged(case, seeded(case), 3), "1f1b")
    train(run, 2, checkpoints=Checkpoints(tmp_path, run.executors))
    found = {n: torch.empty_like(w) for n, w in run.state_dict().items()}
    with pytest.warns(UserWarning, match="single process"):
        load({f"weights/{n}": w for n, w in found.items()}, checkpoint_id=tmp_path / "round-2")
    assert worst(found, run.state_dict()) == 0


def test_a_checkpoint_that_cannot_be_written_is_told_of(tmp_path: Path) -> None:
    case = CASES["mlp"]
    run = pipeline(case, staged(case, seeded(case), 3), "1f1b")
    checkpoints = Checkpoints(tmp_path / "saved", run.executors)
    (tmp_path / "saved").rmdir()
    (tmp_path / "saved").touch()
    checkpoints.save()
    with pytest.raises(PipecError, match=r"cannot be written(.|\n)*round-0.part"):
        checkpoints.wait()


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
