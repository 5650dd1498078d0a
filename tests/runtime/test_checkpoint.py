"""A run that is interrupted and continued ends with the bits of one that was not."""

import copy
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipec.errors import PipecError
from pipec.plan.model import Plan
from pipec.runtime.checkpoint import Checkpoints
from pipec.runtime.executor import OnNan, Settings
from pipec.runtime.metrics import Step
from pipec.runtime.rules import Correction
from pipec.runtime.runner import LocalPipeline
from pipec.runtime.train import train
from tests.autodiff.chain import Case, worst
from tests.autodiff.zoo import CASES, floats, seeded
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


class Paths(nn.Module):
    """Weights named as in ONNX files; one is called like another's optimizer state."""

    NAMES = ("fc", "fc/exp_avg", "fc/exp_avg#1", "gpu_0/fc#2/w")

    def __init__(self) -> None:
        super().__init__()
        for name in self.NAMES:
            self.register_parameter(name, nn.Parameter(torch.randn(8, 8) / 3))

    def forward(self, x: Tensor) -> Tensor:
        for name in self.NAMES:
            x = torch.tanh(x @ self.get_parameter(name))
        return x


@pytest.mark.parametrize(("before", "after"), [(4, 4), (4, 2), (2, 4)])
def test_names_of_weights_may_be_paths(before: int, after: int, tmp_path: Path) -> None:
    case = Case(Paths, nn.functional.cross_entropy, floats(4, 8))
    module = seeded(case)
    plans = [staged(case, module, n) for n in (before, after)]
    assert interrupted(case, plans, SETTINGS, tmp_path) == 0


def interrupted(case: Case, plans: list[Plan], settings: Settings, place: Path) -> float:
    """How far two rounds on the first plan and two on the second are from four on the first."""

    def run(plan: Plan) -> LocalPipeline:
        order, batch = scheduled(plan, "1f1b", 2), batches(case, plan.graph)
        return LocalPipeline(plan, batch, settings, schedule=order)

    whole, first, second = run(plans[0]), run(plans[0]), run(plans[1])
    train(whole, 4)
    train(first, 2, checkpoints=Checkpoints(place, first.executors))
    train(second, 4, checkpoints=Checkpoints(place, second.executors))
    return worst(second.state_dict(), whole.state_dict())


def two_groups(parameters: list[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    """Matrices decay, other weights do not; a stage without matrices has one group."""
    matrices = [p for p in parameters if p[1].ndim > 1]
    others = [p for p in parameters if p[1].ndim <= 1]
    groups: list[dict[str, object]] = [
        {"params": matrices, "lr": 0.02, "weight_decay": 0.5},
        {"params": others},
    ]
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=0.01, weight_decay=0.0)


def normed() -> nn.Module:
    """Cut in four, its first stages have no matrices."""
    return nn.Sequential(nn.LayerNorm(8), nn.LayerNorm(8), nn.LayerNorm(8), nn.Linear(8, 8))


@pytest.mark.parametrize(("before", "after"), [(4, 4), (4, 2), (4, 1), (1, 4), (2, 3)])
def test_parameters_keep_their_group_on_other_stages(
    before: int, after: int, tmp_path: Path
) -> None:
    case = Case(normed, nn.functional.cross_entropy, floats(4, 8))
    module = seeded(case)
    plans = [staged(case, module, n) for n in (before, after)]
    settings = Settings(two_groups, lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.5))
    assert interrupted(case, plans, settings, tmp_path) == 0


