"""A damaged or forged plan ends in one clear error, or is data like any other."""

import random
from pathlib import Path

import pytest

from tests.plan.mutants import bases, commands, mutate, try_command

GROUPS, EACH = 6, 25


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return bases(tmp_path_factory.mktemp("plans"))


@pytest.mark.parametrize("group", range(GROUPS))
def test_mutants_are_refused_or_harmless(
    plans: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: int
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another user's"))
    monkeypatch.setenv("PIPEC_MUTANTS", str(plans["torch"].parent / "ran"))
    faults = []
    for number in range(group * EACH, (group + 1) * EACH):
        rng = random.Random(number)
        base = rng.choice(list(plans.values()))
        place = tmp_path / str(number)
        told = mutate(base, place, rng)
        ends = [try_command(words, tmp_path / "empty") for words in commands(place, base)]
        faults += [f"{number} {base.name} {e.words[0]}: {told}: {e.fault}" for e in ends if e.fault]
    assert not faults, "\n".join(faults)
