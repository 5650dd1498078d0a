"""A package that is installed beside pipec adds a pass and a backend by entry point."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the plug-in is installed by pip, as a user's package would be."""
    target = tmp_path_factory.mktemp("site")
    source = tmp_path_factory.mktemp("source") / "plugin"
    subprocess.run(["cp", "-r", ROOT / "tests/plugin", source], check=True)
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "--target",
        str(target),
        str(source),
    ]
    subprocess.run(command, check=True, capture_output=True)
    return target


def run(site: Path, *args: object) -> str:
    env = {**os.environ, "PYTHONPATH": str(site)}
    command = [str(Path(sys.executable).with_name("pipec")), *map(str, args)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


MODEL = """
import torch
from torch import nn

def net():
    return nn.Sequential(*[nn.Linear(8, 8) for _ in range(4)]), (torch.zeros(2, 8),)
"""


def test_pass_and_backend_are_found(site: Path, tmp_path: Path) -> None:
    listed = {p["name"]: p for p in json.loads(run(site, "passes", "--json"))}
    assert listed["tag-largest"]["options"] == [
        {"name": "key", "type": "str", "default": "largest"}
    ]
    model, out = tmp_path / "models.py", tmp_path / "out"
    model.write_text(MODEL)
    pipeline = "simplify,annotate-cost,partition,insert-comm,tag-largest{key=big},time-stages"
    run(
        site,
        "compile",
        f"{model}:net",
        "--target",
        "listing",
        "--devices",
        "2xcpu",
        "--passes",
        pipeline,
        "-o",
        out,
    )
    assert json.loads((out / "plan.json").read_text())["options"]["big"].startswith("linear")
    assert "aten.linear.default" in (out / "stage1.txt").read_text()
    report = json.loads(run(site, "verify", out, "--json"))
    assert report["ok"]
    assert report["max_abs_error"] == 0
