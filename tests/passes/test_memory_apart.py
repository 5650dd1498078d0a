"""Residency of PipeFB: nodes, limits and bits where forward and backward run on two devices."""

from functools import cache
from typing import Any

import pytest
import torch

from pipec.cluster.cluster import parse_cluster
from pipec.compiler.driver import make_plan
from pipec.compiler.pass_manager import parse_pipeline, run_passes
from pipec.errors import PassError
from pipec.frontends.trace import Loss, trace
from pipec.graph.comm import FETCH, OFFLOAD
from pipec.graph.ir import Source
from pipec.plan.model import Plan
from pipec.runtime.executor import Settings
from pipec.runtime.runner import LocalPipeline
from pipec.schedule.action import ActionKind
from tests.passes.test_memory_passes import CASE, MICROBATCHES, batch, model, sgd
from tests.runtime.pipelines import batches

STAGES = 2
PLANNED = "simplify,annotate-cost,partition{schedule=pipefb},insert-comm,differentiate,time-stages"
NAMED = f"generator=pipefb microbatches={MICROBATCHES}"


@cache
def differentiated() -> Plan:
    """A transformer on four devices, two of them for the backward."""
    args, target = batch(0)
    graph = trace(model(2), args, loss=Loss(CASE.loss, target), source=Source("memory", "test"))
    return make_plan(graph, parse_cluster("4xh100"), passes=parse_pipeline(PLANNED))


@cache
def planned(memory: str = "", saved: str = "host") -> Plan:
    """The plan with a memory pass or without."""
    scheduled = f"schedule{{generator=pipefb{{saved={saved}}} microbatches={MICROBATCHES}}}"
    passes = ",".join(filter(None, [memory, scheduled, "simulate"]))
    return run_passes(parse_pipeline(passes), differentiated())


def peaks(plan: Plan) -> tuple[float, ...]:
    assert plan.timeline
    return tuple(plan.timeline.peak_bytes)


def least() -> float:
    """A limit between what takes weights alone and what takes two sets of saved values."""
    plan = planned()
    sets = min(slot.nbytes for slot in plan.slots)
    return max(peaks(plan)) - 0.7 * sets


def limited(name: str, **options: Any) -> Plan:
    given = " ".join(f"{k}={v}" for k, v in {"memory-limit": least(), **options}.items())
    return planned(f"{name}{{{NAMED} {given}}}")


@pytest.mark.parametrize("name", ["insert-offload", "insert-recompute"])
def test_a_limit_is_kept_and_training_is_bit_equal(name: str) -> None:
    plan, plain = limited(name), planned()
    assert max(peaks(plan)) <= least() < max(peaks(plain))
    runs = [LocalPipeline(p, batches(CASE, p.graph), Settings(sgd)) for p in (plan, plain)]
    assert runs[0].run(1) == runs[1].run(1)
    a, b = (r.state_dict() for r in runs)
    assert all(torch.equal(a[n], b[n]) for n in a)


def test_a_first_part_leaves_before_the_next_forward() -> None:
    plan = limited("insert-offload")
    depths = [[s.depth for s in plan.slots if s.stage == k] for k in range(STAGES)]
    assert [1, 2] in depths
    for stage in plan.stages:
        assert stage.training
        assert not stage.training.saved  # every saved value is a node
        values = {v for s in plan.slots if s.stage == stage.index for v in s.values}
        out = [n for n in stage.training.F.calls if n.target is OFFLOAD]
        back = [n for n in stage.training.B.calls if n.target is FETCH]
        assert {n.args[0].name for n in out} == {n.name for n in back} == values  # type: ignore[union-attr]
    assert plan.schedule
    kinds = [a.kind for a in plan.schedule]
    assert kinds.count(ActionKind.FETCH) == MICROBATCHES * len(plan.slots)


def test_recomputed_values_do_not_cross() -> None:
    plan, plain = limited("insert-recompute"), planned()
    assert sum(s.nbytes for s in plan.slots) < sum(s.nbytes for s in plain.slots)
    again = 0
    for stage, before in zip(plan.stages, plain.stages, strict=True):
        assert stage.training
        assert before.training
        sent = {v for s in plain.slots if s.stage == stage.index for v in s.values}
        left = sent - {v for s in plan.slots if s.stage == stage.index for v in s.values}
        assert left <= {n.name for n in stage.training.B.calls if n.target is not FETCH}
        again += len(left)
    assert again


def test_what_goes_straight_can_be_recomputed_but_not_offloaded() -> None:
    direct = f"generator=pipefb{{saved=direct}} microbatches={MICROBATCHES}"
    with pytest.raises(PassError, match="none waits in host memory"):
        planned(f"insert-offload{{{direct}}}", "direct")
    limit = max(peaks(planned("", "direct"))) - 0.5 * min(s.nbytes for s in planned().slots)
    plan = planned(f"insert-recompute{{{direct} memory-limit={limit}}}", "direct")
    assert not plan.slots
    assert max(peaks(plan)) <= limit


def test_offload_for_another_schedule_and_impossible_limits_are_refused() -> None:
    with pytest.raises(PassError, match="short"):
        planned(f"insert-offload{{{NAMED} memory-limit=1e4}}")
    limit = 0.8 * max(peaks(planned()))
    with pytest.raises(PassError, match="one device"):
        planned(f"insert-offload{{generator=1f1b microbatches=8 memory-limit={limit}}}")
