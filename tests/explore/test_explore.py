"""Exploration on a small training graph: never slower than its baselines, memory kept, cached."""

import itertools
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from pipec.cluster.cluster import Cluster, Level, Link, parse_cluster
from pipec.compiler.driver import default_passes, make_plan
from pipec.compiler.pass_manager import parse_pipeline, run_passes
from pipec.errors import PartitionError
from pipec.explore.cache import content_key, recall, remember
from pipec.explore.candidate import Candidate, candidates
from pipec.explore.explore import BASELINES, explore
from pipec.explore.layout import lay_out
from pipec.explore.predict import Predictor
from pipec.explore.workload import Workload, make_workload
from pipec.frontends.trace import Loss, trace
from pipec.graph.ir import Source
from pipec.plan.model import Plan
from tests.toys import mlp
from tests.trained import trained_mlp


def workload(
    devices: str | Cluster, width: int = 512, layers: int = 4, batch: int = 32
) -> Workload:
    graph = trained_mlp(layers, width, batch)
    cluster = parse_cluster(devices) if isinstance(devices, str) else devices
    plan = run_passes(parse_pipeline("simplify,annotate-cost"), Plan(graph, cluster))
    assert plan.costs is not None
    return make_workload(plan.graph, plan.costs, cluster)


@pytest.mark.parametrize("devices", ["4xv100", "3xh100", "2xvcu118,1xvcu129"])
def test_never_slower_than_data_parallel_gpipe_or_1f1b(devices: str) -> None:
    work = workload(devices, layers=3)
    tried = list(candidates(work.cluster, 6 if work.cluster.size == 3 else 4))
    found = explore(work, tried, 6, workers=1)
    assert len([p for p in found.predictions if not p.candidate.split]) == len(tried)
    for name in BASELINES:
        base = found.baseline(name)
        assert base is None or found.best.seconds <= base.seconds
    assert found.baseline("gpipe") is not None
    whys = [found.why(p) for p in found.predictions]
    assert whys[0] == "chosen"
    assert all(whys)
    assert not any(re.search(r"bubble (\d+%) against \1", w) for w in whys)


def test_parallel_and_serial_agree() -> None:
    work = workload("2xv100", layers=3)
    tried = list(candidates(work.cluster, 16, ("gpipe", "interleaved", "zbv")))
    assert explore(work, tried, 16, workers=2) == explore(work, tried, 16, workers=1)


def test_a_busy_machine_predicts_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits count work: a clock on which every look takes a day changes nothing."""
    work, candidate = workload("3xv100", layers=6), Candidate(3, 1, "1f1b", 32, 6)
    calm = Predictor(work).predict(candidate)
    days = itertools.count(step=86_400)
    monkeypatch.setattr("time.perf_counter", lambda: float(next(days)))
    assert Predictor(work).predict(candidate) == calm


def test_one_stage_is_compute_plus_all_reduce() -> None:
    work = workload("2xv100")
    found = Predictor(work).predict(Candidate(1, 2, "gpipe", 32, 1))
    rows = work.costs.of("v100"), work.costs.backward_of("v100")
    compute = sum(sum(row.values()) for row in rows)
    weights = 4 * (512 * 512 + 512) * 4
    reduce = work.cluster.link(0, 1).seconds(weights)
    assert found.seconds == pytest.approx(compute + reduce)


def test_memory_decides_and_is_told() -> None:
    work = workload("2xv100")
    small = Cluster(tuple(d for d in work.cluster.devices))
    tight = replace(work, cluster=shrunk(small, 14e6))
    tried = list(candidates(tight.cluster, 16, ("gpipe", "1f1b")))
    found = explore(tight, tried, 16, workers=1)
    best = found.best
    assert all(p <= m for p, m in zip(best.peak_bytes, best.memory_bytes, strict=True))
    assert any("does not fit: device 0 needs" in p.problem for p in found.predictions)
    none = replace(work, cluster=shrunk(small, 1e6))
    lost = explore(none, tried, 16, workers=1)
    with pytest.raises(PartitionError, match="no candidate fits"):
        _ = lost.best


def shrunk(cluster: Cluster, memory: float) -> Cluster:
    import dataclasses

    return Cluster(tuple(dataclasses.replace(d, memory_bytes=memory) for d in cluster.devices))


def test_saved_values_are_fitted_where_memory_binds() -> None:
    """Between what fits as it is and recomputing all: the optimiser's choice, and it is told."""
    work = workload("2xv100", layers=8, batch=4096)
    tried = [Candidate(2, 1, "1f1b", 4096, 8, again) for again in (False, True)]
    plain, again = (Predictor(work).predict(c) for c in tried)
    room = (max(plain.peak_bytes) + max(again.peak_bytes)) / 2
    tight = replace(work, cluster=shrunk(work.cluster, room))
    found = explore(tight, tried, 8 * 4096, workers=1)
    best = found.best
    assert best.candidate.fitted
    assert best.recomputed + best.offloaded > 0
    assert plain.seconds <= best.seconds < again.seconds
    assert max(best.peak_bytes) <= room * (1 + 1e-9)
    assert "saved values fitted" in str(best.candidate)
    told = next(p for p in found.predictions if p.candidate == tried[1])
    assert "slower" in found.why(told)


