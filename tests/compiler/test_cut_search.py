"""The cut is the best by the timeline of the plan that is made of it; its memory is kept."""

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pipec.cluster.cluster import Cluster, Link, parse_cluster
from pipec.compiler.cut_search import NEAR, CutSearch, NotFasterError
from pipec.compiler.driver import default_passes, make_plan
from pipec.compiler.facts import plan_facts
from pipec.compiler.outline import Outline
from pipec.compiler.pass_manager import parse_pipeline, run_passes
from pipec.compiler.problem import build_problem
from pipec.errors import PartitionError, PlanError
from pipec.frontends.trace import Loss, trace
from pipec.graph.ir import Graph, Source
from pipec.partition.costgraph import topological_order
from pipec.plan.model import Plan, cut_stages
from pipec.plan.rules.verify import verify
from pipec.schedule.registry import ASYNCHRONOUS, SYNCHRONOUS, generate
from tests.plans import by_hand
from tests.sampling import ALL, each
from tests.toys import FirstToAll, mlp

SCHEDULES = ("1f1b", "gpipe", "zb-h1", "interleaved", "pipefb", "inference")


class Block(nn.Module):
    """A skip, a transpose and a shared width: a value and its transpose cross a cut together."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.b(torch.tanh(self.a(x)).t().contiguous().t())
        return y


def net(seed: int, batch: int = 64) -> Graph:
    """A few unlike blocks and layers; with its loss."""
    draw = random.Random(seed)
    width = draw.choice([8, 32, 64])
    layers: list[nn.Module] = []
    for _ in range(draw.randint(3, 4)):
        kind = draw.choice(["block", "layer", "narrow"])
        if kind == "block":
            layers.append(Block(width))
        elif kind == "layer":
            layers += [nn.Linear(width, width), nn.Tanh()]
        else:
            layers += [nn.Linear(width, 4), nn.Linear(4, width)]
    loss = Loss(nn.functional.mse_loss, torch.zeros(batch, width))
    inputs, source = (torch.zeros(batch, width),), Source("memory", "net")
    return trace(nn.Sequential(*layers), inputs, loss=loss, source=source)


def cluster_of(seed: int, count: int) -> Cluster:
    draw = random.Random(seed)
    devices = tuple(parse_cluster(draw.choice(["v100", "h100"])).devices[0] for _ in range(count))
    pairs = [(a, b) for a in range(count) for b in range(a + 1, count)]
    link = Link(draw.choice([1e9, 1e10]), draw.choice([0.0, 1e-5, 1e-4]))
    return Cluster(devices, dict.fromkeys(pairs, link))


def costed(graph: Graph, cluster: Cluster) -> Plan:
    return run_passes(parse_pipeline("simplify,annotate-cost"), Plan(graph, cluster))


def planned(base: Plan, stage: tuple[int, ...], name: str, microbatches: int) -> Plan:
    """The plan of one cut, with all that ``pipec compile`` does behind the cut."""
    names = [n.name for n in base.graph.calls]
    schedule = generate(name, max(stage) + 1, microbatches)
    cut = by_hand(dict(zip(names, stage, strict=True)))
    stages = cut_stages(base.graph, cut.stage_of, max(stage) + 1)
    plan = base.replace(stages=stages, placement=schedule.placement, partition=cut)
    order = f"generator={name} microbatches={microbatches}"
    passes = f"insert-comm,differentiate,time-stages,schedule{{{order}}},simulate"
    return run_passes(parse_pipeline(passes), plan)


def search_of(base: Plan, name: str, stages: int, microbatches: int) -> CutSearch:
    assert base.costs
    compute = generate(name, stages, microbatches)
    outline = Outline(base.graph, base.costs, base.cluster, microbatches)
    limits = [d.memory_bytes for d in base.cluster.devices[: compute.devices]]
    return CutSearch(outline, build_problem(base), compute, limits)


def contiguous(search: CutSearch, stages: int) -> Iterator[np.ndarray]:
    """Every contiguous cut, found by trying all assignments that no edge goes back in."""
    units = search.units
    for row in np.ndindex(*(stages,) * units.size):
        if set(row) == set(range(stages)) and all(row[a] <= row[b] for a, b in units.edges):
            yield np.array(row)[units.of_node]


@pytest.mark.parametrize(
    ("name", "seed"), [*((n, 0) for n in SCHEDULES), ("1f1b", 1), ("gpipe", 2)]
)
def test_a_cut_is_predicted_as_its_plan_is(
    name: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seconds and peaks of any cut, before and after its stages are made and differentiated."""
    monkeypatch.setattr("pipec.compiler.outline.PER_CALL", 1e12)  # saved values always count
    graph = net(seed) if name != "inference" else mlp(layers=6, width=64)
    stages = 4 if name == "interleaved" else 3
    base = costed(graph, cluster_of(seed, generate(name, stages, 4).devices))
    search = search_of(base, name, stages, 4)
    every = search._every()
    assert every is not None
    draw = np.random.default_rng(seed)
    for k in draw.choice(len(every), size=min(3 if ALL else 2, len(every)), replace=False).tolist():
        stage = every[k][search.units.of_node]
        plan = planned(base, tuple(stage.tolist()), name, 4)
        found = search.predict(stage)
        assert plan.timeline
        assert found.seconds == pytest.approx(plan.timeline.seconds, rel=1e-9)
        assert found.peak_bytes == pytest.approx(plan.timeline.peak_bytes, rel=1e-9)
        assert search._bounds(every[k : k + 1])[0] <= found.seconds * (1 + 1e-12)


