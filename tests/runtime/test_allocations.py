"""Bytes counted op by op: views, in-place ops, lists; and against what a plan predicts."""

import pytest
import torch

from pipec.cluster.cluster import parse_cluster
from pipec.compiler.driver import make_plan
from pipec.compiler.pass_manager import parse_pipeline, run_passes
from pipec.compiler.profile import Profiler
from pipec.compiler.stage_timing import measured_stage
from pipec.compiler.timeline import plan_timeline
from pipec.frontends.trace import Loss, trace
from pipec.graph.ir import Source
from pipec.plan.model import Plan
from pipec.runtime.allocations import Allocations, counting
from pipec.runtime.executor import Batch, Settings
from pipec.runtime.local import LocalPipeline
from pipec.runtime.weights import StageWeights
from tests.autodiff.zoo import CASES, seeded
from tests.runtime.pipelines import batches, scheduled


def test_shared_memory_counts_once_and_is_let_go_with_its_last_view() -> None:
    held = torch.zeros(100)
    with Allocations([held]) as found:
        assert found.live == 400
        view = held[10:]
        view.add_(1)
        assert found.live == 400
        new = held + 1
        part = new[:2]
        assert found.live == 800
        del new
        assert found.live == 800
        del part
        assert (found.live, found.peak) == (400, 800)
        assert found.reset() == found.peak == 400


def test_lists_of_results_count_each() -> None:
    with Allocations() as found:
        parts = torch._foreach_add([torch.ones(10), torch.ones(5)], 1)
        assert found.peak == 120
        assert found.live == 60
    del parts


def test_a_step_lets_versions_go_that_nobody_uses_before_it_makes_another() -> None:
    weights = StageWeights(0, {"w": torch.zeros(1000)}, ("w",), None)
    for version in (1, 2):
        weights.accumulate(version, {"w": torch.ones(1000)})
        with Allocations(
            t for v in weights.versions for t in weights.at(v).tensors.values()
        ) as found:
            weights.step(version, scale=1.0, oldest=version - 1, in_place=False)
            assert found.peak == 8000
    assert weights.versions == (1, 2)


def adam(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters)


def measured(name: str, stages: int) -> tuple[Plan, Batch]:
    case = CASES[name]
    args, target = case.batch(0)
    graph = trace(seeded(case), args, loss=Loss(case.loss, target), source=Source("memory", "test"))
    passes = parse_pipeline("annotate-cost,partition,insert-comm,differentiate,time-stages")
    plan = make_plan(graph, parse_cluster(f"{stages}xcpu"), passes=passes)
    batch = batches(case, graph)
    return Profiler(plan, batch, Settings(adam)).measure(0.0).on(plan, "cpu"), batch


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1", "pipedream"])
def test_the_bytes_of_a_measured_plan_are_those_that_a_run_holds(schedule: str) -> None:
    plan, batch = measured("mlp", 1)
    order = scheduled(plan, schedule, 6)
    pipeline = LocalPipeline(plan, batch, Settings(adam), schedule=order)
    with counting(pipeline.executors[0]) as memory:
        for _ in range(2):
            pipeline.round()
        counted = memory.peak
    (predicted,) = plan_timeline(plan, order).peak_bytes
    assert predicted == pytest.approx(counted, rel=0.05)


def test_a_measured_stage_stays_measured_when_it_is_rewritten() -> None:
    """B takes what it took and what it computes again; bytes are those that a run holds."""
    base, batch = measured("mlp", 1)
    told = parse_pipeline("schedule{generator=gpipe microbatches=6},simulate")
    plain = run_passes(told, base)
    assert plain.timeline is not None
    limit = 0.85 * plain.timeline.peak_bytes[0]
    first = parse_pipeline(
        f"insert-recompute{{memory-limit={limit} generator=gpipe microbatches=6}}"
    )
    plan = run_passes([*first, *told], base)
    before, after = (measured_stage(p, p.stages[0]) for p in (base, plan))
    assert before is not None
    assert after is not None
    assert after.F == before.F
    assert after.B > before.B
    pipeline = LocalPipeline(plan, batch, Settings(adam))
    with counting(pipeline.executors[0]) as memory:
        for _ in range(2):
            pipeline.round()
        counted = memory.peak
    assert plan.timeline is not None
    assert plan.timeline.peak_bytes[0] == pytest.approx(counted, rel=0.05)


def test_the_times_of_a_measured_plan_are_those_that_were_measured() -> None:
    plan, _ = measured("mlp", 2)
    assert plan.costs is not None
    cost = plan.costs.stages["cpu"]
    first, last = (cost[s.training.key] for s in plan.stages if s.training)
    timeline = plan_timeline(plan, scheduled(plan, "1f1b", 1))
    link = [plan.cluster.link(0, 1).seconds(c.nbytes) for c in plan.channels]
    there = [first.F, *link, last.F, last.B]
    ends = sum([*there, *link, first.B, first.step]), sum([*there, last.step])
    assert timeline.seconds == pytest.approx(max(ends))
    more = plan_timeline(plan, scheduled(plan, "1f1b", 4)).times.compute
    kind = next(k for k in more if k.name == "B")
    assert more[kind] == pytest.approx([c.B + 0.75 * c.accumulate for c in (first, last)])
    every = plan_timeline(plan, scheduled(plan, "pipedream", 4)).times
    assert every.compute[kind] == pytest.approx([first.B, last.B])
    assert every.step == (first.step_copied, last.step_copied)
