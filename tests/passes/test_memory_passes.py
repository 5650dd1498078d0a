"""Recompute and offload: the same bits, fewer bytes, nodes that carry weight, honest limits."""

import copy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from pipec.autodiff.model import Training
from pipec.autodiff.rewrite import recompute_values
from pipec.cluster.cluster import parse_cluster
from pipec.compiler.driver import make_plan
from pipec.compiler.endless import round_of
from pipec.compiler.fates import Fates
from pipec.compiler.fit import Fit, Residency
from pipec.compiler.pass_base import Pass
from pipec.compiler.pass_manager import parse_pipeline, run_passes
from pipec.compiler.refine import Search
from pipec.compiler.reside import make_applier
from pipec.compiler.residency import list_saved, list_work, working_bytes
from pipec.compiler.timeline import plan_timeline
from pipec.compiler.working import Rewrites, WorkingBytes
from pipec.errors import PassError, PlanError
from pipec.frontends.trace import Loss, trace
from pipec.graph.comm import FETCH, OFFLOAD
from pipec.graph.ir import GraphOutput, InputKind, OutputKind, Source
from pipec.graph.lower import lower
from pipec.passes.insert_offload import InsertOffload
from pipec.passes.insert_recompute import InsertRecompute
from pipec.plan.model import Plan, Stage
from pipec.plan.rules.verify import verify
from pipec.plan.store import load_plan, write_plan
from pipec.report.plan_data import plan_data
from pipec.residency.problem import KEEP, RECOMPUTE
from pipec.runtime.executor import Settings
from pipec.runtime.runner import LocalPipeline
from pipec.schedule.action import ActionKind
from pipec.schedule.in_flight import in_flight
from tests.autodiff.chain import Case
from tests.residency.random_models import MODELS
from tests.residency.trials import planned
from tests.runtime.pipelines import accumulated, batches, scheduled

STAGES, MICROBATCHES, WIDTH, LENGTH = 4, 8, 16, 48
PLANNED = (
    f"simplify,annotate-cost,partition{{stages={STAGES}}},insert-comm,differentiate,time-stages"
)
TIMED = "schedule{generator=1f1b microbatches=8},simulate"


class Transformer(nn.Module):
    """Encoder layers and a classifier over all positions."""

    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        stack = [
            nn.TransformerEncoderLayer(WIDTH, 2, 4 * WIDTH, 0.0, "gelu", batch_first=True)
            for _ in range(layers)
        ]
        self.layers = nn.Sequential(*stack)
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.layers(x)).flatten(0, 1)
        return out


def batch(k: int) -> tuple[tuple[torch.Tensor, ...], object]:
    g = torch.Generator().manual_seed(k)
    x = torch.randn(4, LENGTH, WIDTH, generator=g)
    return (x,), torch.randint(5, (4 * LENGTH,), generator=g)


CASE = Case(Transformer, nn.functional.cross_entropy, batch)


@cache
def model(layers: int = 4) -> nn.Module:
    torch.manual_seed(0)
    return Transformer(layers)


@cache
def plan_of(layers: int = 4) -> Plan:
    args, target = batch(0)
    graph = trace(
        model(layers), args, loss=Loss(CASE.loss, target), source=Source("memory", "test")
    )
    return make_plan(graph, parse_cluster(f"{STAGES}xh100"), passes=parse_pipeline(PLANNED))


def timed(plan: Plan) -> Plan:
    return run_passes(parse_pipeline(TIMED), plan)


@cache
def peak_of_plain() -> float:
    timeline = timed(plan_of()).timeline
    assert timeline
    return max(timeline.peak_bytes)


@cache
def limited(name: str, share: float, **options: Any) -> Plan:
    passes: dict[str, type[Pass]] = {p.name: p for p in (InsertOffload, InsertRecompute)}
    made = passes[name](memory_limit=share * peak_of_plain(), **options)  # type: ignore[call-arg]
    return run_passes([made, *parse_pipeline(TIMED)], plan_of())


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


CHOICES = [("insert-recompute", 0.65), ("insert-offload", 0.75)]


