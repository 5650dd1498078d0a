"""Ranks that die: with restarts the run ends as if nothing had happened, without all stop."""

import os
import random
import re
import signal
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from pipec.compiler.endless import endless
from pipec.plan.store import load_plan
from pipec.runtime.runner import LocalPipeline
from pipec.runtime.train import train
from tests.runtime import ranks
from tests.runtime.pipelines import emitted
from tests.runtime.processes import alone, elastic

KILLS = int(os.environ.get("PIPEC_KILLS", "4"))
"""`make chaos` takes more kills."""
ROUNDS = 10 * KILLS


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["1f1b", "pipedream"])
def test_kills_at_random_points_change_no_bit(schedule: str, tmp_path: Path) -> None:
    emitted(tmp_path / "out", devices=2, schedule=schedule)
    rng = random.Random(1)
    kills: list[tuple[int, int | None, int]] = []
    for k in range(KILLS):
        lives, most = ((None, 60_000), (0, 30_000), (1, 15_000), (2, 15_000))[k % 4]
        kills.append((rng.randrange(2), lives, rng.randrange(1, most)))
    elastic(ranks.survives, tmp_path, ROUNDS, kills, ranks=2, restarts=KILLS)
    places = (tmp_path / "deaths").read_text().splitlines()
    assert len(places) == KILLS
    plan = load_plan(tmp_path / "out")
    undisturbed = LocalPipeline(plan, ranks.data(plan), ranks.settings(), schedule=endless(plan))
    train(undisturbed, ROUNDS)
    end, want = load_file(tmp_path / "end.safetensors"), undisturbed.state_dict()
    assert end.keys() == want.keys()
    assert all(torch.equal(end[n], want[n]) for n in want)


def test_what_one_rank_finds_damaged_all_ranks_pass_over(tmp_path: Path) -> None:
    plan = emitted(tmp_path / "out", devices=2, schedule="pipedream")
    elastic(ranks.survives, tmp_path, 3, [], ranks=2)
    file = tmp_path / "saved" / "round-3" / "1.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    elastic(ranks.survives, tmp_path, 4, [], ranks=2)
    undisturbed = LocalPipeline(plan, ranks.data(plan), ranks.settings(), schedule=endless(plan))
    train(undisturbed, 4)
    end, want = load_file(tmp_path / "end.safetensors"), undisturbed.state_dict()
    assert all(torch.equal(end[n], want[n]) for n in want)
    assert [p.name for p in sorted((tmp_path / "saved").iterdir())] == ["round-3", "round-4"]


@pytest.mark.parametrize("schedule", ["1f1b", "pipedream"])
def test_a_long_run_holds_no_more_than_a_short_one(schedule: str, tmp_path: Path) -> None:
    rounds = 240
    emitted(tmp_path / "out", devices=2, schedule=schedule)
    for early, late in elastic(ranks.soaked, tmp_path, rounds, ranks=2).values():
        grown = {name: late.pop(name) - early.pop(name) for name in ("objects", "tensors")}
        assert grown["objects"] < rounds // 3  # one per round would be twice as many
        assert grown["tensors"] <= 64  # bytes: a few numbers on their way; 8 per save would be 128
        assert late == early


def others_say(
    directory: Path, victim: int, living: int, calls: int, number: int, timeout: timedelta
) -> list[str]:
    """What the others of three ranks say when one gets a signal; all must end."""
    emitted(directory / "out", devices=3)
    left = int(number == signal.SIGSTOP)
    codes = alone(
        ranks.left_alone, directory, victim, living, calls, number, timeout, ranks=3, left=left
    )
    others = [r for r in range(3) if r != victim]
    assert [codes[r] for r in others] == [1, 1]
    said = [(directory / f"says{r}").read_text() for r in others]
    for r, says in zip(others, said, strict=True):
        assert "another rank did not answer" in says
        assert f"rank {r}, " in says
        assert "waiting for " in says
    return said


@pytest.mark.parametrize(("victim", "calls"), [(0, 5_000), (1, 2_500), (2, 500)])
def test_without_restarts_all_ranks_stop_at_once_and_say_what_they_waited_for(
    victim: int, calls: int, tmp_path: Path
) -> None:
    # Links break when a rank dies: nobody waits as long as this, background writers neither.
    for says in others_say(tmp_path, victim, 2, calls, signal.SIGKILL, ranks.PATIENCE):
        assert ", round " in says
    assert not list((tmp_path / "saved").glob("round-*/*.tmp"))


def test_a_rank_that_stands_still_is_named_after_the_timeout(tmp_path: Path) -> None:
    said = others_say(tmp_path, 1, 2, 5_000, signal.SIGSTOP, timedelta(seconds=8))
    assert all(", round " in says for says in said)
    assert any("rank 1: no sign of life; rank " in says for says in said), said


def test_the_action_of_a_rank_that_stands_still_and_the_missing_message_are_named(
    tmp_path: Path,
) -> None:
    """Rank 2 is stopped in its forward; rank 1 waits for its gradient, and rank 0 for rank 1."""
    emitted(tmp_path / "out", devices=3)
    alone(ranks.stopped, tmp_path, 2, 9, timedelta(seconds=8), ranks=3, left=1)
    said = [(tmp_path / f"says{r}").read_text() for r in (0, 1)]
    named = [s for s in said if "imed out" in s]
    assert named, said
    for says in named:
        assert "rank 2: no sign of life" in says or "rank 1, round 2" in says
        assert re.search(r"RECV_B1:(\S+), after 2SEND_B1:\1", says)
        assert re.search(r"waiting for \S+, number 1, from rank 2", says)


def test_a_rank_that_dies_before_the_first_round_is_told_of_too(tmp_path: Path) -> None:
    for says in others_say(tmp_path, 1, 0, 2_000, signal.SIGKILL, timedelta(seconds=3)):
        assert "outside the rounds" in says
