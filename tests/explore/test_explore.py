"""Exploration: figures are those of plans, bounds are bounds, memory is kept."""

import itertools
import random
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
from pipec.compiler import refine
from pipec.compiler.endless import round_of
from pipec.compiler.facts import plan_facts
from pipec.errors import PartitionError, PipecError, PlanError
from pipec.explore.candidate import (
    CHUNKS,
    Candidate,
    ease_memory,
    list_candidates,
    list_device_orders,
)
from pipec.explore.explore import BASELINES, Exploration, explore
from pipec.explore.make import Maker
from pipec.explore.predict import Prediction, Predictor
from pipec.explore.rebatch import Rebatched
from pipec.explore.search import Search, cache_directory, content_key, recall, remember
from pipec.frontends.trace import Loss, trace
from pipec.graph.ir import Source
from pipec.schedule.action import ActionKind
from pipec.schedule.registry import ASYNCHRONOUS, SYNCHRONOUS, plain_name
from tests.sampling import ALL, some
from tests.toys import mlp
from tests.trained import trained_mlp


def maker(devices: str | Cluster, width: int = 512, layers: int = 4, batch: int = 32) -> Maker:
    cluster = parse_cluster(devices) if isinstance(devices, str) else devices
    return Maker(Rebatched(trained_mlp(layers, width, batch)), cluster)


def ways(made: Maker, batch: int, *schedules: str) -> list[Candidate]:
    """Candidates at the one microbatch that a model in memory has."""
    every = list_candidates(made.cluster, batch, schedules or None, trains=made.trains)
    return [c for c in every if c.microbatch == made.traced_batch]


def explored(made: Maker, batch: int, *schedules: str) -> Exploration:
    return explore(made, ways(made, batch, *schedules), batch)[0]


def shrunk(cluster: Cluster, memory: float) -> Cluster:
    return replace(cluster, devices=tuple(replace(d, memory_bytes=memory) for d in cluster.devices))


@pytest.mark.parametrize(
    ("devices", "names"),
    [("3xv100", ()), ("1xv100,2xh100", ()), ("2xvcu118", ()), ("4xv100", ASYNCHRONOUS)],
)
def test_figures_are_those_of_the_plans(devices: str, names: tuple[str, ...]) -> None:
    """Random candidates: the timeline of the plan, and a bound below it."""
    made = maker(devices, layers=3, batch=8)
    draw = random.Random(0)
    every = ways(made, 48, *names)
    tried = draw.sample(every, min(50 if ALL else 4, len(every)))
    tried += [c for base in tried[:1] for c in ease_memory(base)]
    predictor, compared = Predictor(made), 0
    for c in tried:
        found = predictor.predict(c, predictor.bound(c))
        try:
            timeline = made.make(c).timeline
        except PipecError:
            assert not found.possible
            continue
        assert timeline is not None
        assert found.possible
        if c.asynchronous:
            assert found.seconds <= timeline.seconds  # nothing is waited for at a round's end
        else:
            assert found.seconds == pytest.approx(timeline.seconds, rel=1e-9)
            assert found.bubble == pytest.approx(timeline.bubble, rel=1e-9, abs=1e-12)
        if not c.asynchronous:
            assert found.peak_bytes == pytest.approx(timeline.peak_bytes, rel=1e-9)
        assert found.bound <= found.seconds
        compared += 1
    assert compared > 2


