"""Plans of several copies of a pipeline: where stages are, what summing gradients takes."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from examples.vgg16 import vgg16
from pipec.cluster.cluster import Cluster, Level, Link, parse_cluster
from pipec.compiler.driver import default_passes, make_plan
from pipec.compiler.pass_manager import parse_pipeline
from pipec.cost.table import CostTable
from pipec.errors import PartitionError
from pipec.frontends.trace import Loss, trace
from pipec.graph.ir import Graph, Source, op_name
from pipec.graph.lower import lower
from pipec.simulate.simulate import simulate
from tests.trained import trained_mlp

DATA = Path(os.environ.get("PIPEC_DATA", Path(__file__).parents[3] / "shared" / "data"))
VGG16 = DATA / "pipedream-profiles" / "vgg16.txt"


@pytest.mark.parametrize(
    ("adjacent", "devices"),
    [("stages", ((0, 2), (1, 3))), ("replicas", ((0, 1), (2, 3)))],
)
def test_copies_of_a_pipeline_reduce_their_gradients(
    adjacent: str, devices: tuple[tuple[int, ...], ...]
) -> None:
    name = f"1f1b{{replicas=2 adjacent={adjacent}}}"
    passes = default_passes(schedule=name, microbatches=8)
    plan = make_plan(trained_mlp(4), parse_cluster("4xv100"), passes=passes)
    assert plan.schedule
    assert plan.timeline
    assert plan.placement == plan.schedule.placement
    assert plan.schedule.placement.backward == devices
    times, ring = plan.timeline.times, plan.cluster.link(0, 1)
    sent = []
    for weight, bias, *more in plan.timeline.memory.parameters:  # equal layers: one may be over
        pairs, over = divmod(1 + len(more) // 2, 2)
        sent.append(2 * (pairs * weight + (weight if over else pairs * bias)))
    assert times.reduce == pytest.approx([ring.seconds(n) for n in sent])
    free = simulate(plan.schedule, replace(times, reduce=()))
    assert plan.timeline.seconds - free.seconds == pytest.approx(times.reduce[0])


@pytest.mark.parametrize("replicas", [2, 3])
def test_the_longest_share_of_the_parameters_is_what_replicas_send(replicas: int) -> None:
    """Of 8, 1 and 1 kB one replica steps the first alone; all parts of a collective are alike."""
    layers = nn.Sequential(*(nn.Linear(16, n, bias=False) for n in (128, 16, 16)))
    layers[1], layers[2] = nn.Linear(128, 2, bias=False), nn.Linear(2, 128, bias=False)
    loss = Loss(nn.functional.mse_loss, torch.zeros(4, 128))
    graph = trace(layers, (torch.zeros(4, 16),), loss=loss, source=Source("memory", "uneven"))
    passes = default_passes(stages=1, schedule=f"1f1b{{replicas={replicas}}}", microbatches=6)
    plan = make_plan(graph, parse_cluster(f"{replicas}xv100"), passes=passes)
    assert plan.timeline
    way = 2 * (replicas - 1) * 8192  # reduce-scatter and all-gather: r - 1 parts of this size each
    assert plan.timeline.times.reduce == pytest.approx([plan.cluster.link(0, 1).seconds(way)])


AUTO = "pipedream{replicas=auto}"
OPS = {
    "Conv2d": "aten.conv2d", "ReLU": "aten.relu", "MaxPool2d": "aten.max_pool2d",
    "Linear": "aten.linear", "Dropout": "aten.native_dropout",
}  # fmt: skip


def joined(count: int, rate: float) -> Cluster:
    return Cluster(parse_cluster(f"{count}xv100").devices, levels=(Level(count, Link(rate, 0.0)),))


def measured(graph: Graph, cluster: Cluster) -> CostTable:
    """Costs of VGG-16's ops as PipeDream's profile has them, on a V100 with 64 examples."""
    plan = make_plan(graph, cluster, passes=parse_pipeline("simplify,annotate-cost"))
    assert plan.costs is not None
    lines = [line.split(" -- ") for line in VGG16.read_text().splitlines() if line[0] == "n"]
    rows: list[tuple[str, str, list[float]]] = []
    for name, what, told in sorted(lines, key=lambda line: int(line[0][4:])):
        seconds = [float(part.split("=")[1]) / 1e3 for part in told.split(", ")[:2]]
        if (kind := what.split("(")[0]) in OPS:
            rows.append((name, OPS[kind], seconds))
    calls = [n for n in plan.graph.calls if op_name(n).startswith(tuple(OPS.values()))]
    forward = dict.fromkeys((n.name for n in plan.graph.calls), 0.0)
    backward = dict(forward)
    for node, (name, op, seconds) in zip(calls, rows, strict=True):
        assert op_name(node).startswith(op), name
        forward[node.name], backward[node.name] = seconds
    return replace(
        plan.costs, seconds={"v100": forward}, backward={"v100": backward},
        method={"v100": "measured"},
    )  # fmt: skip


@pytest.mark.skipif(not VGG16.exists(), reason="PipeDream's profiles are not here")
def test_vgg16_on_its_profile_compiles_to_15_1() -> None:
    """As in PipeDream's paper: convolutions on 15 workers, the dense layers on one."""
    module, _, (loss, _) = vgg16()
    x, target = torch.zeros(64, 3, 224, 224), torch.zeros(64, dtype=torch.long)
    graph = trace(module, (x,), loss=Loss(loss, target), source=Source("memory", "vgg16"))
    cluster = joined(16, 1.25e9)
    passes = default_passes(schedule=AUTO, microbatches=60)
    plan = make_plan(graph, cluster, passes=passes, costs=measured(graph, cluster))
    assert plan.placement is not None
    assert plan.schedule is not None
    assert plan.partition is not None
    assert [len(devices) for devices in plan.placement.forward] == [15, 1]
    assert plan.schedule.name == "pipedream"
    assert plan.partition.proven
    dense = {n for n, stage in plan.partition.stage_of.items() if stage}
    assert {"linear", "linear_1", "linear_2"} <= dense
    assert not any(name.startswith("conv") for name in dense)