@pytest.mark.parametrize(("before", "after"), [(2, 2), (3, 2)])
def test_a_learning_rate_that_is_a_tensor_comes_back_as_one(
    before: int, after: int, tmp_path: Path
) -> None:
    case = CASES["mlp"]
    module = seeded(case)
    plans = [staged(case, module, n) for n in (before, after)]
    settings = Settings(
        lambda p: torch.optim.Adam(p, lr=torch.tensor(0.02)),
        lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.5),
    )
    assert interrupted(case, plans, settings, tmp_path) == 0
    order, batch = scheduled(plans[1], "1f1b", 2), batches(case, plans[1].graph)
    run = LocalPipeline(plans[1], batch, settings, schedule=order)
    Checkpoints(tmp_path, run.executors).resume()
    (rate,) = {
        w.optimizer.param_groups[0]["lr"]
        for e in run.executors
        for w in e.weights.values()
        if w.optimizer and e.device == 0
    }
    assert torch.equal(rate, torch.tensor(0.02 / 2**4))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (Settings(lambda p: torch.optim.SGD(p, lr=0.1)), "another optimizer(.|\n)*SGD(.|\n)*AdamW"),
        (
            Settings(SETTINGS.optimizer, lambda o: torch.optim.lr_scheduler.StepLR(o, step_size=3)),
            "another learning-rate schedule(.|\n)*StepLR(.|\n)*CosineAnnealingLR",
        ),
    ],
)
def test_settings_of_another_class_are_not_taken_over(
    settings: Settings, said: str, tmp_path: Path
) -> None:
    case = CASES["mlp"]
    plan = staged(case, seeded(case), 2)
    first = pipeline(case, plan, "1f1b")
    train(first, 1, checkpoints=Checkpoints(tmp_path, first.executors))
    order, batch = scheduled(plan, "1f1b", 4), batches(case, plan.graph)
    second = LocalPipeline(plan, batch, settings, schedule=order)
    with pytest.raises(PipecError, match=said):
        Checkpoints(tmp_path, second.executors).resume()


@pytest.mark.parametrize("schedule", ["1f1b", "pipedream"])
def test_a_state_that_is_not_finite_displaces_nothing(schedule: str, tmp_path: Path) -> None:
    case, told = CASES["mlp"], list[str]()
    plan = staged(case, seeded(case), 2)
    good = batches(case, plan.graph)

    def batch(number: int) -> Mapping[str, Tensor]:
        given = good(number)
        return {n: t * torch.nan if t.is_floating_point() and number == 9 else t
                for n, t in given.items()}  # fmt: skip

    order = scheduled(plan, schedule, 4)
    run = LocalPipeline(plan, batch, Settings(SETTINGS.optimizer), schedule=order)
    checkpoints = Checkpoints(tmp_path, run.executors, keep=1, tell=told.append)
    train(run, 6, checkpoints=checkpoints, every=1)
    assert not run.state_dict()["0.weight"].isfinite().all()
    assert checkpoints.complete() == [2]
    assert len(told) == 4
    assert "is not finite" in told[0]
    assert checkpoints.resume() == 2
    assert all(w.isfinite().all() for w in run.state_dict().values())


@pytest.mark.parametrize("on_nan", ["stop", "skip"])
def test_an_update_that_is_not_finite_is_left_out(on_nan: OnNan, tmp_path: Path) -> None:
    """As if its round had not been; stopping keeps the checkpoint that was under way."""
    case = CASES["mlp"]
    plan = staged(case, seeded(case), 3)
    good, steps = batches(case, plan.graph), list[Step]()

    def batch(number: int) -> Mapping[str, Tensor]:
        given = good(number - 4 if number > 9 else number)
        return {n: t * torch.nan if t.is_floating_point() and number == 9 else t
                for n, t in given.items()}  # fmt: skip

    settings = Settings(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), on_nan=on_nan)
    order = scheduled(plan, "1f1b", 4)
    run = LocalPipeline(plan, batch, settings, schedule=order)
    plain = LocalPipeline(plan, good, settings, schedule=order)
    checkpoints = Checkpoints(tmp_path, run.executors)
    if on_nan == "stop":
        with pytest.raises(PipecError, match=r"were not updated(.|\n)*round 2"):
            train(run, 4, [steps.append], checkpoints=checkpoints, every=1)
        train(plain, 2)
        assert checkpoints.complete() == [1, 2]
    else:
        train(run, 4, [steps.append], checkpoints=checkpoints, every=1)
        train(plain, 3)
        assert checkpoints.complete() == [3, 4]
    assert worst(run.state_dict(), plain.state_dict()) == 0
    assert [s.skipped for s in steps] == [False, False, True, False][: len(steps)]


