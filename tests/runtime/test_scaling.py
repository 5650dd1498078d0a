"""Float16 under autocast with a scaled loss: as a plain loop with `torch.amp.GradScaler` does."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from pipec.errors import PipecError
from pipec.runtime import scaling
from pipec.runtime.checkpoint import Checkpoints
from pipec.runtime.executor import Settings
from pipec.runtime.metrics import Step
from pipec.runtime.runner import LocalPipeline
from pipec.runtime.train import train
from tests.autodiff.chain import Case, worst
from tests.autodiff.zoo import floats, seeded
from tests.runtime.pipelines import batches, scheduled, staged

FIRST, ROUNDS, BREAK, MICROBATCHES = 2.0**30, 24, 16, 4


class Half(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3)
        )

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.float16):
            found: Tensor = self.body(x)
        return found.float()


CASE = Case(Half, nn.functional.cross_entropy, floats(4, 8))


def sgd(parameters: object) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)  # type: ignore[arg-type]


def plain(clip: float | None, interval: int) -> tuple[dict[str, Tensor], list[float]]:
    """Weights, and the scale after every step."""
    model, scales = seeded(CASE), []
    optimizer = sgd(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=FIRST, growth_interval=interval)
    for step in range(ROUNDS):
        optimizer.zero_grad()
        for k in range(step * MICROBATCHES, (step + 1) * MICROBATCHES):
            args, target = CASE.batch(k)
            loss = CASE.loss(model(*args), target)
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        for p in model.parameters():
            p.grad = p.grad / MICROBATCHES if p.grad is not None else None
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return model.state_dict(), scales


@pytest.mark.parametrize(("clip", "interval"), [(None, 2000), (0.05, 2000), (None, 4)])
def test_scaling_is_that_of_torch_and_survives_a_checkpoint(
    clip: float | None, interval: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scaling, "_INTERVAL", interval)  # of good updates, then the scale grows
    want, scales = plain(clip, interval)
    assert scales[0] < FIRST
    assert interval == 4 or scales[-1] == scales[-8] > 1  # some updates overflow, then none does
    plan = staged(CASE, seeded(CASE), 3)
    settings = Settings(sgd, clip=clip, on_nan="stop", loss_scale=FIRST)

    def made() -> LocalPipeline:
        order, batch = scheduled(plan, "1f1b", MICROBATCHES), batches(CASE, plan.graph)
        return LocalPipeline(plan, batch, settings, schedule=order)

    steps, found, runs = list[Step](), list[float](), [made(), made()]

    def note(step: Step) -> None:
        steps.append(step)
        found.append(runs[step.step >= BREAK].executors[0].scaling.scale)

    for rounds, run in zip((BREAK, ROUNDS), runs, strict=True):
        train(run, rounds, [note], checkpoints=Checkpoints(tmp_path, run.executors))
    assert found == scales
    assert [s.skipped for s in steps] == [
        b < a for a, b in zip([FIRST, *scales], scales, strict=False)
    ]
    assert worst(runs[1].state_dict(), want) <= 1e-6


def test_what_no_smaller_scale_can_help_stops() -> None:
    plan = staged(CASE, seeded(CASE), 2)
    order, good = scheduled(plan, "1f1b", MICROBATCHES), batches(CASE, plan.graph)

    def batch(number: int) -> dict[str, Tensor]:
        return {n: t * torch.inf if t.is_floating_point() else t for n, t in good(number).items()}

    settings = Settings(sgd, on_nan="stop", loss_scale=8.0)
    with pytest.raises(PipecError, match="not finite"):
        train(LocalPipeline(plan, batch, settings, schedule=order), 9)


@pytest.mark.parametrize(
    ("schedule", "scale", "said"),
    [("pipedream", 8.0, "schedule pipedream"), ("1f1b", 0.0, "no such loss scale")],
)
def test_refusals(schedule: str, scale: float, said: str) -> None:
    plan = staged(CASE, seeded(CASE), 2)
    order, batch = scheduled(plan, schedule, MICROBATCHES), batches(CASE, plan.graph)
    with pytest.raises(PipecError, match=said):
        LocalPipeline(plan, batch, Settings(sgd, loss_scale=scale), schedule=order)


def test_weights_in_float16_are_refused() -> None:
    target = torch.ones(4, dtype=torch.long)
    case = Case(
        lambda: nn.Linear(8, 3).half(),
        nn.functional.cross_entropy,
        lambda _: ((torch.ones(4, 8).half(),), target),
    )
    plan = staged(case, seeded(case), 1)
    order, batch = scheduled(plan, "1f1b", 1), batches(case, plan.graph)
    with pytest.raises(PipecError, match="weights in float32"):
        LocalPipeline(plan, batch, Settings(sgd, loss_scale=8.0), schedule=order)
