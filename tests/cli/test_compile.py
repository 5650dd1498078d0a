"""``pipec compile`` on a small model: what is printed, what is written, twice the same bytes."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.cli.running import Pipec


def files(directory: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(directory)): p.read_bytes()
        for p in sorted(directory.rglob("*"))
        if p.is_file()
    }


def test_compiles_reproducibly(pipec: Pipec, model: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        outcome = pipec("compile", model, "--devices", "3xcpu", "-o", tmp_path / name)
        assert outcome.code == 0, outcome.err
    first, second = files(tmp_path / "a"), files(tmp_path / "b")
    assert first == second
    assert "plan.json" in first
    assert not any(
        str(tmp_path).encode() in data for name, data in first.items() if name != "plan.json"
    )


def test_summary_as_json(pipec: Pipec, model: Path) -> None:
    outcome = pipec("compile", model, "--devices", "2xcpu", "--json")
    data = json.loads(outcome.out)
    assert [s["stage"] for s in data["stages"]] == [0, 1]
    assert data["balance"]["proven"]


@pytest.mark.parametrize("target", ["torch", "onnx"])
def test_a_model_of_views_alone_takes_no_time(pipec: Pipec, target: str, tmp_path: Path) -> None:
    path, info = tmp_path / "views.onnx", helper.make_tensor_value_info
    ends = [info("x", 1, [2, 3, 4])], [info("y", 1, [4, 6])]
    node = helper.make_node("Reshape", ["x", "to"], ["y"])
    to = numpy_helper.from_array(np.array([4, 6]), "to")
    opset = [helper.make_opsetid("", 17)]
    graph = helper.make_graph([node], "views", *ends, [to])
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)
    done = pipec("compile", path, "--target", target, "--devices", "1xcpu", "-o", tmp_path / "o")
    assert (done.code, "mean/slowest 100.0%" in done.out) == (0, True), done.err


@pytest.mark.parametrize(("target", "device"), [("torch", "cpu"), ("fpga", "vcu118")])
def test_two_devices_of_the_targets_kind_by_default(
    pipec: Pipec, model: Path, target: str, device: str
) -> None:
    outcome = pipec("compile", model, "--target", target, "--json")
    assert [s["device"].split()[-1] for s in json.loads(outcome.out)["stages"]] == [device] * 2
    assert f"2x{device}" in outcome.err


def test_custom_pipeline_between_prints_and_times(pipec: Pipec, model: Path) -> None:
    outcome = pipec(
        "compile",
        model,
        "--devices",
        "2xcpu",
        "--time-passes",
        "--print-between-passes",
        "--passes",
        "simplify,annotate-cost,partition{stages=2},insert-comm{route=relay depth=1}",
    )
    assert outcome.code == 0, outcome.err
    assert "insert-comm{route=relay depth=1}" in outcome.err
    assert "pipec_ops.send" in outcome.err
    assert "matmul_1 (MatMul" in outcome.err


def test_passes_are_listed_with_options(pipec: Pipec) -> None:
    text = pipec("passes").out
    assert "insert-comm" in text
    assert "route: typing.Literal" not in text
    names = [p["name"] for p in json.loads(pipec("passes", "--json").out)]
    assert names == sorted(names)
    assert {"simplify", "annotate-cost", "partition", "insert-comm", "schedule"} <= set(names)


def test_devices_have_sources(pipec: Pipec) -> None:
    known = json.loads(pipec("devices", "--json").out)
    wanted = [
        "v100",
        "a100",
        "h100",
        "h200",
        "cpu",
        "vcu118",
        "vcu129",
        "u250",
        "u280",
        "u55c",
        "zcu102",
    ]
    assert set(wanted) <= set(known)
    assert all(d["source"] for d in known.values())


TALKS = """
print("imported")
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        print("called")
        return self.b(torch.relu(self.a(x)))

def net():
    print("made")
    return Net(), (torch.zeros(2, 4),)
"""


@pytest.mark.parametrize("command", ["compile", "explore --devices 2xcpu", "profile"])
def test_what_a_model_prints_is_not_in_json(
    pipec: Pipec, tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "talks.py").write_text(TALKS)
    done = pipec(*command.split(), f"{tmp_path}/talks.py:net", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)
    assert "imported\nmade\n" in done.err
