"""Exploring to the end: the plan is what was chosen, and no baseline's plan is faster."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipec.cluster.cluster import Cluster, Link, parse_cluster
from pipec.compiler import refine
from pipec.compiler.driver import emit
from pipec.errors import PartitionError, PipecError
from pipec.explore.candidate import Candidate, list_candidates
from pipec.explore.explore import BASELINES, explore
from pipec.explore.make import Maker
from pipec.explore.predict import Predictor
from pipec.explore.rebatch import Rebatched
from pipec.explore.search import Search
from pipec.frontends.base import LoadOptions
from pipec.frontends.load import load
from pipec.graph.ir import InputKind
from pipec.graph.serialize import graph_to_json
from pipec.plan.model import Plan
from pipec.plan.store import load_plan
from pipec.schedule.action import ActionKind
from tests.explore.test_explore import maker as maker_of
from tests.explore.test_explore import shrunk, ways
from tests.toys import mlp
from tests.trained import trained_mlp

FACTORY = """
import torch
from torch import nn

def net():
    torch.manual_seed(0)
    layers = [m for _ in range(4) for m in (nn.Linear(256, 256), nn.ReLU())]
    return nn.Sequential(*layers), torch.randn(4, 256), (nn.MSELoss(), torch.zeros(4, 256))