class Crossing(nn.Module):
    """Values that several later layers read, and that the backward keeps under another name."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = []
        for layer in self.layers:
            found.append(layer(x))
            x = nn.functional.gelu(found[-1])
        last: torch.Tensor = found[0] * found[3] + found[1].t().t() + x
        return last


@pytest.mark.parametrize("schedule", ["interleaved", "zbv", "dualpipev"])
def test_a_value_that_its_sender_keeps_is_there_once(schedule: str) -> None:
    """Stages of one device hand values over: what is saved anyway takes no second memory."""
    batch = 4
    graph = trace(
        Crossing(),
        (torch.zeros(batch, 64),),
        loss=Loss(nn.functional.mse_loss, torch.zeros(batch, 64)),
        source=Source("memory", "crossing"),
    )
    made = Maker(Rebatched(graph), parse_cluster("2xv100"))
    every = ways(made, 8 * batch, schedule)
    candidates = [c for c in every if plain_name(c.schedule) == schedule]
    assert candidates
    for c in candidates:
        plan = made.make(c)
        assert plan.timeline is not None
        assert plan_facts(plan).saved_too
        found = Predictor(made).predict(c)
        assert found.peak_bytes == pytest.approx(plan.timeline.peak_bytes, rel=1e-9)


def test_asynchronous_ones_are_asked_for() -> None:
    """All four, in depths that have devices for them; every one becomes the plan that it says."""
    made = maker("4xv100", layers=4, batch=8)
    every = list(list_candidates(made.cluster, 16, asynchronous=True))
    more = [c for c in every if c.schedule in ASYNCHRONOUS]
    assert {c.schedule for c in every} == {"1f1b", *SYNCHRONOUS, *ASYNCHRONOUS}
    assert {c.schedule for c in list_candidates(made.cluster, 16)} == {"1f1b", *SYNCHRONOUS}
    assert {c.depth for c in more if c.schedule == "pipefb"} == {2, 4}
    assert {(c.depth, c.replicas) for c in more if c.schedule == "pipedream"} == {
        (depth, 1) for depth in (2, 3, 4)
    }
    seen = set()
    for c in more:
        if c.microbatch == made.traced_batch and (c.schedule, c.depth) not in seen:
            seen.add((c.schedule, c.depth))
            plan = made.make(c)
            assert plan.schedule is not None
            assert plain_name(plan.schedule.name) == c.schedule
            assert (len(plan.stages), plan.schedule.devices) == (c.stages, c.depth)
    assert len(seen) == 11
    search = Search(made.model, made.cluster, batch=16, asynchronous=True, cached=False)
    found, plan = search.run()
    assert plan.schedule is not None
    assert {p.candidate.schedule for p in found.predictions} >= set(ASYNCHRONOUS)
    assert found.best.seconds <= explored(made, 16).best.seconds


@pytest.mark.parametrize("name", ["pipedream", "pipefb"])
def test_a_round_that_is_not_drained_is_paced_by_the_slowest_device(name: str) -> None:
    """PipeDream, section 3.3: in the steady state no device waits; PipeFB halves what one does."""
    kinds = parse_cluster("2xv100" if name == "pipedream" else "4xv100").devices
    links = {p: Link(1e30, 0.0) for p in itertools.combinations(range(len(kinds)), 2)}
    made = maker(Cluster(kinds, links), layers=5)
    plan = made.make(Candidate(len(kinds), 1, name, 32, 8))
    assert plan.timeline is not None
    compute = plan.timeline.times.compute
    forward, backward = np.array(compute[ActionKind.F]), np.array(compute[ActionKind.B])
    steps = np.array(plan.timeline.times.step)
    pace = (
        forward + backward + steps if name == "pipedream" else np.maximum(forward, backward + steps)
    )
    found = round_of(plan)
    assert found.seconds == pytest.approx(8 * pace.max(), rel=1e-9)
    assert found.seconds < plan.timeline.seconds
    assert found.bubble == pytest.approx(
        1 - (forward + backward + steps).sum() / len(kinds) / pace.max()
    )


@settings(max_examples=4, deadline=None)
@given(
    st.sampled_from(["2xv100", "3xv100", "1xv100,1xh100"]),
    st.sampled_from([64, 512]),
    st.sampled_from([1e8, 1e12]),
    st.randoms(use_true_random=False),
)
def test_a_bound_is_a_bound(devices: str, width: int, rate: float, draw: random.Random) -> None:
    kinds = parse_cluster(devices).devices
    pairs = itertools.combinations(range(len(kinds)), 2)
    made = maker(Cluster(kinds, {p: Link(rate, 1e-6) for p in pairs}), width, batch=4)
    predictor = Predictor(made)
    every = ways(made, 24)
    for c in draw.sample(every, min(5, len(every))):
        found, bound = predictor.predict(c), predictor.bound(c)
        assert bound > 0
        assert bound <= found.seconds


@pytest.mark.parametrize("devices", ["4xv100", "2xvcu118,1xvcu129"])
def test_nothing_that_was_not_timed_is_faster(devices: str) -> None:
    made = maker(devices, layers=3, batch=2)
    found = explored(made, 12)
    predictor = Predictor(made)
    for p in found.predictions:
        if "not timed" in p.problem and not p.candidate.eased:
            assert predictor.predict(p.candidate).seconds >= found.best.seconds * (1 - 1e-9)
    for name in BASELINES:
        base = found.baseline(name)
        assert base is None or found.best.seconds <= base.seconds
    assert found.baseline("gpipe") is not None
    whys = [found.why(p) for p in found.predictions]
    assert whys[0] == "chosen"
    assert all(whys)
    assert not any(re.search(r"bubble (\d+%) against \1", w) for w in whys)


def test_one_stage_is_compute_plus_all_reduce() -> None:
    made = maker("2xv100")
    found = Predictor(made).predict(Candidate(1, 2, "gpipe", 32, 1))
    costs = made.cost_model(32).costs
    assert costs is not None
    rows = costs.of("v100"), costs.backward_of("v100")
    compute = sum(sum(row.values()) for row in rows)
    weights = 4 * (512 * 512 + 512) * 4
    reduce = made.cluster.link(0, 1).seconds(weights)
    assert found.reduce_seconds == pytest.approx(reduce)
    rate = made.cluster.devices[0].memory_bandwidth * made.cluster.devices[0].memory_efficiency
    step = 7 * (weights / 2) / rate  # Adam, each replica half of the weights
    norm = made.cluster.link(0, 1).seconds(8 * 8)  # of eight weights, in float64
    assert found.seconds == pytest.approx(compute + reduce + norm + step)


def test_memory_decides_and_is_told() -> None:
    made = maker("2xv100", batch=4)
    room = 11e6  # two replicas that share the optimizer's state hold 12.7 MB each
    found = explored(replace(made, cluster=shrunk(made.cluster, room)), 16, "gpipe", "1f1b")
    assert max(found.best.peak_bytes) <= room
    assert any("no cut into 1 stages fits" in p.problem for p in found.predictions)
    with pytest.raises(PartitionError, match="no candidate fits"):
        explored(replace(made, cluster=shrunk(made.cluster, 1e6)), 16, "gpipe", "1f1b")


def test_saved_values_are_fitted_where_memory_binds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between what fits as it is and recomputing all: one of the two, or the optimiser's choice."""
    monkeypatch.setattr(refine, "WORK", 5_000)
    made = maker("2xv100", layers=8, batch=4096)
    plain = Candidate(2, 1, "1f1b", 4096, 8)
    again = replace(plain, recompute=True)
    loose, least = (Predictor(made).predict(c) for c in (plain, again))
    assert least.seconds > loose.seconds
    assert max(least.peak_bytes) < max(loose.peak_bytes)
    room = max(least.peak_bytes) + (max(loose.peak_bytes) - max(least.peak_bytes)) / 4
    found = explore(replace(made, cluster=shrunk(made.cluster, room)), [plain], 8 * 4096)[0]
    best, fitted = found.best, replace(plain, fitted=True)
    assert best.candidate.eased
    assert loose.seconds <= best.seconds
    assert max(best.peak_bytes) <= room * (1 + 1e-9)
    alone = next(p for p in found.predictions if p.candidate == fitted)
    assert alone.possible
    assert max(alone.peak_bytes) <= room * (1 + 1e-9)
    assert best.seconds <= alone.seconds
    assert "saved values fitted" in str(fitted)


