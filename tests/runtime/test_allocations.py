"""Bytes counted op by op: views, in-place ops, lists, kernels; and against what a plan predicts."""

from collections.abc import Callable
from functools import cache

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]

from pipec.cluster.cluster import parse_cluster
from pipec.compiler.driver import make_plan
from pipec.compiler.fates import Fates
from pipec.compiler.pass_manager import parse_pipeline, run_passes
from pipec.compiler.profile import Profiler
from pipec.compiler.reside import make_applier
from pipec.compiler.stage_timing import find_measured
from pipec.compiler.timeline import plan_timeline
from pipec.frontends.trace import Loss, trace
from pipec.graph.ir import Source
from pipec.plan.model import Plan
from pipec.runtime import allocations
from pipec.runtime.allocations import Allocations, CudaAllocator, counting
from pipec.runtime.executor import Batch, Settings
from pipec.runtime.runner import LocalPipeline
from pipec.runtime.weights import StageWeights
from tests.autodiff.chain import Case
from tests.autodiff.zoo import CASES, floats, seeded
from tests.runtime.pipelines import batches, scheduled


def test_shared_memory_counts_once_and_is_let_go_with_its_last_view() -> None:
    held = torch.zeros(100)
    with Allocations([held]) as found:
        assert found.live == 400
        view = held[10:]
        view.add_(1)
        assert found.live == 400
        new = held + held
        part = new[:2]
        assert found.live == 800
        del new
        assert found.live == 800
        del part
        assert (found.live, found.peak) == (400, 800)
        assert found.reset() == found.peak == 400


def test_lists_of_results_count_each() -> None:
    with Allocations() as found:
        parts = torch._foreach_neg([torch.ones(10), torch.ones(5)])
        assert found.peak == 120
        assert found.live == 60
    del parts


def test_what_a_kernel_takes_for_itself_counts() -> None:
    """oneDNN computes a convolution's backward on copies of its operands in another layout."""
    x, weight = torch.ones(16, 16, 32, 32), torch.ones(16, 16, 3, 3)
    grad = torch.ones_like(x)
    with Allocations([x, weight, grad]) as found:
        parts = torch.ops.aten.convolution_backward(
            grad, x, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False]
        )
        made = sum(t.nbytes for t in parts[:2])
        before = x.nbytes + weight.nbytes + grad.nbytes
        assert found.live == before + made
        assert found.peak >= before + made + x.nbytes


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_what_a_kernel_takes_of_a_gpu_is_found_by_op() -> None:
    """A sort takes room beside its results; a sum does not, and nothing is lost of the peak."""
    device = torch.device("cuda")
    x = torch.rand(1 << 20, device=device)
    made = 12 * x.numel()  # values and indices
    with CudaAllocator(device) as found:
        before = found.reset()
        torch.add(torch.sort(x).values, 1.0)
        peak = found.peak - before
    (taken,) = found.kernels.values()
    assert taken > made
    assert peak == taken
    assert next(iter(found.kernels)).startswith("aten.sort")


def test_tensors_count_in_a_profile_of_the_user_too() -> None:
    with torch.autograd.profiler.profile(), Allocations() as found:
        x = torch.ones(100)
        y = x + x
    assert found.peak == x.nbytes + y.nbytes