"""

NAMES = ("gpipe", "1f1b", "zb-h1")


@pytest.fixture
def spec(tmp_path: Path) -> str:
    (tmp_path / "net.py").write_text(FACTORY)
    return f"{tmp_path / 'net.py'}:net"


def linked(devices: str, link: Link, memory: float | None = None) -> Cluster:
    kinds = parse_cluster(devices).devices
    if memory is not None:
        kinds = tuple(dataclasses.replace(d, memory_bytes=memory) for d in kinds)
    pairs = [(a, b) for a in range(len(kinds)) for b in range(a + 1, len(kinds))]
    return Cluster(kinds, dict.fromkeys(pairs, link))


def seconds(plan: Plan) -> float:
    assert plan.timeline
    return plan.timeline.seconds


def fits(plan: Plan) -> bool:
    assert plan.timeline
    peak = plan.timeline.peak_bytes
    return all(p <= d.memory_bytes for p, d in zip(peak, plan.cluster.devices, strict=False))


@settings(max_examples=4, deadline=None)
@given(
    st.sampled_from(["2xv100", "1xv100,1xh100"]),
    st.sampled_from([Link(1e9, 1e-5), Link(1e12, 0.0)]),
    st.sampled_from([None, 8e6, 5e6]),
)
def test_no_baseline_makes_a_faster_plan(devices: str, link: Link, memory: float | None) -> None:
    """Each baseline made into a plan by itself, at the microbatch the model in memory has."""
    cluster = linked(devices, link, memory)
    graph = trained_mlp(4, 256, 4)
    search = Search(Rebatched(graph), cluster, batch=16, schedules=NAMES, cached=False)
    try:
        found, plan = search.run()
    except PartitionError:
        return
    assert fits(plan)
    assert seconds(plan) == pytest.approx(found.best.seconds)
    maker = Maker(Rebatched(graph), cluster)
    alone = [
        Candidate(1, 1, "1f1b", 4, 4),
        Candidate(1, 2, "1f1b", 4, 2),
        Candidate(2, 1, "gpipe", 4, 4),
        Candidate(2, 1, "1f1b", 4, 4),
    ]
    for candidate in alone:
        baseline = maker.make(candidate)
        assert not fits(baseline) or seconds(plan) <= seconds(baseline) * (1 + 1e-9)


def test_the_plan_is_what_was_chosen(spec: str, tmp_path: Path) -> None:
    """Replicas, microbatches and their size, recompute and offload; and it is kept and found."""
    options = LoadOptions(training=True)
    loaded = load(spec, options)
    cluster = linked("4xv100", Link(1e9, 1e-6), 4.4e6)
    model = Rebatched(loaded.graph, loaded.resized)
    search = Search(model, cluster, batch=256, schedules=NAMES, cached=False)
    found, plan = search.run()
    best = found.best.candidate
    assert plan.schedule
    assert best.microbatch != 4
    inputs = [plan.graph.nodes[i.node].meta["val"] for i in plan.graph.inputs_of(InputKind.INPUT)]
    assert {len(value) for value in inputs} == {best.microbatch}
    assert len(inputs) == 2
    assert plan.schedule.microbatches == best.microbatches * best.replicas
    assert len(plan.stages) == best.stages
    assert {len(d) for d in plan.schedule.placement.forward} == {best.replicas}
    assert found.best.planned
    assert fits(plan)
    assert plan.explored == found.summarize()
    assert plan.explored[0].why == "chosen"
    emit(plan, tmp_path / "out")
    assert load_plan(tmp_path / "out").explored == plan.explored


def test_a_module_at_another_size_is_what_its_file_gives_there(spec: str) -> None:
    """Of the weights that it has, which are neither made nor read again."""
    options = LoadOptions(training=True)
    loaded = load(spec, options)
    found = Rebatched(loaded.graph, loaded.resized).trace_at(6)
    shapes = {i.name: (6, 256) for i in found.inputs_of(InputKind.INPUT)}
    read = load(spec, dataclasses.replace(options, shapes=shapes)).graph
    assert graph_to_json(found) == graph_to_json(read)
    assert found.source == read.source
    for name, weight in loaded.graph.weights.items():
        assert found.weights[name].data_ptr() == weight.data_ptr()


def test_memory_that_binds_is_met_in_the_plan(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refine, "WORK", 5_000)
    options = LoadOptions(training=True)
    loaded = load(spec, options)
    model = Rebatched(loaded.graph, loaded.resized)
    roomy = Search(
        model,
        linked("2xv100", Link(1e12, 0.0)),
        batch=16384,
        schedules=("gpipe",),
        stages=2,
        microbatches=8,
        cached=False,
    )
    loose = roomy.run()[1]
    assert loose.timeline
    peak = max(loose.timeline.peak_bytes)
    tight = dataclasses.replace(roomy, cluster=linked("2xv100", Link(1e12, 0.0), 0.7 * peak))
    found, plan = tight.run()
    assert fits(plan)
    assert found.best.candidate.fitted or found.best.candidate.recompute
    assert seconds(plan) > seconds(loose)
    assert plan.schedule
    kinds = {ActionKind(k) for k in plan.schedule.kind.tolist()}
    recomputed = any(
        set(s.training.B.nodes) & {n.name for n in s.training.F.calls}
        for s in plan.stages
        if s.training
    )
    assert ActionKind.OFFLOAD in kinds or recomputed


def test_explored_again_it_is_the_same(
    spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    options = LoadOptions(training=True)
    loaded = load(spec, options)
    search = Search(
        Rebatched(loaded.graph, loaded.resized),
        parse_cluster("2xv100"),
        batch=16,
        schedules=("1f1b",),
    )
    first, plan = search.run()
    again, same = search.run()
    assert again == first
    assert seconds(same) == seconds(plan)
    assert same.explored == plan.explored


def test_what_cannot_be_made_is_told_and_the_next_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    maker = maker_of("2xv100", 256, 4, 4)
    tried = ways(maker, 16, "gpipe", "1f1b")
    refused = explore(maker, tried, 16)[0].best.candidate
    make = Predictor.make

    def picky(self: Predictor, candidate: Candidate) -> Plan:
        if candidate == refused:
            raise PipecError("the backend has no such thing")
        return make(self, candidate)

    monkeypatch.setattr(Predictor, "make", picky)
    found, plan = explore(maker, tried, 16)
    assert found.best.candidate != refused
    told = next(p for p in found.predictions if p.candidate == refused)
    assert told.problem == "no plan: the backend has no such thing"
    assert seconds(plan) == found.best.seconds
    for name in BASELINES:
        base = found.baseline(name)
        assert base is None or base.seconds >= seconds(plan)


def test_a_model_that_cannot_be_traced_at_a_size_keeps_to_others() -> None:
    maker = maker_of("2xv100", 256, 4, 4)
    tried = list(list_candidates(maker.cluster, 16, ("1f1b",)))
    found, plan = explore(maker, tried, 16)
    assert found.best.candidate.microbatch == 4
    others = [p for p in found.predictions if p.candidate.microbatch != 4]
    assert all("cannot be traced at" in p.problem for p in others)
    assert plan.explored


def test_nothing_as_asked_for_is_told() -> None:
    maker = maker_of("2xv100", 64, 2, 4)
    search = Search(maker.model, maker.cluster, batch=16, stages=7, cached=False)
    with pytest.raises(PartitionError, match="no candidate is as asked for"):
        search.run()
    with pytest.raises(PartitionError, match="a step needs samples"):
        dataclasses.replace(search, batch=0).run()


@pytest.mark.parametrize(
    ("asked", "refused"),
    [
        ({"schedules": ("gpipe",), "stages": 1}, "no candidate has this schedule.*gpipe, stages=1"),
        ({"schedules": ("1f1b", "zbv"), "stages": 2}, "no candidate has this schedule.*: +zbv,"),
        ({"asynchronous": True, "stages": 4}, "no candidate has this schedule.*--asynchronous"),
        ({"schedules": ("1f1b{replicas=2}",)}, "chooses replicas.*1f1b{replicas=2}"),
        ({"schedules": ("pipedream{replicas=auto}",)}, "chooses replicas.*without them"),
    ],
)
def test_a_schedule_that_would_not_be_tried_is_refused(asked: dict[str, Any], refused: str) -> None:
    """It would be ignored; replicas of a schedule would make it faster than what bounds it."""
    maker = maker_of("2xv100", 64, 2, 4)
    search = Search(maker.model, maker.cluster, batch=16, cached=False, **asked)
    with pytest.raises(PartitionError, match=f"(?s){refused}"):
        search.run()


def test_a_number_of_microbatches_that_is_fixed_is_tried_however_large() -> None:
    """Eight per stage bound only what exploration itself chooses."""
    maker = maker_of("2xv100", 64, 2, 4)
    search = Search(maker.model, maker.cluster, cached=False, schedules=("1f1b",))
    found, _ = dataclasses.replace(search, microbatches=64).run()
    assert {p.candidate.microbatches * p.candidate.replicas for p in found.predictions} == {64}
    assert {p.candidate.depth for p in found.predictions} == {1, 2}
    alone = dataclasses.replace(search, model=dataclasses.replace(maker.model, resized=None))
    kept, _ = dataclasses.replace(alone, batch=34 * maker.traced_batch).run()
    assert {p.candidate.microbatch for p in kept.predictions} == {maker.traced_batch}
    with pytest.raises(PartitionError, match="a model in memory keeps its microbatch"):
        dataclasses.replace(alone, batch=34 * maker.traced_batch + 1).run()


def test_nothing_that_can_be_made_is_told() -> None:
    maker = maker_of("2xv100", 64, 2, 4)
    with pytest.raises(PartitionError, match="no candidate fits"):
        explore(maker, [Candidate(1, 1, "1f1b", 3, 1)], 3)


def test_memory_that_nothing_fits_is_told() -> None:
    maker = maker_of("2xv100", 256, 4, 4)
    search = Search(maker.model, shrunk(maker.cluster, 1e5), batch=16, cached=False)
    with pytest.raises(PartitionError, match="no candidate fits"):
        search.run()


def test_a_model_without_loss_is_planned_for_inference(tmp_path: Path) -> None:
    graph = mlp()
    search = Search(Rebatched(graph), parse_cluster("2xv100"), cached=False)
    found, plan = search.run()
    assert plan.schedule
    assert plan.schedule.name == "inference"
    assert plan.timeline is not None
    assert seconds(plan) == found.best.seconds
    assert plan.timeline.peak_bytes == found.best.peak_bytes
    assert {p.candidate.schedule for p in found.predictions} == {"inference"}
    emit(plan, tmp_path / "out")
    assert load_plan(tmp_path / "out").explored == found.summarize()
    with pytest.raises(PartitionError, match="has one schedule"):
        dataclasses.replace(search, schedules=("gpipe",)).run()
