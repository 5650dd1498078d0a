"""`pipec examples` lists and copies what the wheel ships."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.running import Pipec

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_all_examples_are_listed_with_a_summary(
    pipec: Pipec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # one line each
    lines = pipec("examples").out.splitlines()
    assert [line.split()[0] for line in lines] == sorted(p.stem for p in EXAMPLES.glob("*.py"))
    assert all(len(line.split()) > 3 for line in lines)


def test_an_example_comes_with_what_it_uses_and_runs(pipec: Pipec, tmp_path: Path) -> None:
    pipec("examples", "digits_pipedream", "-o", tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {"digits_pipedream.py", "digits.py"}
    pipec("examples", "train_gpt2", "-o", tmp_path)
    code = (
        "import train_gpt2 as t; assert len(t.TEXT) > 1000 and t.batch(0)['ids'].shape == (4, 32)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)


def test_the_demo_needs_the_models_that_it_names_as_files(pipec: Pipec, tmp_path: Path) -> None:
    pipec("examples", "demo.py", "-o", tmp_path / "new" / "folder")
    names = {p.name for p in (tmp_path / "new" / "folder").iterdir()}
    assert names == {"demo.py", "gpt2.py", "resnet.py"}


def test_a_changed_file_is_kept(
    pipec: Pipec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert pipec("examples", "mlp").out == "wrote mlp.py\n"
    assert pipec("examples", "mlp").out == "wrote mlp.py\n"
    Path("mlp.py").write_text("mine\n")
    found = pipec("examples", "mlp")
    assert "a different file has this name" in found.err
    assert Path("mlp.py").read_text() == "mine\n"


def test_a_wrong_name_gets_a_near_one(pipec: Pipec) -> None:
    assert "did you mean 'finetune'?" in pipec("examples", "finetunes").err