@pytest.mark.parametrize(("rate", "replicas"), [(1e15, [4]), (1e3, [1, 1, 1, 1])])
def test_replicas_follow_the_links(rate: float, replicas: list[int]) -> None:
    """Where sums of gradients cost nothing copies are best; where they cost all, none are."""
    passes = default_passes(schedule=AUTO, microbatches=8)
    plan = make_plan(trained_mlp(4), joined(4, rate), passes=passes)
    assert plan.placement is not None
    assert [len(devices) for devices in plan.placement.forward] == replicas


def test_levels_of_links_are_planned_one_by_one() -> None:
    """Copies within a node are summed up over its fast links; one slow link would allow none."""
    devices, slow = parse_cluster("4xv100").devices, Link(1e10, 1e-9)
    cluster = Cluster(devices, levels=(Level(2, Link(1e13, 1e-9)), Level(2, slow)))
    found = {}
    for name in (AUTO, "pipedream{replicas=1,1,1,1}"):
        passes = default_passes(schedule=name, microbatches=8)
        plan = make_plan(trained_mlp(3, 1024, 16), cluster, passes=passes)
        assert plan.placement is not None
        assert plan.timeline is not None
        counts = tuple(len(devices) for devices in plan.placement.forward)
        found[counts] = plan.timeline.seconds
    assert found[2, 2] < found[1, 1, 1, 1]


def test_what_chooses_replicas_says_what_it_cannot() -> None:
    graph, passes = trained_mlp(4), default_passes(schedule=AUTO, microbatches=8)
    with pytest.raises(PartitionError, match="devices of one kind"):
        make_plan(graph, parse_cluster("2xv100,2xh100"), passes=passes)
    with pytest.raises(PartitionError, match="chooses the number of stages"):
        make_plan(graph, parse_cluster("4xv100"), passes=default_passes(schedule=AUTO, stages=2))


class Uneven(nn.Module):
    """Sums of large tensors, which bandwidth limits, behind a product, which compute limits."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2048, 2048), nn.Linear(2048, 2048)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(self.first(x))
        for _ in range(60):
            y = y + x
        return y


@pytest.mark.parametrize("listed", ["fast,wide,fast,wide", "wide,fast,wide,fast"])
def test_each_stage_takes_what_its_slowest_replica_takes(listed: str) -> None:
    """One device is slower where arithmetic counts, the other where bytes do."""
    like = parse_cluster("v100").devices[0]
    kinds = {
        "fast": replace(like, kind="fast", peak_flops={"float32": 1e15}, memory_bandwidth=1e11),
        "wide": replace(like, kind="wide", peak_flops={"float32": 1e12}, memory_bandwidth=1e14),
    }
    cluster = Cluster(tuple(kinds[name] for name in listed.split(",")))
    loss = Loss(nn.functional.mse_loss, torch.zeros(256, 2048))
    source = Source("memory", "uneven")
    graph = trace(Uneven(), (torch.zeros(256, 2048),), loss=loss, source=source)
    passes = default_passes(schedule="1f1b{replicas=2 adjacent=replicas}")
    plan = make_plan(graph, cluster, passes=passes)
    assert plan.costs
    slowest = []
    for stage, timing in zip(plan.stages, plan.timing, strict=True):
        names = [n.name for n in lower(stage.graph).graph.calls]
        took = {
            k: sum(plan.costs.of(k).get(n, 0) + plan.costs.backward_of(k).get(n, 0) for n in names)
            for k in kinds
        }
        whole = timing.compute_seconds + timing.backward_seconds
        assert whole == pytest.approx(max(took.values()))
        slowest.append(max(took, key=took.__getitem__))
    assert slowest == ["wide", "fast"]


@pytest.mark.parametrize("listed", ["v100,h100", "h100,v100"])
def test_a_backward_on_another_device_takes_what_that_one_takes(listed: str) -> None:
    ahead, behind = listed.split(",")
    passes = default_passes(schedule="pipefb", stages=1)
    plan = make_plan(trained_mlp(2, 256, 16), parse_cluster(listed), passes=passes)
    assert plan.costs
    assert plan.placement
    assert plan.placement.backward == ((1,),)
    (timing,) = plan.timing
    assert timing.compute_seconds == pytest.approx(sum(plan.costs.of(ahead).values()))
    assert timing.backward_seconds == pytest.approx(sum(plan.costs.backward_of(behind).values()))
