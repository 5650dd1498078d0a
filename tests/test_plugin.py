"""A package that is installed beside pipec adds a pass, a backend and a front end."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

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


def run(site: Path, *args: object, fails: bool = False, times: str = "1") -> str:
    env = {**os.environ, "PYTHONPATH": str(site), "PIPEC_PLUGIN_TIMES": times}
    command = [str(Path(sys.executable).with_name("pipec")), *map(str, args)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode != 0) is fails, done.stderr
    return str(done.stdout + done.stderr if fails else done.stdout)


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
        "c",
        "--optimize",
        "1",
        "--devices",
        "2xcpu",
        "--passes",
        pipeline,
        "-o",
        out,
    )
    assert json.loads((out / "plan.json").read_text())["options"]["big"].startswith("linear")
    assert "cc -O1" in (out / "stage1.c").read_text()
    assert json.loads(run(site, "verify", out, "--json"))["ok"]
    shown = json.loads(run(site, "inspect", out, "--json"))
    assert len(shown["stages"]) == 2


def test_a_front_end_reads_folders_of_transformers(site: Path, tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    config = LlamaConfig(vocab_size=64, num_attention_heads=4, **sizes)
    model, out = LlamaForCausalLM(config), tmp_path / "out"
    model.save_pretrained(tmp_path / "llama")
    shape = ("--shape", "ids=2,8")
    run(site, "compile", tmp_path / "llama", "--devices", "2xcpu", *shape, "-o", out)
    assert json.loads(run(site, "verify", out, "--json"))["ok"]
    with torch.no_grad():
        model.lm_head.weight[3] *= 1.01
    model.save_pretrained(tmp_path / "llama")
    assert "not the one that was compiled" in run(site, "verify", out, fails=True)
    page = (ROOT / "docs/writing_frontends.md").read_text()
    assert (ROOT / "tests/plugin/pipec_plugin/saved.py").read_text() in page


def test_an_external_backend_passes_the_suite_of_the_own_ones(site: Path) -> None:
    suite = ROOT / "tests/plugin/test_conformance.py"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(site),
    ]
    env = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run(
        [*command, str(suite)], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


def test_what_runs_is_what_was_emitted(site: Path, tmp_path: Path) -> None:
    """C that multiplies by 7 is found by `verify`, and its numbers are those of `run`."""
    model = tmp_path / "models.py"
    model.write_text(MODEL)
    found = {}
    for name in ("right", "wrong"):
        out, values = tmp_path / name, tmp_path / f"{name}.npz"
        target = ("--target", "c", "--devices", "2xcpu")
        times = "7" if name == "wrong" else "1"
        run(site, "compile", f"{model}:net", *target, "-o", out, times=times)
        run(site, "run", out, "--rounds", 1, "--outputs", values)
        found[name] = next(iter(np.load(values).values()))
    assert run(site, "verify", tmp_path / "right")
    assert "are off" in run(site, "verify", tmp_path / "wrong", fails=True)
    assert np.abs(found["wrong"] - found["right"]).max() > 6 * np.abs(found["right"]).max()
    told = run(site, "run", tmp_path / "right", "--clip", 1, fails=True)
    assert "--clip is of the target torch, not of c" in told
    costs = tmp_path / "costs.json"
    run(site, "profile", tmp_path / "right", "-o", costs, "--seconds", 0.1, "--repeats", 1)
    assert len(json.loads(costs.read_text())["stages"]["cpu"]) == 2