@settings(max_examples=4, deadline=None)
@given(
    st.sampled_from(["2xv100", "3xv100", "1xv100,1xh100"]),
    st.sampled_from([64, 512]),
    st.sampled_from([1e8, 1e10, 1e12]),
    st.sampled_from([4, 6]),
)
def test_never_slower_than_any_baseline(devices: str, width: int, rate: float, batch: int) -> None:
    """On the same inputs, each baseline predicted by itself."""
    kinds = parse_cluster(devices).devices
    pairs = [(a, b) for a in range(len(kinds)) for b in range(a + 1, len(kinds))]
    cluster = Cluster(kinds, {pair: Link(rate, 1e-6) for pair in pairs})
    work = workload(cluster, width=width, layers=4, batch=batch)
    names = ("gpipe", "1f1b", "zb-h1", "interleaved{chunks=2}")
    found = explore(work, list(candidates(cluster, batch, names)), batch, workers=1)
    alone = Predictor(work)
    for c in candidates(cluster, batch, ("gpipe", "1f1b")):
        baseline = alone.predict(c)
        assert not baseline.possible or found.best.seconds <= baseline.seconds


def test_recompute_trades_time_for_memory() -> None:
    predictor = Predictor(workload("2xv100"))
    plain = predictor.predict(Candidate(2, 1, "gpipe", 16, 4))
    again = predictor.predict(Candidate(2, 1, "gpipe", 16, 4, recompute=True))
    assert again.seconds > plain.seconds
    assert max(again.peak_bytes) < max(plain.peak_bytes)


def lopsided(ratio: int = 12) -> Workload:
    """Three layers, the middle one with most of the work, on two devices with a fast link."""
    wide = 256 * ratio
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, wide), nn.Linear(wide, 8))
    target = torch.zeros(4096, 8)
    loss = Loss(nn.functional.mse_loss, target)
    inputs, source = (torch.zeros(4096, 256),), Source("memory", "lopsided")
    graph = trace(model, inputs, loss=loss, source=source)
    cluster = Cluster(parse_cluster("2xv100").devices, {(0, 1): Link(1e12, 0.0)})
    plan = run_passes(parse_pipeline("simplify,annotate-cost"), Plan(graph, cluster))
    assert plan.costs is not None
    return make_workload(plan.graph, plan.costs, cluster)


def test_a_boundary_layer_is_split_where_that_is_faster() -> None:
    work, base = lopsided(), Candidate(2, 1, "1f1b", 4096, 8)
    found = explore(work, [base], 8 * 4096, workers=1)
    assert found.best.candidate.split == "linear_1"
    assert found.best.seconds < Predictor(work).predict(base).seconds
    slower = next(p for p in found.predictions if p.candidate == base)
    assert "slower" in found.why(slower)
    assert "linear_1 split at" in str(found.best.candidate)


def test_a_split_that_does_not_pay_is_told() -> None:
    work, base = workload("2xv100", layers=5), Candidate(2, 1, "1f1b", 8, 2)
    found = explore(work, [base], 16, workers=1)
    assert found.best.candidate == base
    splits = [p for p in found.predictions if p.candidate.split]
    assert splits
    assert all("costs more than it balances" in found.why(p) for p in splits)


def test_a_shared_weight_costs_an_exchange() -> None:
    work = lopsided()
    halves = work.split("linear_1", 0.5)
    assert [size for size, _ in halves.shared_weights] == [256 * 256 * 12 * 4, 256 * 12 * 4]
    assert work.shared_weights == []
    found = Predictor(halves).predict(Candidate(2, 1, "1f1b", 4096, 8))
    assert found.reduce_seconds == pytest.approx(sum(s for s, _ in halves.shared_weights) / 1e12)


