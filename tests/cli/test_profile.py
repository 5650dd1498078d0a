"""``pipec profile DIRECTORY``: what it measures is what the next compile predicts with."""

import json
import os
from pathlib import Path

import pytest
import torch
from torch import nn

from pipec.cluster.cluster import parse_cluster
from pipec.compiler.driver import make_plan
from pipec.compiler.profile import Profile
from pipec.cost.count import count
from pipec.cost.stage import StageCost
from pipec.cost.table import CostTable
from pipec.frontends.torch_module import from_module
from pipec.graph.lower import lower
from pipec.plan.store import load_plan
from tests.cli.running import Pipec

MODEL = """
import torch
from torch import nn
from torch.nn import functional as F


def make():
    layers = [nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)]
    return nn.Sequential(*layers), (torch.randn(4, 8),), (F.cross_entropy, torch.arange(4) % 3)
"""


@pytest.fixture
def model(tmp_path: Path) -> list[str]:
    (tmp_path / "model.py").write_text(MODEL)
    return [f"{tmp_path}/model.py:make", "--training", "--devices", "2xcpu", "--schedule", "1f1b"]


def test_what_is_measured_of_a_directory_is_what_the_next_compile_predicts_with(
    tmp_path: Path, model: list[str], pipec: Pipec
) -> None:
    names = ("nodes.json", "first", "second", "costs.json")
    nodes, first, second, costs = (tmp_path / n for n in names)
    assert pipec("profile", *model[:2], "--repeats", 1, "-o", nodes).code == 0
    assert pipec("compile", *model, "--costs", nodes, "-o", first).code == 0
    done = pipec("profile", first, "--costs", nodes, "--local", "--seconds", 0, "-o", costs)
    assert done.code == 0, done.err
    assert "stage 1: F " in done.out
    assert pipec("compile", *model, "--costs", costs, "-o", second).code == 0
    told = json.loads(costs.read_text())
    plan = load_plan(second)
    measured = told["stages"]["cpu"]
    keys = [s.training.key for s in plan.stages if s.training]
    assert [t.compute_seconds for t in plan.timing] == pytest.approx(
        [measured[key]["F"] for key in keys]
    )
    assert plan.timeline is not None
    squares = 8 * sum(len(s.training.trained) for s in plan.stages if s.training)
    norm = plan.cluster.link(0, 1).seconds(squares)
    steps = [measured[key]["step"] + norm for key in keys]
    assert plan.timeline.times.step == pytest.approx(steps)


def test_devices_of_two_kinds_need_one_named(
    tmp_path: Path, model: list[str], pipec: Pipec
) -> None:
    out = tmp_path / "out"
    mixed = [*model[:3], "1xcpu,1xh100", *model[4:]]
    assert pipec("compile", *mixed, "-o", out).code == 0
    done = pipec("profile", out, "--local")
    assert done.code == 1
    assert "several kinds" in done.err
    assert "--kind" in done.err


def test_a_kind_is_read_alike_of_a_model_and_of_a_directory_and_a_missing_one_is_named(
    tmp_path: Path, model: list[str], pipec: Pipec
) -> None:
    out, costs = tmp_path / "out", tmp_path / "costs.json"
    assert pipec("compile", *model, "-o", out).code == 0
    common = ("profile", out, "--kind", "H100", "--local", "--seconds", 0, "--repeats", 1)
    assert pipec(*common, "-o", costs).code == 0
    table = json.loads(costs.read_text())
    assert [*table["seconds"]] == [*table["stages"]] == ["h100"]
    done = pipec("compile", *model, "--costs", costs, "-o", tmp_path / "none")
    assert "no costs for this kind of device" in done.err
    assert done.err.index("cpu") < done.err.index("h100")


def test_options_that_a_directory_does_not_read_are_refused(
    tmp_path: Path, model: list[str], pipec: Pipec
) -> None:
    trained, alone = tmp_path / "trained", tmp_path / "alone"
    assert pipec("compile", *model, "-o", trained).code == 0
    assert pipec("compile", model[0], "--inference", *model[2:4], "-o", alone).code == 0
    for given in (
        (trained, "--heaviest", 3),
        (trained, "--costs", tmp_path / "costs.json", "--repeats", 3),
        (alone, "--optimizer", "adam:lr=1", "--local", "--seconds", 0),
    ):
        done = pipec("profile", *given, "-o", tmp_path / "written.json")
        assert done.code == 2, given
        assert str(given[-2] if given[0] is trained else given[1]) in done.err


def test_a_gpus_allocator_is_set_before_the_gpu_is_asked_for_anything(
    tmp_path: Path, model: list[str], pipec: Pipec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first question to CUDA sets the allocator up as the environment then says."""

    def name() -> str:
        set_then.append(os.environ.get("PYTORCH_ALLOC_CONF"))
        return "a name that no preset has"

    set_then: list[str | None] = []
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "")
    monkeypatch.delenv("PYTORCH_ALLOC_CONF")  # what is set here ends with the test
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", name)
    told = pipec("profile", model[0], "--device", "cuda", "-o", tmp_path / "costs.json")
    assert "no known kind" in told.err
    assert set_then == ["expandable_segments:True"]


def test_a_stage_of_an_inference_that_takes_longer_than_its_nodes_is_cut_shorter() -> None:
    layers = [nn.Linear(64, 64) for _ in range(8)]
    graph = from_module(nn.Sequential(*layers), (torch.randn(4, 64),)).graph
    table = CostTable(count(graph), {"cpu": dict.fromkeys((n.name for n in graph.calls), 1.0)}, {})
    plans = []
    for _ in range(3):
        plan = make_plan(graph, parse_cluster("2xcpu"), "onnx", costs=table)
        plans.append([len(lower(s.graph).graph.calls) for s in plan.stages])
        # The first two layers take five times as long there.
        took = [5 * 2 + plans[-1][0] - 2, plans[-1][1]]
        stages = {s.cost_key: StageCost(float(t)) for s, t in zip(plan.stages, took, strict=True)}
        table = Profile(stages).add_to(table, plan, "cpu")
        for stage, seconds in zip(plan.stages, took, strict=True):
            row = table.of("cpu")
            nodes = lower(stage.graph).graph.calls
            assert sum(row[n.name] for n in nodes) == pytest.approx(seconds)
    assert plans == [[4, 4], [3, 5], [2, 6]]
