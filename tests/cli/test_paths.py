"""A path that is not there, or is no plan: the error says what may be meant."""

from pathlib import Path

import pytest

from tests.cli.running import Pipec


@pytest.mark.parametrize(
    ("command", "path", "words"),
    [
        ("compile", "net.onx", "no front end reads this model"),
        ("compile", "net.onnx", "did you mean net1.onnx?"),
        ("compile", "nofolder/net.onnx", "there is no folder nofolder either"),
        ("explore", "models.py:net", "no such model file"),
        ("profile", "net", "no front end reads this model"),
        ("verify", "out", "compile a model first"),
        ("inspect", "ful", "did you mean full?"),
        ("report", "full/stage0", "did you mean full?"),
        ("run", "empty", "no plan.json in it"),
        ("run", "out --optimizer adam", "no plan here"),
        ("opt", "ful", "did you mean full?"),
    ],
)
def test_near_paths_are_named(
    command: str,
    path: str,
    words: str,
    pipec: Pipec,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("net1.onnx", "full/plan.json", "empty/else"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).touch()
    more = ["--devices", "2xcpu"] if command == "explore" else []
    outcome = pipec(command, *path.split(), *more)
    assert outcome.code == 1
    assert words in outcome.err
