"""A project file gives defaults, and nothing of it is ignored."""

import json
from pathlib import Path

import pytest

from tests.cli.running import Pipec


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: Path) -> Path:
    below = tmp_path / "project" / "below"
    below.mkdir(parents=True)
    (below / "model.onnx").symlink_to(model)
    monkeypatch.chdir(below)
    return below


def write(folder: Path, text: str) -> None:
    (folder.parent / "pipec.toml").write_text(text)


def test_what_it_says_counts_and_is_said(pipec: Pipec, folder: Path) -> None:
    write(folder, '[compile]\ndevices = "3xcpu"\njson = true\n')
    outcome = pipec("compile", "model.onnx")
    assert outcome.code == 0, outcome
    assert len(json.loads(outcome.out)["stages"]) == 3
    assert "devices = '3xcpu', json = True" in outcome.err


def test_the_command_line_counts_first(pipec: Pipec, folder: Path) -> None:
    write(folder, '[compile]\ndevices = "3xcpu"\njson = true\n')
    outcome = pipec("compile", "model.onnx", "--devices", "2xcpu")
    assert len(json.loads(outcome.out)["stages"]) == 2
    (folder / "two.toml").write_text('[[devices]]\nkind = "cpu"\ncount = 2\n')
    outcome = pipec("compile", "model.onnx", "--cluster=two.toml")
    assert "devices" not in outcome.err.splitlines()[0]


def test_other_commands_are_not_touched(pipec: Pipec, folder: Path) -> None:
    write(folder, '[compile]\ndevices = "3xcpu"\n')
    outcome = pipec("devices", "--json")
    assert (outcome.code, outcome.err) == (0, "")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[compil]\n", "did you mean 'compile'?"),
        ("devices = '2xcpu'\n", "not a table of a command"),
        ("[compile]\nmicrobatch = 4\n", "did you mean 'microbatches'?"),
        ("[compile]\njson = 'yes'\n", "--json wants true or false"),
        ("[compile]\nbind = 'N=2'\n", "--bind wants a list"),
        ("[compile]\nmicrobatches = true\n", "--microbatches wants a value"),
        ("[compile]\nmicrobatches = 0\n", "0 is not in the range"),
        ("[compile]\ntarget = 'onnx'\npt2 = true\n", "--pt2 is of the target torch, not of onnx"),
        ("[compile\n", "cannot be read"),
    ],
)
def test_mistakes_are_refused(pipec: Pipec, folder: Path, text: str, says: str) -> None:
    write(folder, text)
    outcome = pipec("compile", "model.onnx", "-o", "out")
    assert outcome.code in (1, 2)
    assert says in outcome.err
    assert "Traceback" not in outcome.err
    assert not (folder / "out").exists()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["exp"], {"explore", "export"}),
        (["compile", "--target", ""], {"fpga", "onnx", "torch"}),
        (["compile", "--devices", "1xcpu,2xh"], {"1xcpu,2xh100", "1xcpu,2xh200"}),
        (["compile", "--schedule", "zb"], {"zb-h1", "zbv"}),
        (["compile", "--passes", "simplify,part"], {"simplify,partition"}),
    ],
)
def test_a_shell_completes_values(words: list[str], offered: set[str]) -> None:
    from click.shell_completion import BashComplete

    from pipec.cli.main import cli

    found = BashComplete(cli, {}, "pipec", "_PIPEC_COMPLETE").get_completions(words[:-1], words[-1])
    assert {item.value for item in found} == offered
