"""What a schedule or a target keeps together no cut parts, and each part of a stage has a unit."""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pipec.cluster.cluster import Cluster, parse_cluster
from pipec.compiler.driver import default_passes, make_plan
from pipec.compiler.pass_manager import parse_pipeline, run_passes
from pipec.compiler.problem import build_problem, keep_together
from pipec.errors import PartitionError, PipecError, PlanError
from pipec.explore.rebatch import Rebatched
from pipec.explore.search import Search
from pipec.frontends.trace import Loss, trace
from pipec.graph.ir import Graph, Source
from pipec.partition.costgraph import topological_order
from pipec.partition.units import make_units
from pipec.plan.model import Plan, cut_stages
from pipec.runtime.program import Program
from pipec.schedule.registry import ASYNCHRONOUS, generate
from tests.compiler.test_cut_search import costed, planned, search_of
from tests.fpga.design.models import graph_of, made
from tests.plans import by_hand
from tests.sampling import some

WIDTH, BATCH = 64, 16


class Tied(nn.Module):
    """Layers of unlike sizes, some with the weight of an earlier one; skips."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw, layers = random.Random(seed), list[nn.Linear]()
        self.kinds, self.layers = list[str](), nn.ModuleList()
        for _ in range(draw.randint(3, 5)):
            kind = draw.choice(["plain", "tied", "wide", "skip"])
            layer: nn.Module = nn.Linear(WIDTH, WIDTH)
            if kind == "wide":
                wide = draw.choice([2, 32]) * WIDTH
                layer = nn.Sequential(nn.Linear(WIDTH, wide), nn.Linear(wide, WIDTH))
            elif kind == "tied" and layers:
                layer.weight = draw.choice(layers).weight
            else:
                layers.append(layer)  # type: ignore[arg-type]
            self.kinds.append(kind)
            self.layers.append(layer)

    def forward(self, x: Tensor) -> Tensor:
        for kind, layer in zip(self.kinds, self.layers, strict=True):
            x = x + layer(x) if kind == "skip" else torch.tanh(layer(x))
        return x


def traced(module: nn.Module) -> Graph:
    loss = Loss(nn.functional.mse_loss, torch.zeros(BATCH, WIDTH))
    inputs, source = (torch.zeros(BATCH, WIDTH),), Source("memory", "net")
    return trace(module, inputs, loss=loss, source=source)


def cluster_for(name: str, stages: int) -> Cluster:
    return parse_cluster(f"{generate(name, stages, 4).devices}xv100")


def compiled(graph: Graph, name: str, stages: int) -> Plan:
    passes = default_passes(schedule=name, microbatches=4)
    return make_plan(graph, cluster_for(name, stages), passes=passes)


def cuts(base: Plan, stages: int) -> Iterator[np.ndarray]:
    """Every contiguous cut along the graph that parts no unit of the graph itself."""
    problem = build_problem(base)
    units = make_units(problem, problem.bytes[None])
    order = np.array(topological_order(units.size, units.succ))
    for ends in combinations(range(1, units.size), stages - 1):
        stage = np.zeros(units.size, np.int64)
        stage[order] = np.searchsorted(ends, np.arange(units.size), side="right")
        yield stage[units.of_node]


@pytest.mark.parametrize("seed", some(8, range(24)))
def test_without_a_flush_a_cut_that_runs_is_found_wherever_there_is_one(seed: int) -> None:
    """Brute force over contiguous cuts of models with shared weights, all of which are trained.

    The cut is no slower than any that has all readers of each weight in one stage, as predicted.
    """
    stages, graph = 2 + seed % 2, traced(Tied(seed))
    for name in (ASYNCHRONOUS[seed % 3], "pipefb")[: 1 + (seed < 2)]:
        base = costed(graph, cluster_for(name, stages))
        search, seconds = search_of(base, name, stages, 4), list[float]()
        for stage in cuts(base, stages):
            names = [n.name for n in base.graph.calls]
            home = dict(zip(names, stage.tolist(), strict=True))
            apart = Plan(base.graph, base.cluster, stages=cut_stages(base.graph, home, stages))
            if not apart.find_tied():
                seconds.append(search.predict(stage).seconds)
        try:
            plan = compiled(graph, name, stages)
        except PartitionError as error:
            assert not seconds
            told = str(error)
            for fact in ("placement units", f"{name} updates each stage", ".weight", "hint:"):
                assert fact in told
            continue
        Program.of(plan)
        assert plan.timeline
        assert plan.timeline.seconds <= min(seconds) * (1 + 1e-9)


def test_an_exploration_of_schedules_without_a_flush_parts_no_shared_weight() -> None:
    model = Rebatched(traced(Tied(3)))
    cluster = parse_cluster("3xv100")
    search = Search(model, cluster, batch=4 * BATCH, schedules=("pipedream",), cached=False)
    exploration, plan = search.run()
    assert all("shared by several stages" not in p.problem for p in exploration.predictions)
    Program.of(plan)


@pytest.mark.parametrize("parts", [2, 3])
@pytest.mark.parametrize("counted", [1, 30_000_000])
def test_every_part_of_a_stage_has_a_unit(
    parts: int, counted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fastest cut for whole stages leaves the heavy call alone; the one for parts does not.

    Where all cuts are looked at, and where boundaries are moved.
    """
    monkeypatch.setattr("pipec.compiler.cut_search.COUNTED", counted)
    layers = [m for _ in range(4) for m in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    base = costed(traced(nn.Sequential(*layers)), parse_cluster("3xv100"))
    assert base.costs
    row = {n: 1.0 if n == "linear_2" else s for n, s in base.costs.of("v100").items()}
    costs = replace(base.costs, seconds={"v100": row})

    def cut(name: str) -> Plan:
        passes = default_passes(schedule=name, microbatches=4)
        return make_plan(base.graph, base.cluster, passes=passes, costs=costs)

    assert min(Counter(cut("1f1b").home.values()).values()) == 1
    plan = cut(f"1f1b{{parts={parts}}}")
    assert len(plan.stages) == 3 * parts
    Program.of(plan)


def test_a_model_of_too_few_units_for_all_parts_is_refused_in_full() -> None:
    graph = traced(nn.Linear(WIDTH, WIDTH))
    with pytest.raises(PartitionError, match="more stages than placement units") as error:
        compiled(graph, "1f1b{parts=3}", 6)
    told = str(error.value)
    assert "2 stages of 3 parts" in told
    assert "in all: " in told
    assert "fewer parts" in told


def test_a_cut_by_hand_between_readers_is_refused_where_its_schedule_is_made() -> None:
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(3)])
    model[2].weight = model[0].weight
    base = costed(traced(model), parse_cluster("2xv100"))
    stage = (0, 0, 1, *[1] * (len(base.graph.calls) - 3))
    with pytest.raises(PlanError, match="shared by several stages") as error:
        planned(base, stage, "pipemare", 4)
    told = str(error.value)
    for fact in ("weight 0.weight, stages 0, 1", "got:   schedule pipemare", "want:", "hint:"):
        assert fact in told
    planned(base, stage, "1f1b", 4)


