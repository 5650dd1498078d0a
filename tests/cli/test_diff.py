"""``pipec diff`` and ``pipec opt``: what differs, name by name, and passes on a written plan."""

import dataclasses
import json
from pathlib import Path

import pytest

from pipec.cluster.cluster import parse_cluster
from pipec.compiler.driver import default_passes, make_plan
from pipec.report.difference import difference
from tests.cli.running import Pipec
from tests.trained import trained_mlp


@pytest.fixture
def out(pipec: Pipec, model: Path, tmp_path: Path) -> Path:
    told = pipec("compile", model, "--devices", "2xcpu", "--microbatches", 2, "-o", tmp_path / "a")
    assert told.code == 0, told.err
    return tmp_path / "a"


def test_a_pass_on_a_written_plan_and_what_it_changed(
    pipec: Pipec, out: Path, tmp_path: Path
) -> None:
    new = tmp_path / "b"
    passes = "time-stages,schedule{generator=inference microbatches=4},simulate"
    done = pipec("opt", out, "--passes", passes, "-o", new, "--print-ir-diff")
    assert done.code == 0, done.err
    assert "after schedule{generator=inference microbatches=4" in done.out
    assert pipec("verify", new).code == 0
    same = pipec("diff", out, out)
    assert (same.code, same.out) == (0, "no difference, weights aside\n")
    changed = pipec("diff", out, new, "--json")
    assert changed.code == 1
    found = {(c["part"], c["name"]): (c["before"], c["after"]) for c in json.loads(changed.out)}
    assert found["schedule", "microbatches"] == ("2", "4")
    assert {part for part, _ in found} == {"schedule", "costs"}
    assert "~ schedule: microbatches: 2 -> 4" in pipec("diff", out, new).out


def test_mistakes_are_told(pipec: Pipec, out: Path) -> None:
    assert "would change nothing" in pipec("opt", out, "--passes", "partition").err
    assert "did you mean" in pipec("opt", out, "--passes", "simplfy").err
    assert pipec("diff", out, out.parent / "none").code == 1


def test_a_change_in_any_graph_is_a_difference() -> None:
    """Another B of one stage, and nothing else."""
    cluster, passes = parse_cluster("2xcpu"), default_passes(microbatches=2)
    plan = make_plan(trained_mlp(4, width=8, batch=2), cluster, passes=passes)
    assert difference(plan, plan) == []
    first = plan.stages[0]
    assert first.training is not None
    bare = dataclasses.replace(first.training, B=first.training.F)
    other = plan.replace(stages=(dataclasses.replace(first, training=bare), *plan.stages[1:]))
    assert {c.part for c in difference(plan, other)} == {"stage 0 B"}
