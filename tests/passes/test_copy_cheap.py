"""Cheap values are computed again where they are read, if their transfer takes longer."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from pipec.cluster.cluster import Cluster, parse_cluster
from pipec.cluster.device import Device
from pipec.compiler.driver import emit
from pipec.compiler.pass_manager import parse_pipeline, run_passes
from pipec.compiler.verify import verify_artifacts
from pipec.errors import PassError
from pipec.frontends.base import Loaded
from pipec.frontends.torch_module import from_module
from pipec.graph.ir import InputKind
from pipec.passes.copy_cheap import CopyCheap
from pipec.plan.model import Plan

V100 = parse_cluster("3xv100").devices[0]
PEAK = {dtype: flops / 1e5 for dtype, flops in V100.peak_flops.items()}
SLOW = replace(V100, link_bandwidth=2e6, peak_flops=PEAK)
FAST = replace(SLOW, link_bandwidth=1e15, link_latency=0.0)


class Masked(nn.Module):
    """Layers that all read one mask of positions, one table of noise and one shifted input."""

    def __init__(self, noise: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(6))
        self.scale = nn.Parameter(torch.ones(64))
        self.noise = noise

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(64)
        mask = (places[:, None] >= places[None, :]).to(x.dtype) * 0.5
        weight = self.scale * 2
        drawn = torch.rand(64, 64) if self.noise else torch.ones(64, 64)
        for layer in self.layers:
            x = torch.relu(layer(x) @ mask) * weight + drawn
        return x


def loaded_of(*, noise: bool = False, loss: bool = False) -> Loaded:
    """The model, traced."""
    torch.manual_seed(0)
    wanted = (lambda y: y.square().mean()) if loss else None
    return from_module(Masked(noise), torch.randn(64, 64), wanted)


def plan_of(loaded: Loaded, device: Device = SLOW, stages: int = 3) -> Plan:
    """Cut into stages."""
    passes = parse_pipeline(f"simplify,annotate-cost,partition{{stages={stages}}}")
    return run_passes(passes, Plan(loaded.graph, Cluster((device,) * stages), "torch"))


def received(plan: Plan) -> set[str]:
    """Values that stages wait for."""
    return {i.name for s in plan.stages for i in s.graph.inputs_of(InputKind.VALUE)}


def ops(plan: Plan, stage: int) -> set[str]:
    """Ops of a stage."""
    return {str(n.target) for n in plan.stages[stage].graph.calls}


def test_a_mask_is_made_in_every_stage_where_links_are_slow(tmp_path: Path) -> None:
    loaded = loaded_of()
    before = plan_of(loaded)
    after = run_passes([CopyCheap()], before)
    assert {"aten.arange.default", "aten.ge.Tensor"} <= ops(after, 1) & ops(after, 2)
    assert len(received(after)) < len(received(before))
    rest = "insert-comm,time-stages,schedule,simulate"
    slow, fast = (run_passes(parse_pipeline(rest), plan) for plan in (before, after))
    assert slow.timeline is not None
    assert fast.timeline is not None
    assert fast.timeline.seconds < slow.timeline.seconds
    emit(fast, tmp_path / "out")
    assert verify_artifacts(tmp_path / "out", loaded).ok


def test_nothing_is_copied_where_transfers_are_faster() -> None:
    before = plan_of(loaded_of(), FAST)
    assert received(run_passes([CopyCheap()], before)) == received(before)


def test_nothing_is_copied_where_transfers_hide_behind_compute() -> None:
    before = plan_of(loaded_of(), replace(SLOW, link_bandwidth=1e8))
    assert run_passes([CopyCheap()], before) is before


def test_random_numbers_and_what_is_trained_are_sent() -> None:
    after = run_passes([CopyCheap()], plan_of(loaded_of(noise=True)))
    assert sum("aten.rand.default" in ops(after, k) for k in range(3)) == 1
    weights = [s.graph.inputs_of(InputKind.PARAMETER) for s in after.stages]
    assert sum(i.name == "scale" for stage in weights for i in stage) == 1


def test_training_with_copies_gives_the_gradients_of_the_model(tmp_path: Path) -> None:
    loaded = loaded_of(loss=True)
    plan = run_passes([CopyCheap()], plan_of(loaded, stages=2))
    assert any(n.name.endswith("_stage1") for n in plan.graph.calls)
    rest = "insert-comm,differentiate,time-stages,schedule{generator=1f1b},simulate"
    emit(run_passes(parse_pipeline(rest), plan), tmp_path / "out")
    assert verify_artifacts(tmp_path / "out", loaded).ok


def test_behind_insert_comm_it_is_refused() -> None:
    sent = run_passes(parse_pipeline("insert-comm"), plan_of(loaded_of()))
    with pytest.raises(PassError, match="copy-cheap would change what is sent"):
        run_passes([CopyCheap()], sent)
