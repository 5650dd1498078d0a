"""``pipec export`` of a plan's own cut: devices of the nodes of a file, and its stages in a row."""

import ast
import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from pipec.graph.ir import origin
from pipec.plan.store import load_plan
from tests.cli.running import Pipec


@pytest.fixture
def out(pipec: Pipec, model: Path, tmp_path: Path) -> Path:
    made = pipec("compile", model, "--target", "onnx", "--devices", "3xcpu", "-o", tmp_path / "out")
    assert made.code == 0, made.err
    return tmp_path / "out"


def test_openvino_is_told_a_device_for_every_node(pipec: Pipec, model: Path, out: Path) -> None:
    told = pipec("export", out, "--to", "openvino")
    assert told.code == 0, told.err
    found = {
        line.targets[0].id: ast.literal_eval(line.value)
        for line in ast.parse(told.out).body
        if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name)
    }
    stage, nodes = found["STAGE"], onnx.load(model).graph.node
    assert set(stage) == {n.name for n in nodes}
    assert sorted(set(stage.values())) == list(range(len(found["DEVICES"]))) == [0, 1, 2]
    made = {value: n.name for n in nodes for value in n.output}
    for n in nodes:
        assert all(stage[made[v]] <= stage[n.name] for v in n.input if v in made)
    plan = load_plan(out)
    assert plan.partition is not None
    assert {origin(n).name: plan.partition.stage_of[n.name] for n in plan.graph.calls} == stage


def test_stages_for_genai_compute_the_model(pipec: Pipec, model: Path, out: Path) -> None:
    """Each stage takes what it names of all that is there so far."""
    told = pipec("export", out, "--to", "onnxruntime-genai", "--json")
    assert told.code == 0, told.err
    stages = json.loads(json.loads(told.out)["text"])["model"]["decoder"]["pipeline"]
    assert len(stages) == 3
    x = np.random.default_rng(0).normal(size=(2, 8)).astype(np.float32)
    values = {"x": x}
    for part in stages:
        (stage,) = part.values()
        session = ort.InferenceSession(out / stage["filename"])
        given = {name: values[name] for name in stage["inputs"]}
        values |= zip(stage["outputs"], session.run(stage["outputs"], given), strict=True)
    want = ort.InferenceSession(model)
    name = want.get_outputs()[0].name
    np.testing.assert_allclose(values[name], want.run(None, {"x": x})[0], rtol=1e-6)


def test_what_a_runtime_cannot_take_is_told(pipec: Pipec, model: Path, tmp_path: Path) -> None:
    assert pipec("compile", model, "--devices", "2xcpu", "-o", tmp_path / "t").code == 0
    told = pipec("export", tmp_path / "t", "--to", "onnxruntime-genai")
    assert told.code == 1
    assert "--target onnx" in told.err
    told = pipec("export", tmp_path / "t", "--to", "openvino", "--stages", 2)
    assert told.code == 2
    assert "the plan's own cut" in told.err
