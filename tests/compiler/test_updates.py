"""Steps and adding up gradients take the time of the bytes that they move."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from pipec.cluster.cluster import parse_cluster
from pipec.compiler.driver import default_passes, make_plan
from pipec.cost.stage import update_cost
from pipec.frontends.trace import Loss, trace
from pipec.graph.ir import Graph, Source
from pipec.plan.model import Plan
from pipec.schedule.action import ActionKind
from pipec.simulate.times import Times
from tests.compiler.test_cut_search import costed, search_of

WIDTH, LAYERS, MICROBATCHES = 512, 4, 4
_K = ActionKind


def layers() -> nn.Module:
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))


def graph() -> Graph:
    loss = Loss(nn.functional.mse_loss, torch.zeros(2, WIDTH))
    return trace(layers(), (torch.zeros(2, WIDTH),), loss=loss, source=Source("memory", "layers"))


def made(schedule: str, devices: str) -> Plan:
    """A plan of layers whose weights are large beside their batch."""
    passes = default_passes(schedule=schedule, microbatches=MICROBATCHES)
    return make_plan(graph(), parse_cluster(devices), passes=passes)


def times_of(plan: Plan) -> Times:
    assert plan.timeline is not None
    return plan.timeline.times


@pytest.mark.parametrize(
    ("schedule", "devices", "added"),
    [
        ("1f1b", "2xv100", 3 / 4),
        ("zb-h1", "2xv100", 3 / 4),
        ("1f1b{replicas=2}", "4xv100", 1 / 2),  # of two microbatches on each replica
        ("pipedream", "2xv100", 0.0),  # every microbatch is an update
    ],
)
def test_by_closed_form(schedule: str, devices: str, added: float) -> None:
    plan = made(schedule, devices)
    times, device = times_of(plan), plan.cluster.devices[0]
    assert plan.costs
    assert plan.partition
    assert plan.placement
    rate = device.memory_bandwidth * device.memory_efficiency
    behind = plan.costs.backward_of(device.kind)
    for stage in plan.stages:
        weights = stage.graph.weight_bytes
        mine = [name for name, at in plan.partition.stage_of.items() if at == stage.index]
        backward = sum(behind[name] for name in mine)
        adding = added * 3 * weights / rate
        assert times.compute[_K.B][stage.index] == pytest.approx(backward + adding)
        assert times.compute[_K.I][stage.index] == pytest.approx(backward / 2)
        assert times.compute[_K.W][stage.index] == pytest.approx(backward / 2 + adding)
        size, copies = WIDTH * WIDTH * 4, len(plan.placement.backward[stage.index])
        shared = -(-weights // size // copies) * size  # whole tensors
        everyone = tuple(range(plan.cluster.size))
        norm = plan.cluster.all_reduce(everyone, 8 * LAYERS) if added else 0
        assert times.step[stage.index] == pytest.approx(7 * shared / rate + norm)


def test_boards_and_tables_say_it_themselves() -> None:
    gpu, board = parse_cluster("v100,u250").devices
    assert update_cost(board, 1e9).step == update_cost(board, 1e9).accumulate == 0
    tabled = update_cost(replace(gpu, tables="v100"), 1e9)
    assert (tabled.step, tabled.accumulate) == (update_cost(gpu, 1e9).step, 0)


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1", "pipedream"])
def test_bounds_know_them(schedule: str) -> None:
    """Where nothing is sent the bound of a cut is its time."""
    base = costed(graph(), parse_cluster("2xv100"))
    fast = replace(base.cluster.devices[0], link_bandwidth=1e30, link_latency=0.0)
    base = base.replace(cluster=replace(base.cluster, devices=(fast, fast)))
    search = search_of(base, schedule, 2, MICROBATCHES)
    every = search._every()
    assert every is not None
    bounds = search._bounds(every)
    seconds = [search.predict(cut[search.units.of_node]).seconds for cut in every]
    assert np.allclose(bounds, seconds, rtol=1e-9)