@pytest.mark.parametrize(("name", "share"), CHOICES)
def test_training_is_bit_equal_and_fits(name: str, share: float) -> None:
    plan = limited(name, share)
    assert plan.timeline
    assert max(plan.timeline.peak_bytes) <= share * peak_of_plain()
    pipeline = LocalPipeline(plan, batches(CASE, plan.graph), Settings(sgd))
    losses = pipeline.run(2)
    want, weights = accumulated(CASE, model(), sgd, 2, MICROBATCHES)
    assert losses == pytest.approx(want, rel=1e-5)
    plain = LocalPipeline(plan_of(), batches(CASE, plan.graph), Settings(sgd),
                          schedule=scheduled(plan_of(), "1f1b", MICROBATCHES))  # fmt: skip
    assert plain.run(2) == losses
    got, same = pipeline.state_dict(), plain.state_dict()
    assert all(torch.equal(got[n], same[n]) for n in got)
    assert all(torch.allclose(got[n], weights[n], atol=1e-4) for n in weights)


@pytest.mark.parametrize("name", ["zb-h1", "gpipe", "interleaved"])
@pytest.mark.parametrize("kind", ["insert-recompute", "insert-offload"])
def test_other_schedules_run_the_same_graphs(kind: str, name: str) -> None:
    share = dict(CHOICES)[kind]
    plan, options = limited(kind, share), {"chunks": 2} if name == "interleaved" else {}
    found = []
    for p in (plan_of(), plan):
        order = scheduled(p, name, MICROBATCHES, **options)
        found.append(LocalPipeline(p, batches(CASE, p.graph), Settings(sgd), schedule=order))
    assert found[0].run(1) == found[1].run(1)
    a, b = (p.state_dict() for p in found)
    assert all(torch.equal(a[n], b[n]) for n in a)


def test_recomputed_nodes_stand_in_b() -> None:
    before, after = plan_of().stages, limited("insert-recompute", 0.65).stages
    more = 0
    for a, b in zip(before, after, strict=True):
        assert a.training
        assert b.training
        dropped = {v.name for v in a.training.saved} - {v.name for v in b.training.saved}
        assert dropped <= {n.name for n in b.training.B.calls}
        more += len(dropped)
        assert b.training.saved_bytes <= a.training.saved_bytes
    assert more
    moved = limited("insert-recompute", 0.65).timeline
    plain = timed(plan_of()).timeline
    assert moved
    assert plain
    assert moved.seconds > plain.seconds  # the time is in the timeline too


def hosted(plan: Plan) -> Stage:
    """The first stage with a host slot."""
    return plan.stages[plan.slots[0].stage]


def test_copies_are_nodes_actions_and_channels() -> None:
    plan = limited("insert-offload", 0.75)
    training, slot = hosted(plan).training, plan.slots[0]
    assert training
    assert [n.target for n in training.F.calls[-len(slot.values) :]] == [OFFLOAD] * len(slot.values)
    assert [n.target for n in training.B.calls[: len(slot.values)]] == [FETCH] * len(slot.values)
    for node in training.B.calls[: len(slot.values)]:
        want = training.F.node(node.name).meta["val"]
        assert (node.meta["val"].stride(), node.meta["val"].dtype) == (want.stride(), want.dtype)
    assert plan.schedule
    kinds = [a.kind for a in plan.schedule.row(slot.stage)]
    assert kinds.count(ActionKind.OFFLOAD) == kinds.count(ActionKind.FETCH) == MICROBATCHES
    channel = next(c for c in plan.schedule.channels if c.name == slot.name)
    assert channel.nbytes == slot.nbytes == sum(t.nbytes for t in lower(training.F).offloads)
    assert plan.timeline
    use = plan.timeline.lane_use
    assert use[f"{slot.stage}.d2h"] == pytest.approx(use[f"{slot.stage}.h2d"])
    assert use[f"{slot.stage}.d2h"] > 0


def with_training(plan: Plan, index: int, training: Training) -> Plan:
    """The plan with other training graphs of one stage."""
    stages = list(plan.stages)
    stages[index] = replace(stages[index], training=training)
    return plan.replace(stages=tuple(stages))


def without_offload(plan: Plan) -> Plan:
    """The plan with one offload node taken out of F: its value is saved on the device again."""
    training = hosted(plan).training
    assert training
    module, value = copy.deepcopy(training.F.module), plan.slots[0].values[0]
    (node,) = (n for n in module.graph.nodes if n.name == f"offload_{value}")
    end = module.graph.output_node()
    yielded = end.args[0]
    assert isinstance(yielded, tuple)
    end.args = ((*yielded, node.args[0]),)
    module.graph.erase_node(node)
    outputs = (*training.F.outputs, GraphOutput(value, OutputKind.SAVED, value))
    forward = training.F.replace(module=module, outputs=outputs)
    assert len(lower(forward).offloads) == len(lower(training.F).offloads) - 1
    return with_training(plan, plan.slots[0].stage, replace(training, F=forward))