@pytest.mark.parametrize("name", ["pipefb", "inference"])
def test_what_cuts_share_is_that_of_each_alone(name: str) -> None:
    """Whether what a block passes on skips a stage, the cut decides."""
    loss, zeros = Loss(nn.functional.mse_loss, torch.zeros(64, 32)), (torch.zeros(64, 32),)
    blocks, source = nn.Sequential(Block(32), Block(32)), Source("memory", "net")
    graph = trace(blocks, zeros, loss=loss if name != "inference" else None, source=source)
    base = costed(graph, cluster_of(1, generate(name, 3, 4).devices))
    search = search_of(base, name, 3, 4)
    every = search._every()
    assert every is not None
    for stage in every[:, search.units.of_node]:
        found, alone = search.predict(stage), search_of(base, name, 3, 4).predict(stage)
        assert found.schedule.channels == alone.schedule.channels
        assert (found.seconds, found.peak_bytes) == (alone.seconds, alone.peak_bytes)
    assert 0 < len(search._prepared) < len(every)


@pytest.mark.parametrize("microbatches", [8, 2])
def test_a_stage_that_saves_nothing_waits_for_no_slot(microbatches: int) -> None:
    """PipeFB's last stage is a mean, whose backward reads nothing; all links are slow."""
    layers = [m for _ in range(3) for m in (nn.Linear(64, 64), nn.Tanh())]
    loss, source = Loss(lambda y: y.square().mean()), Source("memory", "net")
    graph = trace(nn.Sequential(*layers), (torch.zeros(64, 64),), loss=loss, source=source)
    pairs = [(a, b) for a in range(4) for b in range(a + 1, 4)]
    cluster = Cluster(parse_cluster("4xcpu").devices, dict.fromkeys(pairs, Link(1e7)))
    base = costed(graph, cluster)
    stage = (*[0] * (len(graph.calls) - 1), 1)
    search = search_of(base, "pipefb", 2, microbatches)
    found = search.predict(np.array(stage))
    plan = planned(base, stage, "pipefb", microbatches)
    assert len(plan.slots) == 1
    assert plan.timeline
    assert found.seconds == pytest.approx(plan.timeline.seconds, rel=1e-9)
    every = search._every()
    assert every is not None
    for cut, bound in zip(every, search._bounds(every), strict=True):
        assert bound <= search.predict(cut[search.units.of_node]).seconds * (1 + 1e-9)