def lopsided() -> Maker:
    """Three layers, the middle one with most of the work, on two devices with a fast link."""
    wide = 256 * 12
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, wide), nn.Linear(wide, 8))
    loss = Loss(nn.functional.mse_loss, torch.zeros(4096, 8))
    inputs, source = (torch.zeros(4096, 256),), Source("memory", "lopsided")
    graph = trace(model, inputs, loss=loss, source=source)
    cluster = Cluster(parse_cluster("2xv100").devices, {(0, 1): Link(1e12, 0.0)})
    return Maker(Rebatched(graph), cluster)


def test_a_boundary_layer_is_split_where_that_is_faster() -> None:
    made, base = lopsided(), Candidate(2, 1, "1f1b", 4096, 8)
    found, plan = explore(made, [base], 8 * 4096)
    assert found.best.candidate.split == "linear_1"
    assert found.best.seconds < Predictor(made).predict(base).seconds
    assert plan.timeline is not None
    assert found.best.seconds == plan.timeline.seconds
    slower = next(p for p in found.predictions if p.candidate == base)
    assert "slower" in found.why(slower)
    assert "linear_1 split at" in str(found.best.candidate)


def test_a_split_that_does_not_pay_is_told() -> None:
    made, base = maker("2xv100", layers=5, batch=8), Candidate(2, 1, "1f1b", 8, 2)
    found = explore(made, [base], 16)[0]
    assert found.best.candidate == base
    splits = [p for p in found.predictions if p.candidate.split]
    assert splits
    assert all("costs more than it balances" in found.why(p) for p in splits)