def test_a_missing_offload_node_is_caught_and_raises_the_peak() -> None:
    plan = limited("insert-offload", 0.75)
    broken = without_offload(plan)
    with pytest.raises(PlanError, match="got 0 times offload") as told:
        verify(broken)
    assert plan.slots[0].name in str(told.value)
    assert plan.schedule
    device = plan.slots[0].stage
    peaks = [plan_timeline(p, plan.schedule).peak_bytes[device] for p in (plan, broken)]
    assert peaks[1] > peaks[0]


def test_a_value_less_that_is_recomputed_raises_the_peak() -> None:
    """Each of the chosen values, taken out of B and saved instead, at the fullest device."""
    plan = limited("insert-recompute", 0.65)
    assert plan.schedule
    before, after = plan_of().stages[0].training, plan.stages[0].training
    assert before
    assert after
    again = {v.name for v in before.saved} - {v.name for v in after.saved}
    peak = plan_timeline(plan, plan.schedule).peak_bytes[0]
    assert again
    for value in sorted(again):
        kept = with_training(plan, 0, recompute_values(before, again - {value}))
        assert plan_timeline(kept, plan.schedule).peak_bytes[0] > peak


def test_a_schedule_that_does_not_copy_a_slot_is_caught() -> None:
    plan = limited("insert-offload", 0.75)
    plain = scheduled(plan_of(), "1f1b", MICROBATCHES)
    with pytest.raises(PlanError, match="slots-are-scheduled"):
        verify(plan.replace(schedule=plain))


@pytest.mark.parametrize(("name", "share"), CHOICES)
def test_plans_are_saved_and_loaded(name: str, share: float, tmp_path: Path) -> None:
    plan = limited(name, share)
    weights = plan.graph.weights
    write_plan(plan, tmp_path)
    loaded = load_plan(tmp_path, check_weights=False)
    assert loaded.slots == plan.slots
    found = LocalPipeline(loaded, batches(CASE, plan.graph), Settings(sgd), weights=weights).run(1)
    assert found == LocalPipeline(plan, batches(CASE, plan.graph), Settings(sgd)).run(1)
    text = "".join(p.read_text() for p in tmp_path.glob("graphs/*/[FB].py"))
    assert ("offload.default" in text and "fetch.default" in text) == (name == "insert-offload")


@pytest.mark.parametrize("options", [{"recompute": True}, {"recompute": False, "host": True}])
@pytest.mark.parametrize(("layers", "share"), [(4, 0.85), (4, 0.7), (4, 0.6), (12, 0.7)])
def test_added_time_is_within_a_point_of_the_bound(
    layers: int, share: float, options: dict[str, bool]
) -> None:
    plan = plan_of(layers)
    schedule = scheduled(plan, "1f1b", MICROBATCHES)
    timeline = plan_timeline(plan, schedule)
    again, host = (options.get(name, False) for name in ("recompute", "host"))
    limit = share * max(timeline.peak_bytes)
    fit = Fit(plan, schedule, limit, make_applier(plan, schedule), again, host)
    solved = fit.solve()
    assert solved is not None
    for found in solved.stages:
        assert isinstance(found, Residency)
        assert found.choice.bound - 1e-9 <= found.choice.added <= found.choice.bound + 0.01


def test_nothing_changes_where_everything_fits() -> None:
    assert InsertRecompute().run(plan_of()) is plan_of()
    limited_plan = InsertOffload(memory_limit=peak_of_plain()).run(plan_of())
    assert (limited_plan.stages, limited_plan.slots) == (plan_of().stages, ())


def test_what_was_fitted_for_one_schedule_is_refused_under_another() -> None:
    made = InsertRecompute(memory_limit=0.65 * peak_of_plain()).run(plan_of())
    under = "schedule{generator=gpipe microbatches=8},simulate"
    with pytest.raises(PassError, match="fitted to a limit for another schedule") as told:
        run_passes(parse_pipeline(under), made)
    assert "generator=gpipe microbatches=8" in str(told.value)


