"""``pipec opt``: texts in and out, where a pass fails, and what every pass did."""

import json
from pathlib import Path

import pytest

from pipec.cluster.cluster import parse_cluster
from pipec.compiler.driver import default_passes, make_plan
from pipec.errors import GraphError, PlanError
from pipec.plan.text import graph_to_text, plan_from_text, plan_to_text
from pipec.report.difference import difference
from tests.cli.running import Pipec
from tests.toys import mlp
from tests.trained import trained_mlp

CLUSTER = parse_cluster("2xcpu")


@pytest.mark.parametrize("trains", [False, True])
def test_a_plan_comes_back_from_its_text(trains: bool) -> None:
    graph = trained_mlp(4, width=8, batch=2) if trains else mlp()
    plan = make_plan(graph, CLUSTER, passes=default_passes(microbatches=2))
    text = plan_to_text(plan)
    back = plan_from_text(text, CLUSTER)
    assert difference(plan, back) == []
    assert back.timeline is not None
    assert plan.timeline is not None
    assert back.timeline.to_json() == plan.timeline.to_json()
    assert plan_to_text(back) == text


def test_a_graph_goes_through_passes_as_text(pipec: Pipec, tmp_path: Path) -> None:
    file, new = tmp_path / "a.json", tmp_path / "b.json"
    file.write_text(graph_to_text(mlp()))
    assert pipec("opt", file, "-o", "-").out == file.read_text()
    cut = pipec(
        "opt", file, "--passes", "annotate-cost,partition", "--devices", "3xh100", "-o", "-"
    )
    assert cut.out.startswith("//--- plan.json\n"), cut.err
    assert len(plan_from_text(cut.out, CLUSTER).stages) == 3
    (tmp_path / "cut.txt").write_text(cut.out)
    assert pipec("opt", tmp_path / "cut.txt", "-o", "-").out == cut.out
    done = pipec("opt", file, "--passes", "split-layer{node=linear1}", "-o", new)
    assert "requires the fact cost" in done.err
    done = pipec("opt", file, "--passes", "annotate-cost,split-layer{node=linear1}", "-o", new)
    assert done.code == 0, done.err
    assert '"name":"linear1_first"' in new.read_text()
    again = pipec("opt", file, "--passes", "simplify", "-o", new)
    assert "--force replaces it" in again.err


def test_the_graphs_after_every_pass_are_printed(pipec: Pipec, tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text(graph_to_text(mlp()))
    passes = ("--passes", "simplify,annotate-cost,partition", "--devices", "2xh100")
    done = pipec("opt", file, *passes, "--print-ir-after")
    assert done.code == 0, done.err
    _, *parts = done.out.split("after ")
    assert [p.split("\n")[0].rstrip(":") for p in parts] == [
        "simplify",
        "annotate-cost",
        "partition",
    ]
    assert [p.count("stage ") for p in parts] == [0, 0, 2]
    assert all("aten.linear" in p for p in parts)
    apart = pipec("opt", file, *passes, "--print-ir-after", "--statistics", "--json", "-o", "-")
    assert apart.err.count("after ") == 3
    assert len(plan_from_text(apart.out, CLUSTER).stages) == 2


def test_a_stage_of_a_plan_is_a_graph_too(pipec: Pipec, model: Path, tmp_path: Path) -> None:
    assert pipec("compile", model, "--devices", "2xcpu", "-o", tmp_path / "out").code == 0
    for file in (tmp_path / "out" / "graphs").glob("*/F.json"):
        done = pipec("opt", file, "--passes", "simplify,annotate-cost", "--statistics")
        assert done.code == 0, done.err
    whole = pipec("opt", tmp_path / "out", "-o", "-").out
    assert pipec("opt", tmp_path / "out", "-o", tmp_path / "out.txt").code == 0
    assert (tmp_path / "out.txt").read_text() == whole
    assert plan_to_text(plan_from_text(whole, CLUSTER)) == whole


def test_statistics_of_every_pass(pipec: Pipec, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(graph_to_text(mlp()))
    passes = "annotate-cost,split-layer{node=linear1}"
    found = pipec("opt", tmp_path / "a.json", "--passes", passes, "--json")
    rows = json.loads(found.out)
    assert [row["pass"] for row in rows] == passes.split(",")
    assert rows[1]["added"] >= 4
    assert rows[1]["changed"] >= 1
    shown = pipec("opt", tmp_path / "a.json", "--passes", passes, "--statistics").out
    assert len(shown.splitlines()) == 2


def test_a_reproducer_runs_the_failing_pass_again(pipec: Pipec, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(graph_to_text(mlp()))
    file = tmp_path / "again.txt"
    passes = "simplify,annotate-cost,partition{stages=9},insert-comm"
    first = pipec("opt", tmp_path / "a.json", "--passes", passes, "--reproducer", file)
    assert first.code == 1
    assert f"pipec opt {file}" in first.err
    assert file.read_text().startswith(
        "// passes: partition{stages=9},insert-comm\n//--- plan.json"
    )
    again = pipec("opt", file)
    assert again.code == 1
    assert again.err.splitlines()[0] == first.err.splitlines()[0]
    assert not pipec("opt", tmp_path / "a.json", "--passes", "simplify").err


def test_damaged_texts_are_refused() -> None:
    text = plan_to_text(make_plan(mlp(), CLUSTER))
    for bad in (
        text.replace("//--- model.json", "//--- ../model.json"),
        text.replace("//--- model.json", "//--- /tmp/model.json"),
        text.replace("//--- plan.json", "//--- plan"),
        text.replace('"format"', '"form"'),
        text[:-30],
        "hello",
        "",
    ):
        with pytest.raises((PlanError, GraphError)):
            plan_from_text(bad, CLUSTER)
    relu, other = '"target":"aten.relu.default"', '"target":"aten.sigmoid.default"'
    assert relu in text
    with pytest.raises(PlanError):
        plan_from_text(text.replace(relu, other, 1), CLUSTER)
