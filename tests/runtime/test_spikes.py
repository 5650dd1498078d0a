"""A spike of the gradient stops a run, or is left out; a run without any is as it would be."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipec.compiler.driver import emit
from pipec.errors import PipecError
from pipec.runtime.checkpoint import Checkpoints
from pipec.runtime.executor import Batch, Settings
from pipec.runtime.metrics import Step
from pipec.runtime.runner import LocalPipeline
from pipec.runtime.spikes import Spikes
from pipec.runtime.train import train
from tests.autodiff.chain import Case, worst
from tests.autodiff.zoo import floats, seeded
from tests.runtime import jobs
from tests.runtime.pipelines import batches, scheduled, staged
from tests.runtime.processes import elastic

MICROBATCHES, ROUNDS, ODD = 4, 24, 16  # the first round that is judged


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def net() -> nn.Module:
    return nn.Sequential(*[p for _ in range(3) for p in (nn.Linear(8, 8), nn.ReLU())])


CASE = Case(net, nn.functional.cross_entropy, floats(4, 8, classes=8))
PLAN = staged(CASE, seeded(CASE), 3)
GOOD = batches(CASE, PLAN.graph)


def spiked(number: int, factor: float = 1e3, odd: int = ODD) -> Mapping[str, Tensor]:
    """One microbatch of the odd round is far larger; without it the rounds are those of `GOOD`."""
    first = odd * MICROBATCHES
    given = GOOD(number - MICROBATCHES if number >= first + MICROBATCHES else number)
    if number != first + 1:
        return given
    return {n: t * factor if t.is_floating_point() else t for n, t in given.items()}


def made(batch: Batch = GOOD, schedule: str = "1f1b", **told: Any) -> LocalPipeline:
    order = scheduled(PLAN, schedule, MICROBATCHES)
    return LocalPipeline(PLAN, batch, Settings(sgd, **told), schedule=order)


def test_a_spike_is_left_out_as_if_its_round_had_not_been() -> None:
    steps = list[Step]()
    run, plain = made(spiked, on_nan="skip", spike=10.0), made(on_nan="skip")
    train(run, ROUNDS, [steps.append])
    train(plain, ROUNDS - 1)
    assert [s.step for s in steps if s.skipped] == [ODD]
    assert worst(run.state_dict(), plain.state_dict()) == 0
    hit = made(spiked, on_nan="skip")
    train(hit, ROUNDS)
    assert worst(hit.state_dict(), plain.state_dict()) > 1e-3  # it matters


def test_a_spike_stops_a_run_before_its_update(tmp_path: Path) -> None:
    run, plain = made(spiked, on_nan="stop", spike=10.0), made()
    saved = Checkpoints(tmp_path, run.executors)
    told = rf"is a spike; the weights were not updated(.|\n)*round {ODD}(.|\n)*10 times the last"
    with pytest.raises(PipecError, match=told):
        train(run, ROUNDS, checkpoints=saved, every=10)
    train(plain, ODD)
    assert worst(run.state_dict(), plain.state_dict()) == 0
    assert saved.complete() == [10]


@pytest.mark.parametrize("odd", [ODD - 1, ROUNDS + 1])
def test_a_usual_run_and_its_warm_up_are_not_touched(odd: int) -> None:
    def batch(number: int) -> Mapping[str, Tensor]:
        return spiked(number, odd=odd)

    run, plain = made(batch, on_nan="stop", spike=10.0), made(batch)
    losses = train(run, ROUNDS)
    assert losses == train(plain, ROUNDS)
    assert worst(run.state_dict(), plain.state_dict()) == 0


def test_a_checkpoint_holds_what_spikes_are_measured_by(tmp_path: Path) -> None:
    first = made(spiked, on_nan="skip", spike=10.0)
    train(first, ODD - 1, checkpoints=Checkpoints(tmp_path, first.executors))
    second, steps = made(spiked, on_nan="skip", spike=10.0), list[Step]()
    train(second, ROUNDS, [steps.append], checkpoints=Checkpoints(tmp_path, second.executors))
    assert [s.step for s in steps if s.skipped] == [ODD]


def test_without_a_flush_a_spike_of_the_loss_stops_the_run() -> None:
    far = partial(spiked, factor=1e6)
    with pytest.raises(PipecError, match=rf"the loss is a spike\n(.|\n)*round {ODD}"):
        train(made(far, "pipedream", on_nan="stop", spike=10.0), ROUNDS)
    with pytest.raises(PipecError, match="where all weights change"):
        made(schedule="pipedream", on_nan="skip", spike=10.0)


def test_an_overflow_is_no_spike_and_a_spike_leaves_the_scale_alone() -> None:
    run = made(spiked, on_nan="skip", spike=10.0, loss_scale=8.0)
    plain = made(on_nan="skip")
    train(run, ROUNDS)
    train(plain, ROUNDS - 1)
    assert {e.scaling.scale for e in run.executors} == {8.0}
    assert worst(run.state_dict(), plain.state_dict()) < 1e-6


def test_the_median_follows_norms_that_have_become_larger() -> None:
    spikes = Spikes(4.0)
    judged = [spikes.judge(value) for value in [1.0] * 64 + [100.0] * 64]
    assert judged == [False] * 64 + [True] * 32 + [False] * 32
    negative = Spikes(4.0)  # losses may be
    assert [negative.judge(v) for v in [-5.0] * 16 + [-1.0, 9.0, 11.0]][-3:] == [
        False, False, True
    ]  # fmt: skip


@pytest.mark.parametrize("spike", [1.0, -3.0, float("inf")])
def test_no_such_spike(spike: float) -> None:
    with pytest.raises(PipecError, match="no such spike"):
        Settings(sgd, on_nan="skip", spike=spike)
    with pytest.raises(PipecError, match="no effect where training goes on"):
        Settings(sgd, on_nan="continue", spike=10.0)


def test_all_ranks_leave_out_the_same_update(tmp_path: Path) -> None:
    emit(PLAN.replace(schedule=scheduled(PLAN, "1f1b", MICROBATCHES)), tmp_path / "out")
    settings = Settings(sgd, on_nan="skip", spike=10.0)
    found = elastic(jobs.judged, tmp_path / "out", spiked, settings, ROUNDS, ranks=3)
    assert [skipped for skipped, _ in found.values()] == [[ODD]] * 3
    alone = made(spiked, on_nan="skip", spike=10.0)
    train(alone, ROUNDS)
    assert worst(found[0][1], alone.state_dict()) < 1e-6
