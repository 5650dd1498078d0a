"""A package that is installed beside pipec adds a pass, a backend and a front end."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
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


_SERVER = """
import contextlib, io, json, os, sys
import pytest
from pipec.cli.main import main

for line in sys.stdin:
    words, times = json.loads(line)
    out, err, os.environ["PIPEC_PLUGIN_TIMES"] = io.StringIO(), io.StringIO(), times
    sys.argv, code = ["pipec", *words], 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = pytest.main(words[1:]) if words[0] == "pytest" else main()
        except SystemExit as ended:
            code = ended.code
    print(json.dumps([code or 0, out.getvalue(), err.getvalue()]), flush=True)
"""
"""Commands, and pytest, one after the other in one interpreter, which sees the plug-in."""


class Installed:
    """``pipec`` where the plug-in is installed."""

    def __init__(self, site: Path) -> None:
        self.site, self.environment = site, {**os.environ, "PYTHONPATH": str(site)}
        pipe = subprocess.PIPE
        self.server = subprocess.Popen(
            [sys.executable, "-c", _SERVER], env=self.environment, stdin=pipe, stdout=pipe,
            text=True, cwd=site,
        )  # fmt: skip

    def __call__(self, *args: object, fails: bool = False, times: str = "1") -> str:
        """What a command says; ``times`` is what the C of the plug-in multiplies by."""
        assert self.server.stdin
        assert self.server.stdout
        self.server.stdin.write(json.dumps([[*map(str, args)], times]) + "\n")
        self.server.stdin.flush()
        code, out, err = json.loads(self.server.stdout.readline())
        assert (code != 0) is fails, out + err
        return str(out + err if fails else out)


@pytest.fixture(scope="module")
def run(site: Path) -> Iterator[Installed]:
    run = Installed(site)
    yield run
    run.server.communicate()


MODEL = """
import torch
from torch import nn

def net():
    return nn.Sequential(*[nn.Linear(8, 8) for _ in range(4)]), (torch.zeros(2, 8),)
"""


def test_pass_and_backend_are_found(run: Installed, tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("pipec")), "passes", "--json"]
    done = subprocess.run(command, env=run.environment, capture_output=True, check=True)
    listed = {p["name"]: p for p in json.loads(done.stdout)}
    assert listed["tag-largest"]["options"] == [
        {"name": "key", "type": "str", "default": "largest"}
    ]
    model, out = tmp_path / "models.py", tmp_path / "out"
    model.write_text(MODEL)
    pipeline = "simplify,annotate-cost,partition,insert-comm,tag-largest{key=big},time-stages"
    run(
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
    assert json.loads(run("verify", out, "--json"))["ok"]
    shown = json.loads(run("inspect", out, "--json"))
    assert len(shown["stages"]) == 2


def test_a_front_end_reads_folders_of_transformers(run: Installed, tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    config = LlamaConfig(vocab_size=64, num_attention_heads=4, **sizes)
    model, out = LlamaForCausalLM(config), tmp_path / "out"
    model.save_pretrained(tmp_path / "llama")
    shape = ("--shape", "ids=2,8")
    run("compile", tmp_path / "llama", "--devices", "2xcpu", *shape, "-o", out)
    assert json.loads(run("verify", out, "--json"))["ok"]
    with torch.no_grad():
        model.lm_head.weight[3] *= 1.01
    model.save_pretrained(tmp_path / "llama")
    assert "not the one that was compiled" in run("verify", out, fails=True)
    page = (ROOT / "docs/writing_frontends.md").read_text()
    assert (ROOT / "tests/plugin/pipec_plugin/saved.py").read_text() in page


def test_an_external_backend_passes_the_suite_of_the_own_ones(run: Installed) -> None:
    suite = ROOT / "tests/plugin/test_conformance.py"
    options = ("-q", "--capture=sys", "--assert=plain", "-p", "no:cacheprovider")
    told = run("pytest", *options, "--rootdir", run.site, suite)
    assert " passed" in told


def test_what_runs_is_what_was_emitted(run: Installed, tmp_path: Path) -> None:
    """C that multiplies by 7 is found by `verify`, and its numbers are those of `run`."""
    model = tmp_path / "models.py"
    model.write_text(MODEL)
    found = {}
    for name in ("right", "wrong"):
        out, values = tmp_path / name, tmp_path / f"{name}.npz"
        target = ("--target", "c", "--devices", "2xcpu")
        times = "7" if name == "wrong" else "1"
        run("compile", f"{model}:net", *target, "-o", out, times=times)
        run("run", out, "--rounds", 1, "--outputs", values)
        found[name] = next(iter(np.load(values).values()))
    assert run("verify", tmp_path / "right")
    assert "are off" in run("verify", tmp_path / "wrong", fails=True)
    assert np.abs(found["wrong"] - found["right"]).max() > 6 * np.abs(found["right"]).max()
    told = run("run", tmp_path / "right", "--clip", 1, fails=True)
    assert "--clip is of the target torch, not of c" in told
    costs = tmp_path / "costs.json"
    run("profile", tmp_path / "right", "-o", costs, "--seconds", 0.1, "--repeats", 1)
    assert len(json.loads(costs.read_text())["stages"]["cpu"]) == 2
