"""The log of weight versions holds what was really used: the plan's, and a wrong executor shows."""

from typing import Any

import pytest
import torch

from pipec.runtime.executor import Settings
from pipec.runtime.result import Result
from pipec.runtime.runner import LocalPipeline
from pipec.runtime.weights import StageWeights, Version
from pipec.schedule.action import ActionKind
from pipec.schedule.registry import names
from pipec.schedule.schedule import Schedule
from tests.autodiff.zoo import CASES, seeded
from tests.runtime.pipelines import batches, scheduled, staged

MICROBATCHES = 8
TRAINING = [n for n in names() if n != "inference"]
OPTIONS: dict[str, dict[str, object]] = {
    "interleaved": {"chunks": 2},
    "pipedream-2bw": {"update_every": 4},
}


def ran(name: str) -> tuple[Schedule, Result]:
    case = CASES["long skip"]
    plan = staged(case, seeded(case), 4)
    order = scheduled(plan, name, MICROBATCHES, **OPTIONS.get(name, {}))
    settings = Settings(lambda p: torch.optim.SGD(p, lr=0.05))
    pipeline = LocalPipeline(plan, batches(case, plan.graph), settings, schedule=order)
    pipeline.round()
    return order, pipeline.round()  # a second round counts from 0 again


def wrong(result: Result) -> int:
    """Actions that used another version than the plan says."""
    return sum(used != action.version for action, used in result.versions)


@pytest.mark.parametrize("name", TRAINING)
def test_every_action_uses_the_version_of_the_plan(name: str) -> None:
    order, result = ran(name)
    logged = [a for a in order if a.kind.is_compute or a.kind is ActionKind.STEP]
    assert len(logged) == len(result.versions)
    assert set(logged) == {action for action, _ in result.versions}
    assert wrong(result) == 0


@pytest.mark.parametrize("name", ["pipedream", "pipedream-2bw", "pipefb"])
def test_the_log_shows_an_executor_that_does_not_stash(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = StageWeights.version_at

    def newest(self: StageWeights, version: int) -> Version:
        del version
        return at(self, self.newest)

    monkeypatch.setattr(StageWeights, "version_at", newest)
    assert wrong(ran(name)[1]) > 0


@pytest.mark.parametrize("name", ["pipedream", "pipedream-2bw"])
def test_the_log_shows_a_step_that_writes_over_a_version_in_use(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = StageWeights.step

    def overwriting(self: StageWeights, update: int, **given: Any) -> None:
        step(self, update, **{**given, "in_place": True})

    monkeypatch.setattr(StageWeights, "step", overwriting)
    assert wrong(ran(name)[1]) > 0