def test_what_is_adjacent_follows_levels() -> None:
    """Replicas side by side are summed up over the fast links, stages side by side are not."""
    fast, slow = Link(1e11, 0.0), Link(1e9, 0.0)
    cluster = Cluster(parse_cluster("4xv100").devices, {}, (Level(2, fast), Level(2, slow)))
    predictor, base = Predictor(maker(cluster, batch=8)), Candidate(2, 2, "1f1b", 8, 4)
    stages = predictor.predict(base).reduce_seconds
    replicas = predictor.predict(replace(base, adjacent="replicas")).reduce_seconds
    assert 0 < replicas < stages / 50


def test_cache_returns_what_was_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = maker("2xv100", layers=2, batch=4)
    tried = ways(made, 16, "gpipe")
    key = content_key(made, tried, 16)
    assert recall(key) is None
    found = explore(made, tried, 16)[0]
    remember(key, found)
    assert recall(key) == found
    assert content_key(made, tried, 64) != key
    (entry,) = cache_directory().iterdir()
    entry.write_text(entry.read_text().replace('"batch": 16', '"batch": 17'))
    assert recall(key) is None


def test_the_cache_knows_which_code_predicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, keys = maker("2xv100", layers=2, batch=4), list[str]()
    elsewhere = tmp_path / "passes"  # of a checkout, where some packages are links
    for number, text in enumerate(("x = 1\n", "x = 2\n", "x = 2\n")):
        package = tmp_path / str(number)
        (package / "cost").mkdir(parents=True)
        (package / "cost" / "step.py").write_text(text)
        elsewhere.mkdir(exist_ok=True)
        (elsewhere / "cut.py").write_text("y = 1\n" * (1 + number // 2))
        (package / "passes").symlink_to(elsewhere)
        monkeypatch.setattr("pipec.explore.search.PACKAGE", package)
        keys += [content_key(made, ways(made, 16, "gpipe"), 16) for _ in range(2)]
    assert keys[::2] == keys[1::2]
    assert len(set(keys)) == 3


def test_a_model_without_loss_is_run_forward() -> None:
    """No backward, no gradients: compute alone on one device, weights and live values in memory."""
    made = Maker(Rebatched(mlp()), parse_cluster("2xv100"))
    found = explored(made, 8 * made.traced_batch)
    assert {(p.candidate.schedule, p.candidate.eased) for p in found.predictions} == {
        ("inference", False)
    }
    alone = Predictor(made).predict(Candidate(1, 1, "inference", made.traced_batch, 8))
    costs = made.cost_model(made.traced_batch).costs
    assert costs is not None
    assert alone.seconds == pytest.approx(8 * sum(costs.of("v100").values()))
    assert alone.reduce_seconds == 0
    assert found.best.seconds <= alone.seconds


def test_values_leave_between_the_parts_of_a_stage_where_memory_binds() -> None:
    """One device, one microbatch in flight: whole stages can only compute again."""
    made, plain = maker("1xv100", layers=8, batch=4096), Candidate(1, 1, "1f1b", 4096, 8)
    free = Predictor(made).predict(plain)
    room = 0.8 * max(free.peak_bytes)
    (device,) = shrunk(made.cluster, room).devices
    fast = replace(device, host_bandwidth=16 * device.host_bandwidth)
    tight = replace(made, cluster=replace(made.cluster, devices=(fast,)))
    search = Search(tight.model, tight.cluster, batch=8 * 4096, cached=False)
    found, plan = search.run()
    whole = next(p for p in found.predictions if p.candidate.stages == 1)
    assert whole.possible
    assert whole.seconds > 1.1 * free.seconds
    assert str(found.best.candidate).startswith("1f1b{parts=4} 1x1")
    assert found.best.seconds == pytest.approx(free.seconds)
    assert max(found.best.peak_bytes) <= room
    assert len(plan.slots) > 0
    assert plan.timeline is not None
    assert plan.timeline.seconds == found.best.seconds
    named = replace(search, schedules=("1f1b",)).run()[0]
    assert all(p.candidate.stages == 1 for p in named.predictions)
    assert named.best.seconds == whole.seconds


def test_a_schedule_in_parts_has_that_many_stages_per_device() -> None:
    made = maker("2xv100", layers=8, batch=4096)
    named = [c for c in ways(made, 8 * 4096, "1f1b{parts=2}") if c.depth == 2]
    assert {c.stages for c in named} == {4}
    (parted,) = [c for c in named if c.microbatches == 8]
    whole = Predictor(made).predict(replace(parted, schedule="1f1b"))
    found = Predictor(made).predict(parted)
    assert found.seconds == pytest.approx(whole.seconds)  # all steps stand behind all backwards
    assert len(found.peak_bytes) == 2


@pytest.mark.parametrize("listed", ["1xcpu,1xv100", "2xcpu,1xh100"])
def test_the_order_in_which_devices_are_listed_means_nothing(listed: str) -> None:
    """The slow device may stand first, last, or not be used at all."""
    found = []
    known = {d.kind: d for d in parse_cluster(listed).devices}
    names = [d.kind for d in parse_cluster(listed).devices]
    for kinds in sorted(set(itertools.permutations(names))):
        made = maker(Cluster(tuple(known[k] for k in kinds)), layers=2, batch=1)
        found.append(explored(made, 4, "1f1b").best.seconds)
    assert len(found) > 1
    assert found == pytest.approx([found[0]] * len(found), rel=1e-9)


@pytest.mark.parametrize(
    ("kinds", "rates"),
    [
        ("v100 v100 v100", (1e8, 1e11, 1e10)),
        ("v100 h100 h100", (1e9, 1e8, 1e10)),
        ("v100 v100 v100 v100", (1e11, 1e8, 1e8, 1e8, 1e8, 1e11)),
    ],
)
def test_nor_does_it_where_links_are_unlike(kinds: str, rates: tuple[float, ...]) -> None:
    """Three devices in every order; four, pairs of which are joined by fast links.

    Orders that give the same cluster are one.
    """
    known, found = {d.kind: d for d in parse_cluster("1xv100,1xh100").devices}, []
    names, pairs = kinds.split(), list(itertools.combinations(range(len(kinds.split())), 2))
    clusters = set()
    for order in itertools.permutations(range(len(names))):
        new = [tuple(sorted((order.index(a), order.index(b)))) for a, b in pairs]
        joined = tuple(sorted(zip(new, rates, strict=True)))
        clusters.add((tuple(names[k] for k in order), joined))
    assert len(clusters) == (3 if len(names) == 4 else 6)
    for listed, joined in some(3, sorted(clusters)):
        links = {(a, b): Link(rate) for (a, b), rate in joined}
        made = maker(Cluster(tuple(known[k] for k in listed), links), layers=2, batch=1)
        found.append(explored(made, 4, "1f1b").best.seconds)
    assert found == pytest.approx([found[0]] * len(found), rel=1e-9)


@pytest.mark.parametrize("pairs", [((0, 2), (1, 3)), ((0, 3), (1, 2)), ((0, 1), (2, 3))])
def test_a_pipeline_follows_the_fast_links(pairs: tuple[tuple[int, int], ...]) -> None:
    """Two pairs of devices with a fast link each are neighbours, however they are listed."""
    links = {p: Link(1e11 if p in pairs else 1e8) for p in itertools.combinations(range(4), 2)}
    devices = parse_cluster("4xv100").devices
    orders = list_device_orders(Cluster(devices, links), 4)
    ways = [order or (0, 1, 2, 3) for order in orders]
    fast = [{tuple(sorted(way[:2])), tuple(sorted(way[2:]))} == {*pairs} for way in ways]
    assert any(fast)
    assert len(ways) <= 2  # from whichever device it begins, the links are the same


@pytest.mark.parametrize("slow", [1e10, 1e9])
def test_only_unlike_links_make_the_listed_order_one_more(slow: float) -> None:
    """Four devices of two kinds stand in whole kinds, or as they are listed where that tells."""
    known, found = {d.kind: d for d in parse_cluster("1xv100,1xh100").devices}, []
    for kinds in sorted(set(itertools.permutations(["v100", "v100", "h100", "h100"]))):
        links = dict.fromkeys(itertools.combinations(range(4), 2), Link(1e10)) | {
            (0, 1): Link(slow)
        }
        cluster = Cluster(tuple(known[k] for k in kinds), links)
        every = list_candidates(cluster, 8, ("1f1b",), microbatch=1)
        orders = {tuple(d.kind for d in c.on(cluster).devices) for c in every if c.depth == 4}
        found.append((kinds in orders, len(orders)))
    alike = slow == 1e10
    assert {n for _, n in found} == ({2} if alike else {2, 3})
    assert all(there for there, _ in found) == (not alike)


@pytest.mark.parametrize("kind", ["cpu", "v100"])
def test_one_device_more_is_never_slower(kind: str) -> None:
    """Of a batch that no longer divides evenly, and of a device that is no help."""
    times = [
        explored(maker(devices, layers=2, batch=1), 4, "1f1b").best.seconds
        for devices in ("2xv100", "2xv100,1x" + kind)
    ]
    assert times[1] <= times[0] * (1 + 1e-9)


def test_what_fits_is_not_said_to_fit_nowhere() -> None:
    """Memory between the least that any cut needs and what the fastest cut needs."""
    made, candidate = maker("2xv100", layers=8, batch=512), Candidate(2, 1, "1f1b", 512, 8)
    peaks = Predictor(made).predict(candidate).peak_bytes
    tight = replace(made, cluster=shrunk(made.cluster, 0.95 * max(peaks)))
    found = Predictor(tight).predict(candidate)
    assert found.possible
    assert max(found.peak_bytes) <= 0.95 * max(peaks)


def test_where_plans_fail_what_was_not_timed_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans of all that was timed are refused: one of the others is found, not an error."""
    made = maker("4xv100", layers=3, batch=2)
    timed = {p.candidate for p in explored(made, 12).predictions if p.possible}
    planned = Predictor.simulate

    def fail(self: Predictor, c: Candidate, bound: float = 0.0) -> Prediction:
        if c in timed:
            raise PlanError("refused")
        return planned(self, c, bound)

    monkeypatch.setattr(Predictor, "simulate", fail)
    assert explored(made, 12).best.candidate not in timed


def test_the_fastest_pipeline_is_tried_in_an_order_made_from_its_costs() -> None:
    """Stages are unlike, and no generator has as fast an order; the figures are the plan's."""
    widths = (64, 1024, 64, 512, 64, 2048, 64)
    layers = [nn.Linear(a, b) for a, b in itertools.pairwise(widths)]
    loss = Loss(nn.functional.mse_loss, torch.zeros(512, 64))
    graph = trace(
        nn.Sequential(*layers), (torch.zeros(512, 64),), loss=loss, source=Source("memory", "x")
    )
    made, bases = (
        Maker(Rebatched(graph), parse_cluster("4xv100")),
        [Candidate(4, 1, name, 512, 6) for name in SYNCHRONOUS if name not in CHUNKS],
    )
    without, _ = explore(made, bases, 6 * 512)
    found, plan = explore(made, bases, 6 * 512, synthesized=True)
    assert found.best.candidate.schedule == "synthesized"
    assert found.best.seconds < 0.995 * without.best.seconds
    assert plan.timeline is not None
    assert plan.timeline.seconds == found.best.seconds
    assert not any(p.candidate.schedule == "synthesized" for p in without.predictions)
    told = Search(Rebatched(graph), parse_cluster("4xv100"), batch=6 * 512, cached=False)
    assert "synthesized" in {p.candidate.schedule for p in told.run()[0].predictions}
    told = replace(told, schedules=("1f1b",))
    assert {p.candidate.schedule for p in told.run()[0].predictions} == {"1f1b"}


def test_ways_that_differ_in_which_copy_is_first_are_one() -> None:
    """Pipelines over four kinds of devices, each set of them once; all if links differ."""
    kinds = ("a100", "h100", "h200", "v100")
    cluster = parse_cluster(",".join(kinds))

    def pipelines(c: Candidate) -> tuple[tuple[str, ...], ...]:
        names = [d.kind for d in c.on(cluster).devices]
        rows = [names[r * c.depth : (r + 1) * c.depth] for r in range(c.replicas)]
        if c.adjacent == "replicas":
            rows = [names[r : c.depth * c.replicas : c.replicas] for r in range(c.replicas)]
        return tuple(sorted(map(tuple, rows)))

    every = [c for c in list_candidates(cluster, 4, ("gpipe",)) if c.microbatches == 1]
    for depth, replicas in ((1, 2), (2, 2), (1, 4), (3, 1)):
        mine = [pipelines(c) for c in every if (c.depth, c.replicas) == (depth, replicas)]
        want = {
            tuple(sorted(order[r * depth : (r + 1) * depth] for r in range(replicas)))
            for order in itertools.permutations(kinds, depth * replicas)
        }
        assert len(mine) == len(want)
        assert set(mine) == want
    pairs = list(itertools.combinations(range(4), 2))
    links = dict.fromkeys(pairs, Link(1e9, 0.0)) | {(0, 1): Link(1e8, 0.0)}
    linked = replace(cluster, links=links)
    more = [c for c in list_candidates(linked, 4, ("gpipe",)) if c.microbatches == 1]
    assert len(more) > len(every)
