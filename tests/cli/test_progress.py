"""`-q` and `-v`: how much commands say of what they do, on standard error."""

import os
import pty
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cli.running import Pipec


def compiled(pipec: Pipec, model: Path, out: Path, *options: str) -> str:
    found = pipec("compile", model, "--devices", "2xcpu", "-o", out, *options)
    assert found.code == 0, found.err
    assert "2 stages" in found.out
    return found.err


def test_quiet_says_nothing_and_verbose_each_step(
    pipec: Pipec, model: Path, tmp_path: Path
) -> None:
    assert compiled(pipec, model, tmp_path / "a", "-q") == ""
    assert compiled(pipec, model, tmp_path / "b").startswith("wrote ")
    told = compiled(pipec, model, tmp_path / "c", "-v").splitlines()
    steps = [line.split(" s  ", 1)[1] for line in told if " s  " in line]
    assert steps[0].startswith("reading ")
    assert "compiling: partition done" in steps
    assert steps[-1].startswith("writing ")
    assert told[len(steps)].startswith("wrote ")


@pytest.mark.parametrize("words", [["compile", "--help"], ["compile", "--help", "-q"]])
def test_a_terminal_is_told_within_a_second_that_something_is_loaded(words: list[str]) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "pipec", *words]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs):
        os.close(theirs)
        said = b""
        with suppress(OSError):  # Linux says that the other end is closed in this way
            while more := os.read(ours, 65536):
                said += more
    os.close(ours)
    assert b"Usage: " in said
    assert said.startswith(b"loading pipec compile\r") == ("-q" not in words)
    assert b"loading" not in said.partition(b"\033[2K")[2]


@pytest.mark.parametrize("command", ["explore", "verify", "profile"])
def test_other_commands_have_the_same_options(
    pipec: Pipec, model: Path, tmp_path: Path, command: str
) -> None:
    compiled(pipec, model, tmp_path / "out")
    arguments: dict[str, list[object]] = {
        "explore": [model, "--devices", "2xcpu", "--top", 1, "--no-cache"],
        "verify": [tmp_path / "out"],
        "profile": [model, "-o", tmp_path / "costs.json", "--repeats", 1, "--warmup", 0],
    }
    words = arguments[command]
    quiet, verbose = pipec(command, *words, "-q"), pipec(command, *words, "-v")
    assert (quiet.code, quiet.err) == (0, "")
    assert verbose.err.count(" s  ") >= 2, verbose.err


def test_a_quiet_run_prints_no_rounds(pipec: Pipec, model: Path, tmp_path: Path) -> None:
    compiled(pipec, model, tmp_path / "out")
    words = ("run", tmp_path / "out", "--rounds", 2, "--local")
    assert pipec(*words).out.count("step ") == 2
    assert pipec(*words, "-q").out == ""


def test_errors_are_never_quiet(pipec: Pipec, tmp_path: Path) -> None:
    found = pipec("compile", tmp_path / "no.onnx", "-q")
    assert found.code == 1
    assert "no such model file" in found.err