class Jumping(nn.Module):
    """The first layer's value is read by the last one; what is between is made of an input."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(64, 64) for _ in range(4))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        z: Tensor = self.d(torch.tanh(self.a(x)) + torch.tanh(self.c(torch.tanh(self.b(y)))))
        return z


@pytest.mark.parametrize("name", ["zbv", "inference"])
def test_a_bound_knows_what_skips_a_stage(name: str) -> None:
    """Over a slow link: cuts whose stages send to the one behind the next cannot hide it."""
    loss = Loss(nn.functional.mse_loss, torch.zeros(64, 64)) if name == "zbv" else None
    inputs, source = (torch.zeros(64, 64), torch.zeros(64, 64)), Source("memory", "jumping")
    graph, count = trace(Jumping(), inputs, loss=loss, source=source), 4 if name == "zbv" else 3
    devices = generate(name, count, 2).devices
    pairs = [(a, b) for a in range(devices) for b in range(a + 1, devices)]
    slow = Cluster(parse_cluster(f"{devices}xv100").devices, dict.fromkeys(pairs, Link(1e7, 1e-4)))
    search = search_of(costed(graph, slow), name, count, 2)
    every = search._every()
    assert every is not None
    bounds, loose = search._bounds(every), 0
    for cut, bound in zip(every, bounds, strict=True):
        took = search.predict(cut[search.units.of_node]).seconds
        assert bound <= took * (1 + 1e-9)
        loose += bound < took / 3
    assert loose == 0


class Convolved(nn.Module):
    """Convolutions whose backward is one op for all gradients, normalised, dropped out, added."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(4))
        self.norms = nn.ModuleList(nn.BatchNorm2d(4) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + nn.functional.dropout(torch.relu(norm(layer(x))), 0.1, training=True)
        return torch.flatten(x, 1)


class Skipped(nn.Module):
    """What the first stage makes is read by both others."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.sigmoid(self.a(x))
        z: Tensor = self.c(torch.tanh(self.b(y))) * y
        return z


class Tied(nn.Module):
    """Attention between an embedding and a head that share their weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(20, 16), nn.Linear(16, 20, bias=False)
        self.head.weight = self.embed.weight
        kind = nn.TransformerEncoderLayer
        self.layers = nn.ModuleList(kind(16, 2, 32, batch_first=True) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return torch.flatten(self.head(x), 0, 1)


@pytest.mark.parametrize("model", ["convolved", "tied"])
def test_what_is_left_for_w_is_that_of_the_plan(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W reads saved values, what I computes and gradients received; one value crosses each cut."""
    monkeypatch.setattr("pipec.compiler.outline.PER_CALL", 1e12)  # saved values always count
    source = Source("memory", model)
    if model == "convolved":
        loss = Loss(nn.functional.mse_loss, torch.zeros(4, 4 * 64))
        graph = trace(Convolved(), (torch.zeros(4, 4, 8, 8),), loss=loss, source=source)
    else:
        words = torch.zeros(2, 8, dtype=torch.long)
        loss = Loss(nn.functional.cross_entropy, torch.zeros(16, dtype=torch.long))
        graph = trace(Tied(), (words,), loss=loss, source=source)
    base, draw = costed(graph, cluster_of(0, 3)), np.random.default_rng(0)
    search = search_of(base, "zb-h1", 3, 4)
    rank = np.empty(search.units.size, np.int64)
    rank[topological_order(search.units.size, search.units.succ)] = np.arange(len(rank))
    compared = 0
    while compared < (3 if ALL else 2):
        ends = np.sort(draw.choice(np.arange(1, len(rank)), 2, replace=False))
        stage = np.searchsorted(ends, rank, side="right")[search.units.of_node]
        if len(search.outline.channels(stage)) != 2 * 2:
            continue
        compared += 1
        plan = planned(base, tuple(stage.tolist()), "zb-h1", 4)
        facts = search.outline.facts(stage, search.compute.placement, split=True)
        want = [s.saved_for_w for s in plan_facts(plan).stages]
        assert [s.saved_for_w for s in facts.stages] == want
        assert plan.timeline
        assert search.predict(stage).peak_bytes == pytest.approx(plan.timeline.peak_bytes, rel=1e-9)


def test_w_reads_the_sum_of_what_two_stages_send_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is added up before W of the stage that made the value; so it is where one stage sends."""
    monkeypatch.setattr("pipec.compiler.outline.PER_CALL", 1e12)  # saved values always count
    loss, source = Loss(nn.functional.mse_loss, torch.zeros(64, 16)), Source("memory", "skipped")
    base = costed(
        trace(Skipped(), (torch.zeros(64, 16),), loss=loss, source=source), cluster_of(0, 3)
    )
    for ends, stages in ((("linear_1", "linear_2"), 3), (("linear_1",), 2)):
        search, stage = search_of(base, "zb-h1", stages, 4), list[int]()
        for n in base.graph.calls:
            stage.append((stage[-1] if stage else 0) + (n.name in ends))
        plan = planned(base, tuple(stage), "zb-h1", 4)
        facts = search.outline.facts(np.array(stage), search.compute.placement, split=True)
        assert [s.saved_for_w for s in facts.stages] == [
            s.saved_for_w for s in plan_facts(plan).stages
        ]


@pytest.mark.parametrize(("name", "seed"), each(["1f1b", "gpipe", "zb-h1"], range(3)))
def test_fewer_microbatches_find_the_fastest_cut_of_many(
    name: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long schedule is predicted once: in the order of what fewer microbatches tell."""
    monkeypatch.setattr("pipec.compiler.cut_search.LONG", 300)
    base = costed(net(seed, 16), cluster_of(seed, 3))
    search = search_of(base, name, 3, 250)
    seeds = next(contiguous(search, 3))
    near = search._search_near([seeds])
    near = near[np.argsort(search._bounds(near), kind="stable")[:NEAR]]
    brute = [search.predict(stage[search.units.of_node]).seconds for stage in near]
    assert max(brute) > min(brute)
    assert search.find_best(lambda: [seeds]).timeline.seconds == pytest.approx(min(brute), rel=1e-9)


@pytest.mark.parametrize("name", [*SYNCHRONOUS, *ASYNCHRONOUS, "inference"])
def test_nothing_enumerated_is_faster(name: str) -> None:
    """All assignments that no edge goes back in, each through the predictor."""
    graph = net(1, 16) if name != "inference" else mlp(layers=6, width=64)
    base = costed(graph, cluster_of(1, generate(name, 2, 4).devices))
    search = search_of(base, name, 2, 4)
    best = search.find_best(list)
    brute = [search.predict(stage).seconds for stage in contiguous(search, 2)]
    assert len(brute) > 5
    assert best.timeline.seconds == pytest.approx(min(brute), rel=1e-12)
    assert best.bound == best.timeline.seconds


def test_moved_boundaries_come_near_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where cuts are too many to look at all, from a poor seed; and no proof is claimed."""
    base = costed(net(1), cluster_of(1, 3))
    search = search_of(base, "1f1b", 3, 4)
    best = search.find_best(list)
    monkeypatch.setattr("pipec.compiler.cut_search.COUNTED", 0)
    poor = np.clip(search.units.of_node, 0, 2)
    found = search.find_best(lambda: [poor])
    assert found.timeline.seconds <= 1.02 * best.timeline.seconds
    assert found.bound <= best.timeline.seconds
    assert type(found.bound) is float  # plans write it as JSON


def deep() -> Graph:
    layers = [m for _ in range(16) for m in (nn.Linear(64, 64), nn.Tanh())]
    loss = Loss(nn.functional.mse_loss, torch.zeros(4096, 64))
    inputs, source = (torch.zeros(4096, 64),), Source("memory", "deep")
    return trace(nn.Sequential(*layers), inputs, loss=loss, source=source)


def test_memory_is_kept_or_it_is_an_error() -> None:
    """1F1B's first stages keep more microbatches than its last; a balanced cut overflows there."""
    cluster = tight(parse_cluster("4xv100"), 16.58e6)
    plan = make_plan(deep(), cluster, passes=default_passes(schedule="1f1b"))
    assert plan.timeline
    assert max(plan.timeline.peak_bytes) <= 16.58e6
    with pytest.raises(PartitionError, match="no cut into 4 stages fits"):
        make_plan(deep(), cluster, passes=default_passes(schedule="gpipe"))
    over = plan.replace(cluster=tight(cluster, 0.9 * max(plan.timeline.peak_bytes)))
    with pytest.raises(PlanError, match=r"memory-is-kept.* needs"):
        verify(over)


def test_a_deadlock_of_every_cut_is_no_lack_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """What skips stages waits in too few slots, and what is sent behind it with it."""
    loss = Loss(nn.functional.mse_loss, torch.zeros(4, 8))
    graph = trace(FirstToAll(), (torch.zeros(4, 8),), loss=loss, source=Source("memory", "net"))
    search = search_of(costed(graph, parse_cluster("4xh100")), "interleaved", 8, 8)
    monkeypatch.setattr("pipec.compiler.outline.slots_of", lambda src, dst: 2)
    with pytest.raises(PartitionError, match="into 8 stages runs without a deadlock") as error:
        search.find_best(lambda: [np.clip(search.units.of_node, 0, 7)])
    assert "no slot until" in str(error.value)


def tight(cluster: Cluster, memory: float) -> Cluster:
    devices = tuple(replace(d, memory_bytes=memory) for d in cluster.devices)
    return replace(cluster, devices=devices)


@pytest.mark.parametrize("name", ["dualpipev", "zbv", "interleaved", "1f1b"])
def test_little_is_predicted_that_does_not_fit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What all stages of a device hold at a time is known of a cut before it is predicted."""
    monkeypatch.setattr("pipec.compiler.cut_search.PREDICTED", 20)
    draw = random.Random(0)
    sizes = [64 * draw.choice([1, 2, 4]) for _ in range(6)]
    layers = [m for a, b in pairwise(sizes) for m in (nn.Linear(a, b), nn.ReLU())]
    loss, source = Loss(nn.functional.mse_loss, torch.zeros(64, sizes[-1])), Source("memory", "net")
    graph = trace(nn.Sequential(*layers), (torch.zeros(64, sizes[0]),), loss=loss, source=source)
    base = costed(graph, cluster_of(0, generate(name, 4, 4).devices))
    loose = search_of(base.replace(cluster=tight(base.cluster, 1.0)), name, 4, 4)
    every = loose._every()
    assert every is not None
    known = [loose.predict(stage) for stage in every[:, loose.units.of_node]]
    least = np.array([max(t.peak_bytes) for t in known])
    assert (loose._fullness(every) <= least).all()
    assert np.median(loose._fullness(every) / least) > 0.85
    limit = np.quantile(least, 0.02)
    search = search_of(base.replace(cluster=tight(base.cluster, limit)), name, 4, 4)
    best = min(t.seconds for t in known if max(t.peak_bytes) <= limit)
    assert search.find_best(list).timeline.seconds == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize(
    ("asked", "width", "batch"),
    [
        ({"recompute": ["*"]}, 64, 1024), ({"offload": ["*"]}, 64, 1024),
        ({"offload_optimizer": True}, 512, 256),
    ],
)  # fmt: skip
def test_what_is_asked_to_leave_makes_room(asked: dict[str, Any], width: int, batch: int) -> None:
    """Where no cut fits with all that is saved, that is what recompute and offload are for."""
    layers = [m for _ in range(4) for m in (nn.Linear(width, width), nn.Tanh())]
    loss, source = Loss(lambda y: y.square().mean()), Source("memory", "net")
    graph = trace(nn.Sequential(*layers), (torch.zeros(batch, width),), loss=loss, source=source)
    roomy = parse_cluster("2xv100")
    told: dict[str, Any] = {"schedule": "gpipe", "microbatches": 4}
    plain, eased = (
        make_plan(graph, roomy, passes=default_passes(**told, **more)) for more in ({}, asked)
    )
    assert plain.timeline
    assert eased.timeline
    need = max(eased.timeline.peak_bytes)
    if "offload_optimizer" in asked:  # the plan that has room hides copies
        need = 0.8 * max(plain.timeline.peak_bytes)
    assert need < max(plain.timeline.peak_bytes)
    limited = make_plan(graph, tight(roomy, need), passes=default_passes(**told, **asked))
    assert limited.timeline
    assert max(limited.timeline.peak_bytes) <= need
    with pytest.raises(PartitionError, match="fits the memory"):
        make_plan(graph, tight(roomy, need), passes=default_passes(**told))


@pytest.mark.parametrize(("name", "batch"), [("gpipe", 64), ("1f1b{replicas=4}", 4)])
def test_where_a_cut_fits_one_is_found(name: str, batch: int) -> None:
    """Limits between the least peak of any cut and the fastest cut's: the fastest that fits."""
    base = costed(net(2, batch), cluster_of(2, generate(name, 2, 4).devices))
    loose = search_of(base.replace(cluster=tight(base.cluster, 1.0)), name, 2, 4)
    every = [loose.predict(stage) for stage in contiguous(loose, 2)]
    least = min(max(t.peak_bytes) for t in every)
    most = max(max(t.peak_bytes) for t in every)
    for share in (0.0, 0.2, 0.6):
        limit = least + share * (most - least)
        fits = [t.seconds for t in every if max(t.peak_bytes) <= limit]
        search = search_of(base.replace(cluster=tight(base.cluster, limit)), name, 2, 4)
        found = search.find_best(list).timeline
        assert max(found.peak_bytes) <= limit
        assert found.seconds == pytest.approx(min(fits), rel=1e-12)
    search = search_of(base.replace(cluster=tight(base.cluster, 0.99 * least)), name, 2, 4)
    with pytest.raises(PartitionError, match="which no contiguous cut meets"):
        search.find_best(list)


class Recurrent(nn.Module):
    """A network of many layers is one call."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.net = nn.LSTM(8, 8, num_layers=layers)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.net(x)[0]
        return y


def test_layers_of_a_recurrent_network_save_more_than_its_call_yields() -> None:
    """It is counted where four gates and a cell of every layer and step do not fit."""
    layers, steps, batch, width, microbatches = 12, 14, 4, 8, 64
    x = torch.zeros(steps, batch, width)
    loss, source = Loss(lambda y: y.mean()), Source("memory", "net")
    base = costed(trace(Recurrent(layers), (x,), loss=loss, source=source), cluster_of(0, 2))
    saved = 5 * layers * steps * batch * width * x.element_size() * microbatches
    assert base.costs
    cluster = tight(base.cluster, 0.9 * saved)
    assert Outline(base.graph, base.costs, cluster, microbatches)._counted


@pytest.mark.parametrize("name", ["1f1b", "zb-h1"])
@pytest.mark.parametrize("memory", [1e9, 1.4e5])
def test_a_limit_on_the_step_hides_nothing_that_is_faster(name: str, memory: float) -> None:
    """Below it the same cut; above it a bound that holds, and what memory refused is told."""
    base = costed(net(0, 16), cluster_of(0, 2))
    search = search_of(base.replace(cluster=tight(base.cluster, memory)), name, 2, 4)
    best = search.find_best(list)
    every = [search.predict(stage) for stage in contiguous(search, 2)]
    refused = [t.seconds for t in every if max(t.peak_bytes) > memory]
    assert bool(refused) == (memory < 1e9)
    for share in (0.5, 0.9, 1.0, 1.01, 2.0):
        below = share * best.timeline.seconds
        if share > 1:
            assert np.array_equal(search.find_best(list, below).stage, best.stage)
            continue
        with pytest.raises(NotFasterError) as told:
            search.find_best(list, below)
        assert below <= told.value.bound <= best.timeline.seconds
        assert told.value.loose <= min(refused, default=np.inf)