def test_an_order_made_from_costs_stands_in_front_of_the_memory_pass() -> None:
    """Behind it, it would be another one than was fitted: the hint is one that can be followed."""
    order = "schedule{generator=synthesized microbatches=8}"
    plain = run_passes(parse_pipeline(f"{order},simulate"), plan_of()).timeline
    assert plain is not None
    limit = 0.995 * max(plain.peak_bytes)
    with pytest.raises(PassError, match="made from costs") as told:
        InsertRecompute(memory_limit=limit, generator="synthesized").run(plan_of())
    assert order in str(told.value)
    passes = f"{order},insert-recompute{{memory-limit={limit}}},simulate"
    made = run_passes(parse_pipeline(passes), plan_of())
    assert made.timeline is not None
    assert max(made.timeline.peak_bytes) <= limit


def fit_of(name: str) -> Fit:
    order = scheduled(plan_of(), name, MICROBATCHES)
    return Fit(plan_of(), order, None, make_applier(plan_of(), order), recompute=True, host=True)


@pytest.mark.parametrize("kind", [InsertRecompute, InsertOffload])
def test_an_impossible_limit_says_how_far_it_was(kind: type[Any]) -> None:
    static = max(fit_of("1f1b").static.peak_bytes)
    with pytest.raises(PassError, match=r"does not fit device .*, with all that may") as told:
        kind(memory_limit=1.01 * static).run(plan_of())
    assert "bytes short" in str(told.value)
    assert "less memory, but perhaps still too much" in str(told.value)  # nothing is promised


def test_a_limit_below_the_weights_is_refused_before_any_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Fit, "solve", None)
    monkeypatch.setattr(Search, "best", None)
    with pytest.raises(PassError, match="the optimizer's state alone") as told:
        InsertOffload(memory_limit=1e4, recompute=True).run(plan_of())
    assert "insert-offload{optimizer=true}" in str(told.value)


@pytest.mark.parametrize("name", ["1f1b", "gpipe", "zb-h1", "zbv", "dualpipev"])
def test_no_choice_holds_less_than_what_is_static(name: str) -> None:
    """Whatever leaves or is computed again, and where nothing that can stay does."""
    fit, rng = fit_of(name), np.random.default_rng(0)
    static = np.array(fit.static.peak_bytes)
    assert (static > 0).all()
    for share in (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0):
        chosen = []
        for stage in range(STAGES):
            able = fit.list_able(stage)
            kinds = rng.random(len(able)) < share
            again = [a.name for a, k in zip(able, kinds, strict=True) if k and a.seconds < np.inf]
            out = tuple(a.name for a in able if a.leaves and a.name not in again and share)
            chosen.append(Fates(frozenset(again), ((1, out),) if out else ()))
            for_w = fit.foresight.rewrites[stage].of(frozenset(again)).for_w
            assert fit.least_for_w(stage) <= sum(for_w.values())
        assert (static <= np.array(fit.simulate(chosen).peak_bytes)).all()


def test_what_w_waits_for_is_refused_before_any_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """With all that can be computed again, or waits in host memory, no device holds less."""
    fit = fit_of("zb-h1")
    static, weights = max(fit.static.peak_bytes), max(fit_of("1f1b").static.peak_bytes)
    assert static > 1.05 * weights
    monkeypatch.setattr(Fit, "solve", None)
    monkeypatch.setattr(Search, "best", None)
    with pytest.raises(PassError, match="with what W waits for") as told:
        InsertOffload(memory_limit=0.99 * static, recompute=True, generator="zb-h1").run(plan_of())
    assert "schedule 1f1b" in str(told.value) or "more stages" in str(told.value)


def test_a_model_without_loss_and_a_second_offload_are_refused() -> None:
    with pytest.raises(PassError, match="wait in host memory already"):
        InsertOffload(memory_limit=1e4).run(limited("insert-offload", 0.75))


@pytest.mark.parametrize(("name", "kinds"), [("1f1b", "B"), ("zb-h1", "IW")])
def test_recompute_is_priced_in_the_graphs_that_the_schedule_runs(name: str, kinds: str) -> None:
    fit = fit_of(name)
    again = frozenset({"addmm_1", "clone_1", "clone", "getitem_3", "getitem_6", "gelu"})
    work = fit.foresight.works[1]
    expected = working_bytes(recompute_values(work.training, again))
    assert expected["B"] != max(expected["I"], expected["W"])
    assert fit.foresight.rewrites[1].of(again).alive[0] == max(expected[k] for k in kinds)


