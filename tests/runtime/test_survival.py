"""Ranks that die: with restarts the run ends as if nothing had happened, without all stop."""

import random
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from pipec.plan.store import load_plan
from pipec.runtime.local import LocalPipeline
from pipec.runtime.train import train
from tests.runtime import ranks
from tests.runtime.pipelines import emitted
from tests.runtime.processes import alone, elastic

KILLS, ROUNDS = 20, 80


@pytest.mark.slow
def test_twenty_kills_at_random_points_change_no_bit(tmp_path: Path) -> None:
    emitted(tmp_path / "out", devices=2)
    rng = random.Random(1)
    kills = []
    for k in range(KILLS):
        early = k % 4 == 0
        kills.append((rng.randrange(2), early, rng.randrange(1, 60_000 if early else 30_000)))
    elastic(ranks.survives, tmp_path, ROUNDS, kills, ranks=2, restarts=KILLS)
    places = (tmp_path / "deaths").read_text().splitlines()
    assert len(places) == KILLS
    plan = load_plan(tmp_path / "out")
    undisturbed = LocalPipeline(plan, ranks.data(plan), ranks.settings())
    train(undisturbed, ROUNDS)
    end, want = load_file(tmp_path / "end.safetensors"), undisturbed.state_dict()
    assert end.keys() == want.keys()
    assert all(torch.equal(end[n], want[n]) for n in want)


def others_say(directory: Path, victim: int, calls: int, number: int) -> list[str]:
    """What the others of three ranks say when one gets a signal at its n-th call; all must end."""
    emitted(directory / "out", devices=3)
    left = int(number == signal.SIGSTOP)
    codes = alone(ranks.left_alone, directory, victim, calls, number, 3.0, ranks=3, left=left)
    others = [r for r in range(3) if r != victim]
    assert [codes[r] for r in others] == [1, 1]
    said = [(directory / f"says{r}").read_text() for r in others]
    for r, says in zip(others, said, strict=True):
        assert "another rank did not answer" in says
        assert f"rank {r}, " in says
        assert "waiting for " in says
    return said


@pytest.mark.parametrize(
    ("victim", "number"),
    [(0, signal.SIGKILL), (1, signal.SIGKILL), (2, signal.SIGKILL), (1, signal.SIGSTOP)],
)
def test_without_restarts_all_ranks_stop_and_say_what_they_waited_for(
    victim: int, number: signal.Signals, tmp_path: Path
) -> None:
    for says in others_say(tmp_path, victim, 20_000, number):
        assert ", round " in says


def test_a_rank_that_dies_before_the_first_round_is_told_of_too(tmp_path: Path) -> None:
    for says in others_say(tmp_path, 1, 2_000, signal.SIGKILL):
        assert "outside the rounds" in says
