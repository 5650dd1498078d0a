"""Stages in parts under a memory limit: finer copies, the same bits; the rule of PipeOffload."""

import re
from dataclasses import replace
from functools import cache, partial

import pytest
import torch

from pipec.cluster.cluster import parse_cluster
from pipec.compiler import refine
from pipec.compiler.driver import make_plan
from pipec.compiler.facts import plan_facts
from pipec.compiler.fates import Fates
from pipec.compiler.fit import Fit, Fitted
from pipec.compiler.pass_manager import parse_pipeline, run_passes
from pipec.compiler.refine import DEPTHS, lifespans, move_until_it_fits
from pipec.compiler.reside import best, find_schedule, make_applier
from pipec.compiler.residency import list_saved
from pipec.compiler.timeline import plan_timeline
from pipec.errors import PassError, PipecError, PlanError
from pipec.frontends.trace import Loss, trace
from pipec.graph.ir import Graph, Source
from pipec.plan.model import Plan
from pipec.runtime.executor import Settings
from pipec.runtime.runner import LocalPipeline
from pipec.schedule.registry import generate
from tests.passes.test_memory_passes import CASE, batch, model, sgd
from tests.runtime.pipelines import batches

DEVICES = 2


@cache
def graph_of(layers: int) -> Graph:
    args, target = batch(0)
    loss = Loss(CASE.loss, target)
    return trace(model(layers), args, loss=loss, source=Source("memory", "test"))


@cache
def cut_for(schedule: str, stages: int, layers: int = 2) -> Plan:
    passes = (
        f"simplify,annotate-cost,partition{{stages={stages} schedule={schedule} "
        f"microbatches=4}},insert-comm,differentiate,time-stages"
    )
    return make_plan(
        graph_of(layers), parse_cluster(f"{DEVICES}xh100"), passes=parse_pipeline(passes)
    )


def timed(plan: Plan, schedule: str, before: str = "") -> Plan:
    last = f"schedule{{generator={schedule} microbatches=4}},simulate"
    return run_passes(parse_pipeline(before + last), plan)


