"""Backward ops of several results, of which B, I and W want others each."""

import torch
from torch import nn
from torch.nn import functional

from pipec.cluster.cluster import parse_cluster
from pipec.compiler.driver import default_passes, make_plan
from pipec.frontends.trace import Loss, trace
from pipec.graph.ir import Source


def test_a_convolution_with_batch_norm_is_a_sound_plan() -> None:
    torch.manual_seed(0)
    convs = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)]
    layers = [*convs, nn.ReLU(), nn.Flatten(), nn.Linear(64, 2)]
    loss = Loss(functional.cross_entropy, torch.tensor([1, 0]))
    graph = trace(
        nn.Sequential(*layers), (torch.randn(2, 3, 6, 6),), loss=loss, source=Source("memory", "m")
    )
    passes = default_passes(schedule="zb-h1", microbatches=4)
    plan = make_plan(graph, parse_cluster("2xv100"), passes=passes)
    assert [stage.training is not None for stage in plan.stages] == [True, True]
