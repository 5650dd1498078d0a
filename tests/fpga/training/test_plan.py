"""Training plans for boards, end to end: planned, written, run in C simulation, verified."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from pipec.autodiff.differentiate import differentiate
from pipec.backends.fpga.csim.run import load_stages
from pipec.backends.fpga.design import Memory, Resources
from pipec.backends.fpga.resources import uram
from pipec.backends.fpga.search import Board
from pipec.backends.fpga.training.artifacts import TrainedRunner
from pipec.backends.fpga.training.features import in_flight, placed_features, traffic
from pipec.backends.fpga.training.kernels import kernels_on, networks_of
from pipec.backends.fpga.training.phases import phases_of
from pipec.backends.fpga.training.stage import trained_stages
from pipec.backends.fpga.training.update import Sgd, update_kernel
from pipec.cluster.cluster import parse_cluster
from pipec.compiler.backend import load_backend
from pipec.compiler.driver import default_passes, emit, make_plan
from pipec.compiler.residency import stage_times
from pipec.compiler.verify_training import compare_gradients
from pipec.errors import BackendError
from pipec.graph.ir import InputKind, tensor
from pipec.plan.model import Plan
from pipec.plan.store import load_plan
from pipec.schedule.action import ActionKind
from tests.fpga.training.models import cnn, dropout, resnet
from tests.trained import trained_mlp


def planned(schedule: str, microbatches: int = 8) -> Plan:
    passes = default_passes(schedule=schedule, microbatches=microbatches)
    return make_plan(
        trained_mlp(4, width=8, batch=2), parse_cluster("2xvcu118"), "fpga", passes=passes
    )


def test_emitted_stages_give_autograds_gradients(tmp_path: Path) -> None:
    torch.manual_seed(0)
    plan = planned("fbp-as")
    emit(plan, tmp_path / "out")
    stored, backend = load_plan(tmp_path / "out"), load_backend("fpga")
    runners = backend.load(stored, tmp_path / "out")
    nodes = plan.graph.nodes
    inputs = {
        i.name: torch.randn(tuple(tensor(nodes[i.node]).shape))
        for i in plan.graph.inputs_of(InputKind.INPUT)
    }
    known = dict(inputs)
    for run in runners:
        known |= run(known)
    found = compare_gradients(stored, plan.graph, inputs, 1e-5, 0, runners)
    assert len(found) == 8
    assert all(c.ok for c in found)
    ready = [r for r in runners if isinstance(r, TrainedRunner)]
    wrong = [dataclasses.replace(r, backward_kernel=ready[0].backward_kernel) for r in ready]
    with pytest.raises(BackendError):
        compare_gradients(stored, plan.graph, inputs, 1e-5, 0, wrong)


def test_update_is_that_of_torch(tmp_path: Path) -> None:
    plan = planned("fbp-as")
    emit(plan, tmp_path / "out")
    (folder,) = sorted(tmp_path.glob("out/stage0*/update"))
    record = json.loads((folder.parent / "training.json").read_text())
    (run,) = load_stages([folder])
    shape = (-(-record["numbers"] // 16), 16)
    w, gradient = torch.randn(shape), torch.randn(shape)
    parameter = torch.nn.Parameter(w.clone())
    optimizer = torch.optim.SGD([parameter], lr=Sgd().rate, momentum=Sgd().momentum)
    m = torch.zeros(shape)
    for _ in range(2):
        parameter.grad = gradient.clone()
        optimizer.step()
        found = run({"w": w, "gradient": gradient, "m": m})
        w, m = found["new_w"], found["new_m"]
    assert torch.allclose(w, parameter.detach(), atol=1e-6)


def test_forward_and_backward_run_side_by_side() -> None:
    plan = planned("fbp-as")
    assert plan.schedule is not None
    assert plan.timeline is not None
    slots = [t.together_seconds for t in plan.timing]
    for timing, slot in zip(plan.timing, slots, strict=True):
        assert 0 < max(timing.interval_seconds, timing.backward_seconds) <= slot
    seconds = stage_times(plan).durations(plan.schedule)
    for kind in (ActionKind.F, ActionKind.B):
        for stage, slot in enumerate(slots):
            mine = (plan.schedule.kind == kind) & (plan.schedule.stage == stage)
            assert (seconds[mine] == slot).all()
    assert 8 * max(slots) <= plan.timeline.seconds
    assert 0 <= plan.timeline.bubble <= 1
    assert plan.timeline.busy == pytest.approx([8 * slot for slot in slots])


def test_one_after_the_other_takes_the_sum() -> None:
    plan = planned("1f1b-as")
    assert plan.timeline is not None
    slowest = max(t.interval_seconds + t.backward_seconds for t in plan.timing)
    assert plan.timeline.seconds >= 8 * slowest * (1 - 1e-9)
    assert plan.schedule is not None
    assert (plan.schedule.kind == ActionKind.B).any()


def test_kernels_share_the_board() -> None:
    plan = planned("fbp-as")
    for stage in trained_stages(plan):
        used = stage.kernels.F.resources + stage.kernels.B.resources
        assert stage.update is not None
        assert (used + stage.update.resources).fits(stage.kernels.F.limits)
        assert stage.kernels.interval == max(stage.kernels.F.interval, stage.kernels.B.interval)


def test_features_fill_the_chip_before_they_go_to_memory() -> None:
    sizes = {"a": 1000, "b": 500_000, "c": 400_000}
    room = Resources(uram=uram(512, 2 * 500_000 * 8 // 512), bram36=0.0)
    placed = {f.value: f for f in placed_features(sizes, 2, room)}
    assert [placed[v].memory for v in "abc"] == [Memory.DDR, Memory.URAM, Memory.DDR]
    assert traffic(placed.values()) == 2 * (1000 + 400_000)
    assert all(f.memory is Memory.DDR for f in placed_features(sizes, 2, Resources()))


def test_microbatches_in_flight_fall_towards_the_loss() -> None:
    assert [in_flight(k, 3) for k in range(3)] == [6, 4, 2]


def test_every_engine_belongs_to_one_kernel() -> None:
    phases = [phases_of(differentiate(graph, [graph])[0]) for graph in (resnet(), cnn())]
    board = Board(parse_cluster("1xvcu118").devices[0])
    for p in phases:
        (networks,) = networks_of([p])
        kernels = kernels_on(networks, board, "stage0", p.saved)
        for design in (kernels.F, kernels.B):
            names = {e.name for e in design.engines}
            for stream in design.streams.values():
                assert {stream.producer, stream.consumer} - {None} <= names
            for port in (*design.inputs, *design.outputs):
                assert not port.stream or port.stream in design.streams


def test_update_kernel_is_as_wide_as_memory_feeds() -> None:
    narrow, wide = (update_kernel(1000, b, Sgd()) for b in (20.0, 320.0))
    assert narrow.interval == 16 * wide.interval


def test_an_op_without_engine_is_named() -> None:
    with pytest.raises(BackendError, match=r"native_dropout|dropout"):
        make_plan(dropout(), parse_cluster("1xvcu118"), "fpga")