def test_settings_of_the_optimizer_that_do_not_count_are_told(tmp_path: Path) -> None:
    case, told = CASES["mlp"], list[str]()
    plan = staged(case, seeded(case), 2)

    def run(lr: float, *, cosine: bool = False, end: int = 9) -> LocalPipeline:
        order, batch = scheduled(plan, "1f1b", 8), batches(case, plan.graph)
        rates = (lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, end)) if cosine else None
        settings = Settings(lambda p: torch.optim.SGD(p, lr=lr), rates)
        return LocalPipeline(plan, batch, settings, schedule=order)

    said_so = "the optimizer's settings are the checkpoint's: {} 0.1, not 0.0"
    for cosine, name in ((False, "lr"), (True, "initial_lr")):
        first, folder = run(0.1, cosine=cosine), tmp_path / str(cosine)
        train(first, 2, checkpoints=Checkpoints(folder, first.executors))
        for lr, said in ((0.1, []), (0.0, [said_so.format(name)])):
            told.clear()
            again = run(lr, cosine=cosine)
            Checkpoints(folder, again.executors, tell=told.append).resume()
            assert told == said
    again = run(0.1, cosine=True, end=20)
    Checkpoints(tmp_path / "True", again.executors, tell=told.append).resume()
    assert told[-1] == "the optimizer's settings are the checkpoint's: T_max 9, not 20"


def test_what_a_run_that_goes_on_is_told_anew_is_said(tmp_path: Path) -> None:
    case, told = CASES["dropout"], list[str]()
    module = seeded(case)
    other = copy.deepcopy(module)
    next(m for m in other.modules() if isinstance(m, nn.Dropout)).p = 0.9

    def run(model: nn.Module, microbatches: int, **settings: Any) -> LocalPipeline:
        plan = staged(case, model, 2)
        order, batch = scheduled(plan, "1f1b", microbatches), batches(case, plan.graph)
        return LocalPipeline(
            plan, batch, Settings(lambda p: torch.optim.SGD(p, lr=0.1), **settings), schedule=order
        )

    first = run(module, 4, seed=1, clip=1.0)
    train(first, 1, checkpoints=Checkpoints(tmp_path, first.executors))
    for again, want in (
        (run(module, 4, seed=1, clip=1.0), ""),
        (run(module, 4, seed=2, clip=1.0), "the seed 2, not 1"),
        (run(module, 4, seed=1), "the clipping norm None, not 1.0"),
        (run(module, 8, seed=1, clip=1.0), "the microbatches of a round 8, not 4"),
        (run(other, 4, seed=1, clip=1.0), "the numbers in the model"),
    ):
        told.clear()
        Checkpoints(tmp_path, again.executors, tell=told.append).resume()
        assert len(told) == bool(want)
        assert not want or told[0].startswith(f"going on with settings of this run: {want}")


@pytest.mark.parametrize("clip", [None, 1.0])
def test_a_limit_of_infinity_and_no_limit_are_the_same(clip: float | None, tmp_path: Path) -> None:
    """A pipeline asks for a norm without a limit where there is a flush; without one, for none."""
    case, told = CASES["mlp"], list[str]()
    plan = staged(case, seeded(case), 2)
    first, again = (
        LocalPipeline(
            plan,
            batches(case, plan.graph),
            Settings(lambda p: torch.optim.SGD(p, lr=0.1), clip=limit),
            schedule=scheduled(plan, name, 4),
        )
        for name, limit in (("1f1b", clip or math.inf), ("pipedream", None))
    )
    train(first, 1, checkpoints=Checkpoints(tmp_path, first.executors))
    Checkpoints(tmp_path, again.executors, tell=told.append).resume()
    want = "going on with settings of this run: the clipping norm None, not 1.0"
    assert [t for t in told if "clipping" in t] == ([want] if clip else [])


def test_a_schedule_that_is_not_gone_on_with_is_told(tmp_path: Path) -> None:
    """It changes the momentum of Adam too, which has other settings without it."""
    case, told = CASES["mlp"], list[str]()
    plan = staged(case, seeded(case), 2)

    def run(*, cycle: bool) -> LocalPipeline:
        order, batch = scheduled(plan, "1f1b", 8), batches(case, plan.graph)
        rates = (lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, 9)) if cycle else None
        settings = Settings(lambda p: torch.optim.Adam(p, lr=0.5), rates)
        return LocalPipeline(plan, batch, settings, schedule=order)

    first = run(cycle=True)
    train(first, 2, checkpoints=Checkpoints(tmp_path, first.executors))
    again = run(cycle=False)
    Checkpoints(tmp_path, again.executors, tell=told.append).resume()
    (line,) = told
    assert re.search(
        r"settings are the checkpoint's: .*lr 0\.0\d+, not 0\.5; max_lr 0\.1, not None", line
    )
