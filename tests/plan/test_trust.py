"""A plan of somebody else is data: nothing that it names runs unless the user says so."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pipec.cli.main import cli
from pipec.errors import PipecError, PlanError
from pipec.plan.manifest import PLAN, _digest, read_manifest, write_manifest

FACTORY = """
from pathlib import Path
import torch
Path(__file__).with_name("ran").touch()
def make():
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)), torch.zeros(2, 4)
"""


def pipec(*args: object) -> Result:
    return CliRunner().invoke(cli, [str(a) for a in args])


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A plan that this user has compiled, of a factory that leaves a trace when it runs."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "model.py").write_text(FACTORY)
    done = pipec(
        "compile", f"{tmp_path}/model.py:make", "--devices", "2xcpu", "-o", tmp_path / "out"
    )
    assert done.exit_code == 0, done.output
    (tmp_path / "ran").unlink()
    return tmp_path / "out"


def forge(place: Path, record: dict[str, Any]) -> None:
    """Change what a plan says, digests and all."""
    (place / PLAN).write_text(json.dumps({**record, "digest": _digest(record)}))


COMMANDS = [("verify",), ("run", "--local", "--rounds", "1"), ("profile", "--local")]


@pytest.mark.parametrize("command", COMMANDS, ids=[c[0] for c in COMMANDS])
def test_a_foreign_plan_runs_nothing(
    mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another user's"))
    name, *options = command
    extra = ["-o", tmp_path / "costs.json"] if name == "profile" else []
    refused = pipec(name, mine, *options, *extra)
    assert refused.exit_code == 1
    assert "not compiled here" in str(refused.exception)
    assert "--trust" in str(refused.exception)
    assert not (tmp_path / "ran").exists()
    trusted = pipec(name, mine, *options, *extra, "--trust")
    assert trusted.exit_code == 0, trusted.output
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("kind", ["onnx", "pt2", "memory", "unheard of"])
@pytest.mark.parametrize("command", COMMANDS, ids=[c[0] for c in COMMANDS])
def test_what_a_plan_calls_its_model_is_not_believed(
    mine: Path, tmp_path: Path, command: tuple[str, ...], kind: str
) -> None:
    """A factory is code, whatever a forged plan says that it is."""
    record = read_manifest(mine)
    forge(mine, {**record, "source": {**record["source"], "kind": kind, "sha256": ""}})
    refused = pipec(command[0], mine, *command[1:])
    assert refused.exit_code == 1
    assert not (tmp_path / "ran").exists()


def test_a_plan_without_a_target_is_refused(mine: Path, tmp_path: Path) -> None:
    forge(mine, {n: told for n, told in read_manifest(mine).items() if n != "target"})
    for command, *options in (*COMMANDS, ("verify", "--model", f"{tmp_path}/model.py:make")):
        refused = pipec(command, mine, *options)
        assert refused.exit_code in (1, 2)
        assert isinstance(refused.exception, PipecError | SystemExit), refused.exception


def test_ones_own_plan_needs_no_word(mine: Path, tmp_path: Path) -> None:
    done = pipec("verify", mine)
    assert done.exit_code == 0, done.output
    assert (tmp_path / "ran").exists()


def test_a_changed_plan_is_not_ones_own(mine: Path, tmp_path: Path) -> None:
    record = json.loads((mine / "plan.json").read_text())
    (mine / "plan.json").write_text(json.dumps(record, indent=2))
    assert "not compiled here" in str(pipec("verify", mine).exception)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("kind", ["device", "pipe", "deep", "nan"])
def test_files_that_are_no_plan_are_refused_at_once(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "plan.json"
    if kind == "device":
        place.symlink_to("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(place)
    elif kind == "deep":
        place.write_text("[" * 200_000)
    else:
        place.write_text('{"format": "pipec.plan", "version": NaN}')
    with pytest.raises(PlanError, match="cannot be read"):
        read_manifest(tmp_path)


def test_a_number_that_is_read_as_infinite_was_changed(tmp_path: Path) -> None:
    record = '{"format": "pipec.plan", "version": 2, "files": {}, "digest": "", "speed": 1e999}'
    (tmp_path / "plan.json").write_text(record)
    with pytest.raises(PlanError, match="changed after it was written"):
        read_manifest(tmp_path)


def test_weights_that_are_a_pipe_are_not_opened(mine: Path) -> None:
    """Commands that do not read weights wait for nobody who writes to them."""
    weights = mine / "stage0" / "weights.safetensors"
    weights.unlink()
    os.mkfifo(weights)
    refused = pipec("inspect", mine)
    assert refused.exit_code == 1
    assert "weights.safetensors" in str(refused.exception)


@pytest.mark.parametrize(
    ("key", "wrong"),
    [("channels", [["F", -(1 << 63), 1, "c", 8, 2]]), ("microbatches", 1 << 40)],
)
def test_numbers_of_a_schedule_have_limits(mine: Path, key: str, wrong: object) -> None:
    record = json.loads((mine / "plan.json").read_text())
    for name in ("format", "version", "files", "digest"):
        record.pop(name)
    record["schedule"][key] = wrong
    (mine / "plan.json").unlink()
    write_manifest(record, mine)
    refused = pipec("inspect", mine)
    assert refused.exit_code == 1
    assert f"$.{key}" in str(refused.exception)