def test_layout_follows_levels() -> None:
    fast, slow = Link(1e11, 0.0), Link(1e9, 0.0)
    cluster = Cluster(parse_cluster("4xv100").devices, {}, (Level(2, fast), Level(2, slow)))
    stages = lay_out(Candidate(2, 2, "1f1b", 8, 4), cluster)
    replicas = lay_out(Candidate(2, 2, "1f1b", 8, 4, adjacent="replicas"), cluster)
    assert (stages.links[0], stages.rings[0]) == (fast, slow)
    assert (replicas.links[0], replicas.rings[0]) == (slow, fast)


def test_cache_returns_what_was_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    work = workload("2xv100", layers=2)
    tried = list(candidates(work.cluster, 16, ("gpipe",)))
    key = content_key(work, tried, 16)
    assert recall(key) is None
    found = explore(work, tried, 16, workers=1)
    remember(key, found)
    assert recall(key) == found
    assert content_key(work, tried, 64) != key


def forward_workload(devices: str) -> Workload:
    cluster = parse_cluster(devices)
    plan = run_passes(parse_pipeline("simplify,annotate-cost"), Plan(mlp(), cluster))
    assert plan.costs is not None
    return make_workload(plan.graph, plan.costs, cluster)


def test_a_model_without_loss_is_run_forward() -> None:
    """No backward, no gradients: compute alone on one device, weights and live values in memory."""
    work = forward_workload("2xv100")
    batch = 8 * work.traced_batch
    tried = list(candidates(work.cluster, batch, trains=work.trains))
    assert {(c.schedule, c.recompute) for c in tried} == {("inference", False)}
    found = explore(work, tried, batch, workers=1)
    alone = Predictor(work).predict(Candidate(1, 1, "inference", work.traced_batch, 8))
    assert alone.seconds == pytest.approx(8 * sum(work.costs.of("v100").values()))
    passes = default_passes(stages=1, schedule="inference", microbatches=8)
    plan = make_plan(work.graph, parse_cluster("1xv100"), passes=passes)
    assert plan.timeline is not None
    assert alone.peak_bytes == plan.timeline.peak_bytes
    assert alone.peak_bytes[0] > sum(work.problem(work.traced_batch, recompute=False).weight_bytes)
    assert alone.reduce_seconds == 0
    assert found.best.seconds <= alone.seconds
    two = next(p for p in found.predictions if p.candidate.replicas == 2)
    assert two.reduce_seconds == 0


def test_an_inference_pipeline_is_as_fast_as_its_slowest_stage() -> None:
    work = forward_workload("2xv100")
    many = Predictor(work).predict(Candidate(2, 1, "inference", work.traced_batch, 64))
    cut = Predictor(work).cut(many.candidate)
    assert cut
    slowest = max(cut.loads)
    assert 64 * max(np.bincount(cut.stage, work.forward(work.traced_batch)[0])) <= many.seconds
    assert many.seconds <= 66 * slowest


@pytest.mark.parametrize("listed", ["1xcpu,1xv100", "2xcpu,1xh100"])
def test_the_order_in_which_devices_are_listed_means_nothing(listed: str) -> None:
    """The slow device may stand first, last, or not be used at all."""
    found = []
    known = {d.kind: d for d in parse_cluster(listed).devices}
    names = [d.kind for d in parse_cluster(listed).devices]
    for kinds in sorted(set(itertools.permutations(names))):
        work = workload(Cluster(tuple(known[k] for k in kinds)), layers=2, batch=4)
        tried = list(candidates(work.cluster, 4, ("1f1b",)))
        found.append(explore(work, tried, 4, workers=1).best.seconds)
    assert len(found) > 1
    assert found == pytest.approx([found[0]] * len(found), rel=1e-9)


@pytest.mark.parametrize("kind", ["cpu", "v100"])
def test_one_device_more_is_never_slower(kind: str) -> None:
    """Of a batch that no longer divides evenly, and of a device that is no help."""
    times = []
    for devices in ("2xv100", "2xv100,1x" + kind):
        work = workload(devices, layers=2, batch=4)
        tried = list(candidates(work.cluster, 4, ("1f1b",)))
        times.append(explore(work, tried, 4, workers=1).best.seconds)
    assert times[1] <= times[0] * (1 + 1e-9)


def test_what_fits_is_not_said_to_fit_nowhere() -> None:
    """Memory between the least that any cut needs and what a balanced cut needs."""
    work = workload("2xv100", layers=8, batch=512)
    candidate = Candidate(2, 1, "1f1b", 512, 8)
    peaks = Predictor(work).predict(candidate).peak_bytes
    tight = replace(work, cluster=shrunk(work.cluster, 0.95 * max(peaks)))
    found = Predictor(tight).predict(candidate)
    assert found.possible
    assert max(found.peak_bytes) <= 0.95 * max(peaks)
