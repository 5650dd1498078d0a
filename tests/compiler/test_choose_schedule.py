"""``--schedule fastest``: chosen by simulation on the plan, never slower than 1f1b, and kept."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from pipec.cluster.cluster import Cluster, Link, parse_cluster
from pipec.compiler.complete import complete
from pipec.compiler.driver import default_passes, emit, make_plan
from pipec.compiler.pass_manager import run_passes
from pipec.errors import ScheduleError
from pipec.graph.ir import Graph
from pipec.passes.schedule import choose_schedule
from pipec.plan.model import Plan, Tried
from pipec.plan.store import load_plan
from pipec.report.plan import print_plan
from pipec.schedule.registry import SYNCHRONOUS, SYNTHESIZED, generate
from tests.toys import mlp
from tests.trained import trained_mlp

WIDTH, BATCH = 64, 8


@pytest.fixture(scope="module")
def graph() -> Graph:
    return trained_mlp(5, WIDTH, BATCH)


def compiled(
    graph: Graph, cluster: Cluster, schedule: str = "fastest", microbatches: int = 6
) -> Plan:
    return make_plan(
        graph, cluster, passes=default_passes(schedule=schedule, microbatches=microbatches)
    )


def seconds(plan: Plan) -> float:
    assert plan.timeline is not None
    return plan.timeline.seconds


@pytest.mark.parametrize("link", [Link(1e12, 0.0), Link(1e9, 1e-5)])
def test_auto_is_the_fastest_of_all_that_are_named(graph: Graph, link: Link) -> None:
    cluster = _linked(link)
    plan = compiled(graph, cluster)
    assert {t.schedule for t in plan.explored} == {*SYNCHRONOUS, SYNTHESIZED}
    told = {t.schedule: t for t in plan.explored}
    for name in ("gpipe", "1f1b", "1f1b-so", "zb-h1"):
        alone = seconds(compiled(graph, cluster, name))
        predicted = told[name].seconds
        assert predicted is not None
        assert predicted >= alone * (1 - 1e-9)  # cut for itself, a schedule is never slower
        assert seconds(plan) <= alone * (1 + 1e-9)
    assert plan.schedule is not None
    assert (plan.explored[0].schedule, plan.explored[0].why) == (plan.schedule.name, "chosen")
    assert all(t.why for t in plan.explored)
    assert "one stage per device" in told["zbv"].why or "even" in told["zbv"].why


def _linked(link: Link) -> Cluster:
    devices = parse_cluster("3xv100").devices
    return Cluster(devices, {(a, b): link for a in range(3) for b in range(a + 1, 3)})


def test_ties_go_to_the_least_memory(graph: Graph) -> None:
    plan = compiled(graph, parse_cluster("1xv100"), microbatches=3)
    one = {t.schedule: t for t in plan.explored}
    assert one["gpipe"].seconds == pytest.approx(one["1f1b"].seconds)
    assert one["gpipe"].peak_bytes > one["1f1b"].peak_bytes
    assert plan.explored[0].schedule == "1f1b"
    assert one["gpipe"].why == "as fast, more memory"


def test_memory_decides_before_time_does(graph: Graph) -> None:
    plan = compiled(graph, parse_cluster("2xv100"), microbatches=8)
    peaks = {t.schedule: max(t.peak_bytes) for t in plan.explored if t.seconds}
    assert peaks["1f1b"] < peaks["gpipe"]
    made = {n: complete(generate(n, 2, 8), plan) for n in ("gpipe", "1f1b")}

    def limited(memory: float) -> tuple[Tried, ...]:
        devices = tuple(replace(d, memory_bytes=memory) for d in plan.cluster.devices)
        return choose_schedule(plan.replace(cluster=Cluster(devices)), made)

    found = limited((peaks["1f1b"] + peaks["gpipe"]) / 2)
    assert found[0].schedule == "1f1b"
    assert found[1].why.startswith("does not fit: device 0 needs")
    with pytest.raises(ScheduleError, match="no schedule fits the plan"):
        limited(peaks["1f1b"] / 2)


def test_what_was_tried_is_kept_and_shown(graph: Graph, tmp_path: Path) -> None:
    plan = compiled(graph, parse_cluster("2xv100"))
    emit(plan, tmp_path / "out")
    again = load_plan(tmp_path / "out")
    assert again.explored == plan.explored
    assert isinstance(again.explored[0], Tried)
    shown = io.StringIO()
    print_plan(again, Console(width=120, file=shown))
    text = shown.getvalue()
    assert "schedules tried, 6 microbatches" in text
    assert plan.explored[0].schedule in text


def test_untimed_plans_are_timed_for_the_choice(graph: Graph) -> None:
    passes = [p for p in default_passes() if p.name not in ("time-stages", "simulate")]
    plan = run_passes(passes, Plan(graph, parse_cluster("2xv100")))
    assert plan.explored
    assert not plan.timing


def test_a_model_without_loss_stays_inference() -> None:
    plan = compiled(mlp(), parse_cluster("2xh100"))
    assert plan.schedule is not None
    assert plan.schedule.name == "inference"
    assert not plan.explored