class Choice(nn.Module):
    """A comparison that is read far behind."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        first, *others, last = self.layers
        x = first(x)
        large = x > 0.2
        for layer in others:
            x = torch.tanh(layer(x))
        return torch.where(large, last(x), x)


class Normalised(nn.Module):
    """A local response normalisation, which torch writes in many steps, between layers."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.norm = nn.LocalResponseNorm(3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.b(self.norm(self.a(x)))
        return y


BOARDS = parse_cluster("2xvcu118")


@pytest.mark.parametrize("layers", [3, 4])
def test_boards_keep_a_comparison_with_what_chooses_by_it(layers: int) -> None:
    graph = trace(Choice(layers), (torch.zeros(BATCH, WIDTH),), source=Source("memory", "net"))
    home = make_plan(graph, BOARDS, "fpga").home
    assert set(home.values()) == {0, 1}
    assert home["gt"] == home["where"]


def test_boards_keep_the_steps_of_a_normalisation() -> None:
    graph = trace(Normalised(), (torch.zeros(1, 3, 8, 8),), source=Source("memory", "net"))
    plan = make_plan(graph, BOARDS, "fpga")
    (steps,) = (row for row in keep_together(plan, None) if "pad" in row)
    assert {"mul", "avg_pool3d", "pow_1", "div"} <= {*steps}
    assert len({plan.home[name] for name in steps}) == 1


def test_boards_keep_a_weight_that_is_computed_with_its_layer() -> None:
    """A convolution takes it as a constant; a recurrent layer's first state may come from afar."""
    graph = graph_of(*made("response"))
    rows = [row for row in keep_together(Plan(graph, BOARDS, "fpga"), None) if "full" in row]
    assert rows == [("full", "conv2d")]
    assert not keep_together(Plan(graph_of(*made("gru")), BOARDS, "fpga"), None)


def test_a_cut_by_hand_through_what_a_board_computes_is_refused_in_full() -> None:
    graph = trace(Choice(2), (torch.zeros(BATCH, WIDTH),), source=Source("memory", "net"))
    at = {n.name: int(n.name not in ("linear", "gt")) for n in graph.calls}
    plan = Plan(graph, BOARDS, "fpga", partition=by_hand(at), stages=cut_stages(graph, at, 2))
    with pytest.raises(PipecError, match="parts what must stay in one stage") as error:
        run_passes(parse_pipeline("insert-comm,time-stages"), plan)
    told = str(error.value)
    for fact in ("gt in stage 0, where in stage 1", "computes gt, where on one device", "hint:"):
        assert fact in told
