"""Answers that need no torch: help, the list of passes, a path that is not there."""

import subprocess
import sys
from pathlib import Path

import pytest

from pipec.cli import passes
from pipec.cli.early import check_first
from pipec.cli.passes import describe_pass
from pipec.compiler.pass_manager import list_passes
from pipec.errors import PipecError

CODE = """
import sys
from pipec.cli.main import main
sys.argv = ["pipec", *sys.argv[1:]]
try:
    main()
except SystemExit:
    pass
sys.exit(3 if "torch" in sys.modules else 0)
"""


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["passes"],
        ["compile", "no.onnx"],
        ["compile", "--target", "onnx", "-o", "out.onnx", "no.onnx", "--force"],
        ["explore", "--training", "no.py:make"],
        ["profile", "no"],
        ["verify", "no"],
    ],
)
def test_no_torch_is_imported(words: list[str]) -> None:
    run = subprocess.run([sys.executable, "-c", CODE, *words], capture_output=True, check=False)
    assert run.returncode == 0, run.stderr


def test_passes_are_read_off_their_source() -> None:
    for name in list_passes():
        read, imported = describe_pass(name), passes._import_pass(name)
        if name.startswith("plugin"):
            continue
        assert read is not None, name
        for key in ("name", "summary", "requires", "provides"):
            assert read[key] == imported[key], (name, key)
        options = [(o["name"], o["default"]) for o in read["options"]]
        assert options == [(o["name"], o["default"]) for o in imported["options"]]


@pytest.mark.parametrize(
    ("command", "word", "words"),
    [
        ("compile", "net.onx", "did you mean"),
        ("compile", "net.onnx", "did you mean"),
        ("compile", "here.onnx", None),
        ("compile", "nofolder/net.onnx", "there is no folder"),
        ("compile", "models.py:net", "no such model file"),
        ("profile", "net", "no such model file"),
        ("compile", "full", None),
        ("compile", "package.module:net", None),
        ("verify", "out", "compile a model first"),
        ("run", "empty", r"no plan\.json in it"),
        ("inspect", "full", None),
        ("devices", "nothing", None),
    ],
)
def test_first_words(
    command: str, word: str, words: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("here.onnx", "net1.onnx", "full/plan.json", "empty/else"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).touch()
    if words is None:
        check_first(command, [word])
        return
    with pytest.raises(PipecError, match=words):
        check_first(command, [word])