def test_communication_is_not_profiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread goes on when the call is over, and would write to a profile that has ended."""
    profiled: list[str] = []

    def noted(run: Callable[[], object]) -> tuple[object, int]:
        profiled.append(str(getattr(run, "func", run)))
        return run(), 0

    monkeypatch.setattr(allocations, "measure_allocation", noted)
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        with Allocations():
            dist.all_reduce(torch.ones(10) + 1)
    finally:
        dist.destroy_process_group()
    assert profiled == ["aten.ones.default", "aten.add.Tensor"]


def test_a_step_lets_versions_go_that_nobody_uses_before_it_makes_another() -> None:
    weights = StageWeights(0, {"w": torch.zeros(1000)}, ("w",), None)
    for version in (1, 2):
        weights.accumulate(version, {"w": torch.ones(1000)})
        with Allocations(
            t for v in weights.versions for t in weights.version_at(v).tensors.values()
        ) as found:
            weights.step(version, scale=1.0, oldest=version - 1, in_place=False)
            assert found.peak == 8000
    assert weights.versions == (1, 2)


def adam(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters)


def convolutions() -> torch.nn.Module:
    nn = torch.nn
    blocks = [
        nn.Sequential(nn.Conv2d(a, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.SiLU())
        for a in (3, *[16] * 5)
    ]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 3))


MODELS = {
    "mlp": CASES["mlp"],
    "convolutions": Case(convolutions, torch.nn.functional.cross_entropy, floats(8, 3, 16, 16)),
}


@cache
def measured(name: str, stages: int) -> tuple[Plan, Batch]:
    case = MODELS[name]
    args, target = case.batch(0)
    graph = trace(seeded(case), args, loss=Loss(case.loss, target), source=Source("memory", "test"))
    passes = parse_pipeline("annotate-cost,partition,insert-comm,differentiate,time-stages")
    plan = make_plan(graph, parse_cluster(f"{stages}xcpu"), passes=passes)
    batch = batches(case, graph)
    return Profiler(plan, batch, Settings(adam)).measure(0.0).apply(plan, "cpu"), batch


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
    before, after = (find_measured(p, p.stages[0]) for p in (base, plan))
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


@pytest.mark.parametrize(("schedule", "part"), [("1f1b", 0.7), ("zb-h1", 0.6)])
def test_what_actions_of_a_rewritten_stage_take_was_predicted_before(
    schedule: str, part: float
) -> None:
    """Kernels of convolutions take memory of their own, in B too where B computes them again."""
    base, batch = measured("convolutions", 2)
    told = f"generator={schedule} microbatches=6"
    plain = run_passes(parse_pipeline(f"schedule{{{told}}},simulate"), base)
    assert plain.timeline is not None
    limit = part * max(plain.timeline.peak_bytes)
    plan = run_passes(parse_pipeline(f"insert-recompute{{memory-limit={limit} {told}}}"), base)
    rewritten = [(s.cost_key, find_measured(plan, s)) for s in plan.stages]
    again = Profiler(plan, batch, Settings(adam)).measure(0.0).stages
    assert {k for k, _ in rewritten} != {s.cost_key for s in base.stages}
    for key, predicted in rewritten:
        assert predicted is not None
        for kind, size in predicted.workspace.items():
            assert size == pytest.approx(again[key].workspace[kind], rel=0.01, abs=100), kind


@pytest.mark.parametrize("again", [["silu", "getitem"], ["silu_1", "convolution", "mean"]])
def test_what_a_backward_of_chosen_values_takes_was_predicted(again: list[str]) -> None:
    """I computes other results of a convolution's backward than B: its kernel takes less."""
    base, batch = measured("convolutions", 2)
    order = scheduled(base, "zb-h1", 6)
    chosen = [Fates(frozenset(), ()), Fates(frozenset(again), ())]
    plan = make_applier(base, order)(chosen)[0]
    stage = plan.stages[1]
    predicted = find_measured(plan, stage)
    assert predicted is not None
    assert stage.cost_key != base.stages[1].cost_key
    counted = Profiler(plan, batch, Settings(adam)).measure(0.0).stages[stage.cost_key].workspace
    assert predicted.workspace == pytest.approx(counted, rel=0.01, abs=100)


def test_the_times_of_a_measured_plan_are_those_that_were_measured() -> None:
    plan, _ = measured("mlp", 2)
    assert plan.costs is not None
    cost = plan.costs.stages["cpu"]
    first, last = (cost[s.training.key] for s in plan.stages if s.training)
    timeline = plan_timeline(plan, scheduled(plan, "1f1b", 1))
    link = [plan.cluster.link(0, 1).seconds(c.nbytes) for c in plan.channels]
    there = [first.F, *link, last.F, last.B]
    squares = 8 * sum(len(s.training.trained) for s in plan.stages if s.training)
    steps = plan.cluster.all_reduce((0, 1), squares) + max(first.step, last.step)
    assert timeline.seconds == pytest.approx(sum([*there, *link, first.B, steps]))
    more = plan_timeline(plan, scheduled(plan, "1f1b", 4)).times.compute
    kind = next(k for k in more if k.name == "B")
    assert more[kind] == pytest.approx([c.B + 0.75 * c.accumulate for c in (first, last)])
    every = plan_timeline(plan, scheduled(plan, "pipedream", 4)).times
    assert every.compute[kind] == pytest.approx([first.B, last.B])
    assert every.step == (first.step_copied, last.step_copied)
