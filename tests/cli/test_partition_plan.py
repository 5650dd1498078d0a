"""``pipec partition`` reads what ``pipec compile`` wrote, with its own devices and links."""

import json
from pathlib import Path

from tests.cli.running import Pipec


def test_a_plan_is_cut_again(pipec: Pipec, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    compiled = json.loads(pipec("compile", model, "--devices", "3xcpu", "-o", out, "--json").out)
    again = json.loads(pipec("partition", out, "--json").out)
    assert again["max_load"] <= compiled["balance"]["slowest_seconds"] * (1 + 1e-9)
    assert again["proven"]
    assert set(again["assignment"].values()) == {0, 1, 2}
    fewer = json.loads(pipec("partition", out / "plan.json", "--devices", "2", "--json").out)
    assert len(fewer["loads"]) == 2


def test_more_devices_than_the_plan_has(pipec: Pipec, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert pipec("compile", model, "--devices", "2xcpu", "-o", out).code == 0
    outcome = pipec("partition", out, "--devices", "5")
    assert outcome.code == 1
    assert "at most 2 devices" in outcome.err
