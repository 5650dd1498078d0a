"""Max pooling over windows whose elements nearly tie: emitted kernels and torch choose unlike."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from pipec.backends.fpga import audit
from pipec.backends.fpga.training.compare import compare_emitted
from pipec.backends.fpga.training.run import TrainedRunner
from pipec.cluster.cluster import parse_cluster
from pipec.compiler.backend import load_backend
from pipec.compiler.comparison import Comparison
from pipec.compiler.driver import default_passes, emit, make_plan
from pipec.frontends.trace import Loss, trace
from pipec.graph.ir import Graph, InputKind, Source
from pipec.plan.model import Plan
from pipec.plan.store import load_plan

CHANNELS, SIZE, TOLERANCE = 32, 8, 1e-4


def pooled() -> Graph:
    """A convolution of one pixel that weighs all channels alike, and a max pooling behind it."""
    torch.manual_seed(0)
    conv = nn.Conv2d(CHANNELS, 2, 1)
    with torch.no_grad():
        conv.weight.copy_(torch.rand(2, 1, 1, 1).expand(-1, CHANNELS, 1, 1))
    model = nn.Sequential(conv, nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(32, 4))
    return trace(
        model,
        (torch.randn(1, CHANNELS, SIZE, SIZE),),
        loss=Loss(nn.functional.mse_loss, torch.zeros(1, 4)),
        source=Source("memory", "pooled"),
    )


def shuffled() -> Tensor:
    """Images of which the four pixels of a window hold the same numbers in other channels.

    All sums over the channels are equal, but for rounding, which depends on the order.
    """
    numbers = torch.rand(SIZE // 2, SIZE // 2, CHANNELS)
    x = torch.empty(1, CHANNELS, SIZE, SIZE)
    for row in range(SIZE):
        for column in range(SIZE):
            x[0, :, row, column] = numbers[row // 2, column // 2][torch.randperm(CHANNELS)]
    return x


def compared(graph: Graph, plan: Plan, folder: Path) -> list[Comparison]:
    """The gradients of the emitted kernels on such images."""
    loaded = load_backend("fpga").load(plan, folder).stages
    runners = [r for r in loaded if isinstance(r, TrainedRunner)]
    nodes = graph.nodes
    shapes = {i.name: nodes[i.node].meta["val"].shape for i in graph.inputs_of(InputKind.INPUT)}
    batches = [
        {n: shuffled() if len(s) == 4 else torch.randn(s) for n, s in shapes.items()}
        for _ in range(2)
    ]
    found = compare_emitted(plan, graph, batches, TOLERANCE, 0, runners)
    return [c for c in found if c.kind == "gradient"]


def test_a_near_tie_is_judged_by_the_maximum_that_the_kernel_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a kernel finds by a wrong rule is not excused."""
    graph, folder = pooled(), tmp_path / "out"
    passes = default_passes(schedule="fbp-as", microbatches=2)
    emit(make_plan(graph, parse_cluster("1xvcu118"), "fpga", passes=passes), folder)
    plan = load_plan(folder)
    right = compared(graph, plan, folder)
    assert all(c.ok for c in right)
    assert all("max" in c.basis for c in right)  # by torch's maxima some are off
    source = folder / "stage0_xcvu9p/forward/src/engines/poolgrad.h"
    text = source.read_text(encoding="utf-8")
    wrong = text.replace("I(place)", "I(place / G::W / 2 * G::W + place % G::W)")
    assert wrong != text
    source.write_text(wrong, encoding="utf-8")
    monkeypatch.setattr(audit, "check", lambda _: None)  # it would find the change
    assert not all(c.ok for c in compared(graph, plan, folder))