def test_a_device_computes_the_same_in_parts_that_save_about_as_much() -> None:
    whole, fine = cut_for("1f1b", 2, 4), cut_for("1f1b{parts=4}", 8, 4)
    assert whole.partition is not None
    assert fine.partition is not None
    coarse = {n: s // 4 for n, s in fine.partition.stage_of.items()}
    assert coarse == whole.partition.stage_of
    saved = [s.training.saved_bytes for s in fine.stages if s.training]
    for device in (saved[:4], saved[4:]):
        assert max(device) < 1.5 * sum(device) / 4


def test_parts_fit_what_whole_stages_do_not_and_train_the_same_bits() -> None:
    """The last device has one microbatch in flight: a whole stage gains nothing there."""
    whole, fine = cut_for("1f1b", 2), cut_for("1f1b{parts=4}", 8)
    plain = timed(whole, "1f1b").timeline
    assert plain is not None
    limit = 0.8 * min(plain.peak_bytes)
    told = f"memory-limit={limit} microbatches=4 generator="
    with pytest.raises(PassError, match="does not fit device"):
        timed(whole, "1f1b", f"insert-offload{{{told}1f1b}},")
    plan = timed(fine, "1f1b{parts=4}", f"insert-offload{{{told}1f1b{{parts=4}}}},")
    assert plan.timeline is not None
    assert plan.slots
    assert max(plan.timeline.peak_bytes) <= limit
    made = [
        LocalPipeline(p, batches(CASE, p.graph), Settings(sgd))
        for p in (plan, timed(fine, "1f1b{parts=4}"))
    ]
    assert made[0].run(2) == made[1].run(2)
    weights, same = (p.state_dict() for p in made)
    assert all(torch.equal(weights[n], same[n]) for n in same)


@pytest.mark.parametrize(
    ("schedule", "stages", "share"),
    [
        ("1f1b{replicas=2}", 1, 0.3),
        ("interleaved{chunks=3}", 6, 0.35),
        ("zb-h1{memory=2}", 2, 0.4),
        ("gpipe{parts=2}", 4, 0.4),
        ("pipedream", 2, 0.5),
    ],
)
def test_a_refusal_speaks_of_the_schedule_as_it_was_asked_for(
    schedule: str, stages: int, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what it says would fit, or can be tried, is one that can be run on these devices."""
    monkeypatch.setattr(refine, "WORK", 2_000)  # nothing fits, however long it is searched
    plan = cut_for(schedule, stages)
    plain = timed(plan, schedule).timeline
    assert plain is not None
    limit = share * max(plain.peak_bytes)
    told = f"insert-recompute{{memory-limit={limit} microbatches=4 generator={schedule}}},"
    with pytest.raises(PassError) as caught:
        timed(plan, schedule, told)
    text = str(caught.value)
    assert f"schedule {schedule} does not fit device" in text
    if found := re.search(r"schedule (\S+) with (\d+) microbatches fits", text):
        name, count = found.groups()
        again = told.replace("microbatches=4", f"microbatches={count}").replace(schedule, name)
        last = f"{again}schedule{{generator={name} microbatches={count}}},simulate"
        made = run_passes(parse_pipeline(last), plan).timeline
        assert made is not None
        assert max(made.peak_bytes) <= limit
    less = told.replace("insert-recompute", "insert-offload").replace(str(limit), str(limit / 2))
    with pytest.raises(PassError) as caught:
        timed(plan, schedule, less)
    for name in re.findall(r"stages in parts \((\S+)\)", str(caught.value)):
        assert generate(name, 4 * stages, 4).devices == DEVICES


@pytest.mark.parametrize("told", ["memory-limit=", "values="])
def test_backwards_with_newer_weights_compute_nothing_again_that_reads_weights(told: str) -> None:
    """PipeMare: what is computed again would be another value than the forward's."""
    plan = cut_for("pipemare", 2)
    plain = timed(plan, "pipemare")
    assert plain.timeline is not None
    if told == "values=":
        before = "insert-recompute{values=layers.* generator=pipemare microbatches=4},"
    else:
        limit = 0.9 * max(plain.timeline.peak_bytes)
        before = f"insert-recompute{{{told}{limit} generator=pipemare microbatches=4}},"
    fits = timed(plan, "pipemare", before)
    assert any(a.training != b.training for a, b in zip(fits.stages, plain.stages, strict=True))
    made = [LocalPipeline(p, batches(CASE, p.graph), Settings(sgd)) for p in (plain, fits)]
    assert made[0].run(2) == made[1].run(2)
    weights, same = (p.state_dict() for p in made)
    assert all(torch.equal(weights[n], same[n]) for n in same)


def test_backwards_with_newer_weights_that_compute_all_again_are_refused() -> None:
    plan = cut_for("1f1b", 2)
    bare = plan.replace(stages=tuple(replace(s, training=None) for s in plan.stages))
    again = run_passes(parse_pipeline("differentiate{recompute=all},time-stages"), bare)
    assert timed(again, "pipedream").timeline is not None
    with pytest.raises(PlanError, match=r"recomputed-alike.*a newer .* than its forward had"):
        timed(again, "pipemare")


def rule(fit: Fit, depth: int) -> Fitted | None:
    """PipeOffload's rule value by value: the longest wait leaves first, until a device fits."""
    waited, homes = lifespans(fit.plain), fit.schedule.placement.forward
    gone: dict[int, list[str]] = {s: [] for s in range(len(homes))}
    while True:
        slots = [((depth, tuple(names)),) if names else () for names in gone.values()]
        chosen = [Fates(frozenset(), s) for s in slots]
        foreseen = fit.foresight.timeline(chosen)
        over = [d for d, p in enumerate(foreseen.peak_bytes) if p > fit.limits[d]]
        if not over:
            plan, order = fit.apply(chosen)
            return Fitted(chosen, plan_timeline(plan, order), plan, order)
        for device in over:
            left = [
                (waited[s], s)
                for s, home in enumerate(homes)
                if device in home and len(gone[s]) < len(_names(fit.plan, s))
            ]
            if not left:
                return None
            stage = max(left)[1]
            gone[stage] = _names(fit.plan, stage)[: len(gone[stage]) + 1]


def test_what_is_predicted_of_a_rule_is_predicted_of_its_plan() -> None:
    """The facts of stages with values gone are those of the rewritten graphs: to the bit."""
    plan = cut_for("zbv", 4)
    order = find_schedule(plan, "zbv", 4)
    limit = 0.9 * max(plan_timeline(plan, order).peak_bytes)
    fit = Fit(plan, order, limit, make_applier(plan, order), False, True)
    chosen = move_until_it_fits(fit, 0) or pytest.fail("nothing fits")
    timeline = fit.foresight.timeline(chosen)
    rewritten, moved = fit.apply(chosen)
    real = plan_timeline(rewritten, moved)
    assert real.schedule.channels != fit.plain.schedule.channels
    assert (real.seconds, real.peak_bytes) == (timeline.seconds, timeline.peak_bytes)


def test_what_is_fetched_is_not_counted_as_computed_again() -> None:
    plan = cut_for("1f1b{parts=4}", 8)
    order = find_schedule(plan, "1f1b{parts=4}", 4)
    slots = [((1, tuple(_names(plan, s))),) for s in range(8)]
    rewritten, _ = make_applier(plan, order)([Fates(frozenset(), s) for s in slots])
    before, after = (plan_facts(p).times().compute for p in (plan, rewritten))
    assert before == after


def _names(plan: Plan, stage: int) -> list[str]:
    training = plan.stages[stage].training
    assert training is not None
    return list_saved(training)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize(
    ("schedule", "stages", "share"),
    [("1f1b{parts=4}", 8, 0.6), ("interleaved", 4, 0.75), ("1f1b", 2, 0.75)],
)
def test_the_choice_is_never_slower_than_selective_offload_by_lifespan(
    schedule: str, stages: int, share: float, recompute: bool
) -> None:
    plan = cut_for(schedule, stages)
    order = find_schedule(plan, schedule, 4)
    limit = share * max(plan_timeline(plan, order).peak_bytes)
    fit = Fit(plan, order, limit, make_applier(plan, order), recompute, True)
    by_rule = [f for f in map(partial(rule, fit), DEPTHS) if f is not None]
    assert by_rule
    found = best(fit)
    assert max(found.timeline.peak_bytes) <= limit
    assert found.timeline.seconds <= min(f.timeline.seconds for f in by_rule) * (1 + 1e-9)


def test_a_stage_of_fewer_units_than_parts_is_named() -> None:
    with pytest.raises(PipecError, match=r"2 stages of 40 parts\n.*at most 24 in all"):
        cut_for("1f1b{parts=40}", 80)
