"""No option is without effect, and what ``--json`` prints is alone on standard output."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.cli.running import Pipec

NET = """
import torch
from torch import nn


def net():
    torch.manual_seed(0)
    parts = nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)
    return nn.Sequential(*parts).bfloat16(), (torch.randn(3, 4).bfloat16(),), loss


def loss(y):
    return y.square().mean()
"""


@pytest.mark.parametrize(
    "line",
    [
        "examples -o folder",
        "verify plan --timed --tolerance 1e-9",
        "verify plan --timed --seed 3",
        "verify plan --timed --chain 2",
        "verify plan --timed --model other.py:net",
        "inspect plan --cycles --graph",
        "inspect plan --cycles --stage 0 --phase B",
        "partition plan --bandwidth inf",
        "verify plan --seed 9223372036854775807",
        "partition plan --planner pipedream --bandwidth 1e9 --bandwidth nan",
    ],
)
def test_what_would_have_no_effect_is_wrong_use(pipec: Pipec, line: str) -> None:
    done = pipec(*line.split())
    assert done.code == 2, done
    assert not done.out


def test_a_refused_option_is_named_as_it_was_given(pipec: Pipec, plan: Path) -> None:
    assert "Error: --inference: not for a directory" in pipec("profile", plan, "--inference").err
    assert "Error: --training: not for a directory" in pipec("profile", plan, "--training").err


def test_the_list_of_schedules_is_data_too(pipec: Pipec) -> None:
    data = json.loads(pipec("schedule", "--json").out)
    printed = pipec("schedule").out
    names = re.findall(r"^([a-z\d-]+) {2,}[^o ]", printed, re.MULTILINE)
    assert [s["name"] for s in data] == names
    words = " ".join(printed.split())
    assert all(s["summary"] in words for s in data)
    assert all(f"{o['name']}={o['default']}" in words for s in data for o in s["options"])


@pytest.fixture
def plan(pipec: Pipec, tmp_path: Path) -> Path:
    (tmp_path / "net.py").write_text(NET)
    done = pipec("compile", f"{tmp_path}/net.py:net", "--devices", "2xcpu", "-o", tmp_path / "plan")
    assert done.code == 0, done.err
    return tmp_path / "plan"


def test_measured_nodes_and_stages_are_data_too(pipec: Pipec, plan: Path) -> None:
    costs = ("-o", plan.parent / "c.json", "--repeats", 1, "--json")
    nodes = json.loads(pipec("profile", f"{plan.parent}/net.py:net", *costs, "--heaviest", 2).out)
    assert nodes["nodes"] == 5
    assert nodes["seconds"] > nodes["backward_seconds"] > 0
    longest, next_longest = (n["seconds"] for n in nodes["heaviest"])
    assert longest >= next_longest
    assert nodes["heaviest"][0]["share"] == pytest.approx(longest / nodes["seconds"])
    stages = json.loads(pipec("profile", plan, *costs, "--local", "--seconds", 0.01).out)
    assert [s["stage"] for s in stages["stage_seconds"]] == [0, 1]
    assert all(s["F"] > 0 < s["B"] for s in stages["stage_seconds"])


def test_statistics_are_alone_beside_what_else_is_told(pipec: Pipec, plan: Path) -> None:
    passes = ("--passes", "simulate", "--print-ir-after", "--print-ir-diff", "--json")
    done = pipec("opt", plan, *passes, "-o", plan.parent / "new")
    assert [row["pass"] for row in json.loads(done.out)] == ["simulate"]
    assert "after simulate" in done.err
    assert "wrote " in done.err


def test_engines_that_no_tool_reported_are_data_too(pipec: Pipec, tmp_path: Path) -> None:
    net, out = tmp_path / "net.py", tmp_path / "boards"
    net.write_text(NET.replace(".bfloat16()", "").replace(", loss\n", "\n"))
    done = pipec("compile", f"{net}:net", "--target", "fpga", "--devices", "1xvcu118", "-o", out)
    assert done.code == 0, done.err
    (stage,) = json.loads(pipec("inspect", out, "--json").out)["vitis"]
    assert stage["reported"] == 0
    assert (
        f"stage0: Vitis HLS has reported none of {stage['engines']} engines"
        in pipec("inspect", out).out
    )


def test_where_trained_weights_go_is_looked_at_before_training(pipec: Pipec, plan: Path) -> None:
    done = pipec("run", plan, "--local", "--rounds", 1, "--save", "/dev/null")
    assert done.code == 1
    assert "no such format" in done.err
    assert "step 0" not in done.out


def test_numbers_that_a_format_lacks_are_saved_in_another(pipec: Pipec, plan: Path) -> None:
    done = pipec("run", plan, "--local", "--rounds", 1, "--save", plan.parent / "w.npz")
    assert done.code == 1
    safe = Path(done.err.partition("the trained weights are in ")[2].strip())
    weights = load_file(safe)
    assert {t.dtype for t in weights.values()} == {torch.bfloat16}
    assert set(weights) == {"0.weight", "0.bias", "2.weight", "2.bias"}


def test_a_model_beside_data_is_wrong_use(pipec: Pipec, plan: Path) -> None:
    done = pipec("run", plan, "--local", "--data", "data.py:get", "--model", "other.py:net")
    assert done.code == 2
    assert "--model" in done.err


def test_a_text_that_is_nested_too_deeply_is_refused(pipec: Pipec, tmp_path: Path) -> None:
    (tmp_path / "deep.txt").write_text("[" * 100_000)
    done = pipec("opt", tmp_path / "deep.txt", "--passes", "simulate")
    assert done.code == 1
    assert "no text of a plan or graph" in done.err


def test_a_name_that_the_output_cannot_hold_is_escaped(tmp_path: Path) -> None:
    line = "from pipec.cli.main import main; main()"
    words = [sys.executable, "-c", line, "examples", "resnet", "-o", "a\udcff"]
    env = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    done = subprocess.run(words, capture_output=True, cwd=tmp_path, env=env, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(b"wrote a\\udcff/resnet.py")


def test_a_time_that_no_system_waits_is_refused(pipec: Pipec, plan: Path) -> None:
    done = pipec("run", plan, "--local", "--rounds", 1, "--timeout", "1e300")
    assert done.code == 1
    assert "--timeout 1e+300" in done.err