def test_seconds_of_nodes_sum_up_to_those_of_the_stage() -> None:
    for work, timing in zip(list_work(plan_of()), plan_of().timing, strict=True):
        assert sum(work.forward.values()) == pytest.approx(timing.compute_seconds)
    turns = in_flight(scheduled(plan_of(), "1f1b", MICROBATCHES))
    assert [(t.most, t.alternates) for t in turns] == [(k, True) for k in (4, 3, 2, 1)]


def test_two_microbatches_in_flight_gain_by_slots_that_swap() -> None:
    """With one set on the device at a time, offload helps where two sets would be no gain."""
    plan = limited("insert-offload", 0.5)
    assert plan.timeline
    assert max(plan.timeline.peak_bytes) <= 0.5 * peak_of_plain()
    second_last = [s for s in plan.slots if s.stage == STAGES - 2]
    assert second_last
    assert {s.depth for s in second_last} >= {0}
    pipeline = LocalPipeline(plan, batches(CASE, plan.graph), Settings(sgd))
    plain = LocalPipeline(plan_of(), batches(CASE, plan.graph), Settings(sgd),
                          schedule=scheduled(plan_of(), "1f1b", MICROBATCHES))  # fmt: skip
    assert pipeline.run(1) == plain.run(1)
    got, same = pipeline.state_dict(), plain.state_dict()
    assert all(torch.equal(got[n], same[n]) for n in got)


@pytest.mark.parametrize("name", MODELS)
def test_backwards_in_two_read_what_one_reads(name: str) -> None:
    """F yields what B reads; I and W read nothing else, and what W reads of I is yielded by I."""
    rng = np.random.default_rng(0)
    for work in list_work(planned(name, "1f1b")):
        values = [n for n in list_saved(work.training) if np.isfinite(work.recompute(n))]
        for share in np.linspace(0.2, 1, 5):
            again = [n for n in values if rng.random() < share]
            made = recompute_values(work.training, again)
            read = {k: {i.name for i in made.graphs[k].inputs_of(InputKind.SAVED)} for k in "BIW"}
            yielded = {o.name for o in made.F.outputs_of(OutputKind.SAVED)}
            of_i = {o.name for o in made.I.outputs_of(OutputKind.SAVED)}
            assert read["B"] == read["I"] | (read["W"] - of_i) == yielded


def test_working_bytes_are_those_of_the_rewritten_graphs() -> None:
    """Told from the order of nodes alone, for any values."""
    work = list_work(plan_of())[1]
    training = work.training
    names, rng = list_saved(training), np.random.default_rng(0)
    rewrites = Rewrites(work, {})
    told = WorkingBytes(rewrites, 3)
    for share in np.linspace(0, 1, 8):
        decision = np.where(rng.random(len(names)) < share, RECOMPUTE, KEEP)
        again = {names[v] for v in np.flatnonzero(decision)}
        rewritten = recompute_values(training, again)
        more = rewritten.saved_bytes - sum(v.nbytes for v in training.saved if v.name not in again)
        working = working_bytes(rewritten)
        assert told(decision).alive == max(working.values())
        assert told(decision).nbytes == max(working.values()) + 3 * more
        assert rewrites.of(frozenset(again)).working == working


@pytest.mark.parametrize("name", ["pipedream", "pipemare"])
def test_a_limit_holds_in_rounds_that_are_not_drained(name: str) -> None:
    """Two microbatches fill a pipeline of four stages only where a run goes on."""
    order = f"generator={name} microbatches=2"
    run = f"schedule{{{order}}},simulate"
    plain = run_passes(parse_pipeline(run), plan_of())
    assert plain.timeline
    drained, full = max(plain.timeline.peak_bytes), max(round_of(plain).peak_bytes)
    assert max(row["needed_bytes"] for row in plan_data(plain)["memory"]) == int(full) > drained
    memory = f"insert-offload{{memory-limit={drained} {order}}}"
    fitted = run_passes(parse_pipeline(f"{memory},{run}"), plan_of())
    assert max(round_of(fitted).peak_bytes) <= drained
    between = plain.replace(options={**plain.options, "memory_limit": (drained + full) / 2})
    with pytest.raises(PassError, match="fitted to a limit for another schedule"):
        run_passes(parse_pipeline("simulate"), between)


def test_other_counts_of_microbatches_free_nothing_without_a_flush() -> None:
    order = "generator=pipedream microbatches=8"
    limit = 0.2 * peak_of_plain()
    with pytest.raises(PassError) as caught:
        run_passes(parse_pipeline(f"insert-offload{{memory-limit={limit} {order}}}"), plan_of())
    assert "schedule pipedream with" not in str(caught.value)
