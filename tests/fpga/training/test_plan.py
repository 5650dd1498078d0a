"""Training plans for boards, end to end: planned, written, run in C simulation, verified."""

import dataclasses
import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec import structs
from torch import Tensor, nn
from torch.nn import functional

import pipec
from pipec.autodiff.differentiate import differentiate
from pipec.backends.fpga import audit
from pipec.backends.fpga.backend import FpgaBackend
from pipec.backends.fpga.csim.run import check_timing, load_stages
from pipec.backends.fpga.design import Stream
from pipec.backends.fpga.engines.base import busy_cycles
from pipec.backends.fpga.engines.mover import Accumulate, Mover
from pipec.backends.fpga.engines.parts import Memory, Resources
from pipec.backends.fpga.memory import uram
from pipec.backends.fpga.search import Board
from pipec.backends.fpga.stagejson import read_record
from pipec.backends.fpga.training import kernels
from pipec.backends.fpga.training.artifacts import reload_tables, training_record
from pipec.backends.fpga.training.compare import compare_emitted
from pipec.backends.fpga.training.kernels import kernels_on, networks_of, place_features
from pipec.backends.fpga.training.phases import phases_of
from pipec.backends.fpga.training.run import EmittedPipeline, TrainedRunner, read_training
from pipec.backends.fpga.training.stage import make_stages, training_designs
from pipec.backends.fpga.training.update import Sgd, update_kernel
from pipec.cluster.cluster import parse_cluster
from pipec.compiler.backend import load_backend
from pipec.compiler.driver import default_passes, emit, make_plan
from pipec.compiler.facts import plan_facts
from pipec.compiler.stage_timing import device_of
from pipec.compiler.verify_training import gradients_of
from pipec.errors import BackendError
from pipec.frontends.trace import Loss, trace
from pipec.graph.ir import Graph, InputKind, Source, tensor
from pipec.plan.model import Plan
from pipec.plan.store import load_plan
from pipec.schedule.action import ActionKind
from pipec.schedule.in_flight import in_flight
from tests.fpga.design.staged import within
from tests.fpga.training.models import (
    by_frequency,
    cnn,
    dropout,
    example,
    forgetful,
    margin,
    masked,
    mlp,
    resnet,
)
from tests.trained import trained_mlp


def planned(schedule: str, microbatches: int = 8) -> Plan:
    passes = default_passes(schedule=schedule, microbatches=microbatches)
    return make_plan(
        trained_mlp(4, width=8, batch=2), parse_cluster("2xvcu118"), "fpga", passes=passes
    )


def compiled(folder: Path) -> tuple[Plan, list[TrainedRunner]]:
    """An emitted plan and its stages, from its directory alone."""
    stored = load_plan(folder)
    runners = load_backend("fpga").load(stored, folder).stages
    return stored, [r for r in runners if isinstance(r, TrainedRunner)]


def batches(graph: Graph, count: int) -> list[dict[str, Tensor]]:
    nodes = graph.nodes
    kinds = {i.name: tensor(nodes[i.node]) for i in graph.inputs_of(InputKind.INPUT)}
    return [{n: example(like) for n, like in kinds.items()} for _ in range(count)]


@pytest.mark.parametrize("schedule", ["fbp-as", "1f1b-as"])
def test_emitted_stages_train_as_autograd_and_sgd_do(schedule: str, tmp_path: Path) -> None:
    """Three microbatches in the schedule's order through two stages, then two updates."""
    torch.manual_seed(0)
    plan = planned(schedule, 3)
    emit(plan, tmp_path / "out")
    stored, runners = compiled(tmp_path / "out")
    shown = FpgaBackend().engines(stored, tmp_path / "out", ())
    kernels_of = {(s["stage"], s["name"].partition("_")[2]) for s in shown}
    assert kernels_of >= {(k, way) for k in (0, 1) for way in ("forward", "backward", "update")}
    inputs = batches(plan.graph, 3)
    found = compare_emitted(stored, plan.graph, inputs, 1e-5, 0, runners)
    assert [c.kind for c in found].count("gradient") == 8
    assert [c.kind for c in found].count("update") == 16
    assert all(c.ok for c in found)
    assert max(c.scale for c in found) > 0
    for r in runners:
        r.record = structs.replace(r.record, update={**r.record.update, "rate": 0.0101})
    late = compare_emitted(stored, plan.graph, inputs, 1e-5, 0, runners)
    assert {c.kind for c in late if not c.ok} == {"update"}
    wrong = [dataclasses.replace(r, backward_kernel=runners[0].backward_kernel) for r in runners]
    with pytest.raises((BackendError, KeyError)):
        compare_emitted(stored, plan.graph, inputs, 1e-5, 0, wrong)


@pytest.mark.parametrize("own", [torch.float16, torch.bfloat16])
def test_models_in_16_bits_are_judged_by_their_rounding(own: torch.dtype, tmp_path: Path) -> None:
    """Boards train in float32; a rate that is half as high again is seen all the same."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to(own)
    x, loss = torch.randn(4, 8, dtype=own), Loss(functional.mse_loss, torch.randn(4, 4, dtype=own))
    graph = trace(model, (x,), loss=loss, source=Source("memory", ""))
    passes = default_passes(schedule="1f1b-as", microbatches=3)
    plan = make_plan(graph, parse_cluster("1xvcu118"), "fpga", passes=passes)
    emit(plan, tmp_path / "out")
    stored = load_plan(tmp_path / "out")
    emitted = load_backend("fpga").load(stored, tmp_path / "out")
    runners = [r for r in emitted.stages if isinstance(r, TrainedRunner)]
    for rate, ok in (1.0, True), (1.5, False):
        for r in runners:
            update = {**r.record.update, "rate": rate * r.record.update["rate"]}
            r.record = structs.replace(r.record, update=update)
        inputs = [{n: t.to(own) for n, t in each.items()} for each in batches(graph, 3)]
        found = compare_emitted(stored, graph, inputs, emitted.tolerance, 0, runners)
        assert all(c.ok for c in found) is ok


def test_boards_train_on_with_reloaded_tables(tmp_path: Path) -> None:
    """Two updates of two microbatches: the second one with the weights of the first."""
    plan = planned("fbp-as", 3)
    emit(plan, tmp_path / "out")
    stored, runners = compiled(tmp_path / "out")
    boards = EmittedPipeline(stored, runners, 2)
    names = [i.name for i in plan.graph.inputs_of(InputKind.PARAMETER)]
    held = {n: torch.nn.Parameter(plan.graph.weights[n].detach().clone()) for n in names}
    optimizer = torch.optim.SGD(held.values(), lr=Sgd().rate, momentum=Sgd().momentum)
    for _ in range(2):
        inputs = batches(plan.graph, 2)
        boards.train(inputs)
        assert set(boards.saved) == {(stage, m) for stage in (0, 1) for m in (0, 1)}
        new = boards.update()
        weights = {**plan.graph.weights, **held}
        sums = [gradients_of(plan.graph.replace(weights=weights), b, set(names), 0) for b in inputs]
        for n, parameter in held.items():
            parameter.grad = (sums[0][n] + sums[1][n]) / 3
        optimizer.step()
        for n, parameter in held.items():
            assert torch.allclose(new[n], parameter.detach(), atol=1e-6)
            plan.graph.weights[n].detach().copy_(new[n])
        reload_tables(plan, tmp_path / "out")


@pytest.fixture(scope="module")
def spilled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Path]:
    """A plan of a board whose chip has no room for saved values, and where it was written."""
    torch.manual_seed(1)
    passes = default_passes(schedule="fbp-as", microbatches=5)
    with pytest.MonkeyPatch.context() as patch:
        place_features = kernels.place_features
        patch.setattr(
            kernels, "place_features", lambda held, sets, _: place_features(held, sets, Resources())
        )
        plan = make_plan(mlp(), parse_cluster("1xvcu118"), "fpga", passes=passes)
    folder = tmp_path_factory.mktemp("spilled") / "out"
    emit(plan, folder)
    return plan, folder


def test_saved_values_wait_in_rings_in_memory(spilled: tuple[Plan, Path]) -> None:
    """More microbatches than slots: the ring goes round."""
    plan, folder = spilled
    (stage,) = make_stages(plan)
    waiting = [f for f in stage.kernels.features if f.memory is Memory.DDR]
    assert len(waiting) == 4
    assert stage.sets < 5
    stored, runners = compiled(folder)
    found = compare_emitted(stored, plan.graph, batches(plan.graph, 5), 1e-4, 0, runners)
    assert all(c.ok for c in found)
    (runner,) = runners
    runner.begin(5)
    for n in range(stage.sets):
        runner.forward(n, batches(plan.graph, 1)[0])
    with pytest.raises(BackendError, match="in flight"):
        runner.forward(stage.sets, batches(plan.graph, 1)[0])


def test_a_sum_is_in_memory_before_the_next_microbatch_adds_to_it(
    spilled: tuple[Plan, Path],
) -> None:
    """Of a bias, say, whose tokens alone would take less time than memory."""
    (stage,) = make_stages(spilled[0])
    sums = [(e, e.nest) for e in stage.kernels.B.engines if isinstance(e.nest, Accumulate)]
    assert min(nest.tokens * e.ii - e.depth for e, nest in sums) < 0
    assert all(busy_cycles(e) >= e.depth for e, _ in sums)


def test_a_relu_at_zero_is_judged_by_the_side_that_the_kernel_took(
    spilled: tuple[Plan, Path],
) -> None:
    """Inputs that make an argument zero; the reference's is a little more or less than that."""
    plan, folder = spilled
    stored, runners = compiled(folder)
    inputs = batches(plan.graph, 5)
    row, bias = plan.graph.weights["0.weight"][3].detach(), plan.graph.weights["0.bias"].detach()
    for batch in inputs:
        (x,) = (v for v in batch.values() if v.shape[1] == len(row))
        x[1] = -bias[3] * row / (row @ row)
    bases = list[str]()
    for shift in (1e-6, -1e-6):
        moved = bias.clone()
        moved[3] += shift
        source = plan.graph.replace(weights={**plan.graph.weights, "0.bias": moved})
        found = compare_emitted(stored, source, inputs, 1e-4, 0, runners)
        gradients = [c for c in found if c.kind == "gradient"]
        assert all(c.ok for c in gradients)
        bases += {c.basis for c in gradients}
    assert any("ReLU" in basis for basis in bases)


def test_memory_traffic_is_simulated_as_the_emitted_code_runs_it(
    spilled: tuple[Plan, Path],
) -> None:
    plan, folder = spilled
    (stage,) = make_stages(plan)
    (written,) = folder.glob("stage0*")
    for name, design in (("forward", stage.kernels.F), ("backward", stage.kernels.B)):
        movers = [e for e in design.engines if isinstance(e.nest, Mover)]
        assert movers
        assert {p.engine for p in design.ddr if p.carries} == {e.name for e in movers}
        assert all(busy_cycles(e) <= stage.kernels.interval for e in movers)
        check = check_timing(written / name, 2)
        assert check.differing == ()
        assert check.ends[1] - check.ends[0] <= 1.1 * stage.kernels.interval


def test_a_schedule_with_more_in_flight_than_a_ring_holds_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="in flight"):
        emit(planned("gpipe", 8), tmp_path / "out")


def test_update_is_that_of_torch(tmp_path: Path) -> None:
    emit(planned("fbp-as"), tmp_path / "out")
    stage, _ = sorted((tmp_path / "out").glob("stage*"))
    record = read_training(stage)
    rows = record.parameters[-1].first + record.parameters[-1].rows
    (kernel,) = load_stages([stage / "update"])
    w, gradient, m = torch.randn(rows, 16), torch.randn(rows, 16), torch.zeros(rows, 16)
    parameter = torch.nn.Parameter(w.clone())
    optimizer = torch.optim.SGD([parameter], lr=Sgd().rate, momentum=Sgd().momentum)
    gradient.numpy().tofile(tmp_path / "sums.bin")
    for name, start in (("w", w), ("m", m)):
        start.numpy().tofile(tmp_path / f"{name}.bin")
    for _ in range(2):
        parameter.grad = gradient / 8
        optimizer.step()
        kernel.play(tmp_path)
        for name in ("w", "m"):
            (tmp_path / f"new_{name}.bin").replace(tmp_path / f"{name}.bin")
    found = torch.from_numpy(np.fromfile(tmp_path / "w.bin", dtype=np.float32))
    assert torch.allclose(found.reshape(rows, 16), parameter.detach(), atol=1e-6)


def test_saved_values_on_chip_wait_in_fifos_of_a_kernel(tmp_path: Path) -> None:
    """One shape from F to B, a FIFO for all microbatches in flight, where the plan says."""
    plan = planned("fbp-as")
    emit(plan, tmp_path / "out")
    folders = sorted((tmp_path / "out").glob("stage*"))
    for folder, stage in zip(folders, make_stages(plan), strict=True):
        connections = (folder / "connections.tcl").read_text(encoding="utf-8")
        fifos = {f["name"]: f for f in read_record(folder / "saved")["fifos"]}
        source = (folder / "saved/src/stage_top.cpp").read_text(encoding="utf-8")
        record = training_record(stage)["saved"]
        assert [s["memory"] == "ddr" for s in record] == ["saved_in" not in s for s in record]
        kept = [s for s in record if "saved_in" in s]
        assert kept
        for saved in kept:
            fifo = fifos[f"{saved['value']}_waiting"]
            assert fifo["depth"] == saved["fifo_depth"] == saved["microbatches"] * fifo["tokens"]
            assert fifo["memory"] == saved["memory"]
            assert f"variable = {fifo['name']} type = fifo impl = {saved['memory']}" in source
            assert saved["fifo_width_bits"] * fifo["tokens"] == 8 * saved["bytes"]
            stage_name = folder.name.split("_")[0]
            assert f"{stage_name}_forward_top_1/{saved['forward_out']}]" in connections
            end = f"{stage_name}_saved_top_1/{saved['saved_out']}]"
            assert f"{end} [get_bd_intf_pins {stage_name}_backward_top_1/" in connections
        assert check_timing(folder / "saved", 3).differing == ()
        moved = re.sub("fifo impl = .*", "fifo impl = lutram", source)
        (folder / "saved/src/stage_top.cpp").write_text(moved, encoding="utf-8")
        with pytest.raises(BackendError, match="impl = lutram"):
            audit.check(folder / "saved")


def test_forward_and_backward_run_side_by_side() -> None:
    plan = planned("fbp-as")
    assert plan.schedule is not None
    assert plan.timeline is not None
    slots = [t.together_seconds for t in plan.timing]
    for timing, slot in zip(plan.timing, slots, strict=True):
        assert 0 < max(timing.interval_seconds, timing.backward_seconds) <= slot
    seconds = plan_facts(plan).times().durations(plan.schedule)
    for kind in (ActionKind.F, ActionKind.B):
        for stage, slot in enumerate(slots):
            mine = (plan.schedule.kind == kind) & (plan.schedule.stage == stage)
            assert (seconds(np.flatnonzero(mine)) == slot).all()
    assert 8 * max(slots) <= plan.timeline.seconds
    assert 0 <= plan.timeline.bubble <= 1
    steps = plan.timeline.times.step
    busy = [8 * slot + step for slot, step in zip(slots, steps, strict=True)]
    assert plan.timeline.busy == pytest.approx(busy)


def test_one_after_the_other_takes_the_sum() -> None:
    plan = planned("1f1b-as")
    assert plan.timeline is not None
    slowest = max(t.interval_seconds + t.backward_seconds for t in plan.timing)
    assert plan.timeline.seconds >= 8 * slowest * (1 - 1e-9)
    assert plan.schedule is not None
    assert (plan.schedule.kind == ActionKind.B).any()


def test_kernels_share_the_board() -> None:
    plan = planned("fbp-as")
    for stage in make_stages(plan):
        used = stage.kernels.F.resources + stage.kernels.B.resources
        assert stage.update is not None
        assert stage.kernels.saved is not None
        used = used + stage.update.resources + stage.kernels.saved.resources
        assert within(used, Board(device_of(plan, plan.stages[0])).limits)
        assert stage.kernels.interval >= max(stage.kernels.F.interval, stage.kernels.B.interval)


def test_features_fill_the_chip_before_they_go_to_memory() -> None:
    rows = {"a": 16, "b": 8_000, "c": 6_400}
    streams = {v: Stream(v, n, 16, 16) for v, n in rows.items()}
    room = Resources(uram=uram(512, 2 * 8_000), bram36=0.0)
    placed = {f.value: f for f in place_features(streams, 2, room)}
    assert [placed[v].memory for v in "abc"] == [Memory.DDR, Memory.URAM, Memory.DDR]
    assert [placed[v].traffic for v in "abc"] == [2 * 64 * 16, 0, 2 * 64 * 6_400]
    assert all(f.memory is Memory.DDR for f in place_features(streams, 2, Resources()))


def test_stages_have_room_for_what_the_schedule_keeps_in_flight() -> None:
    plan = planned("fbp-as")
    assert plan.schedule is not None
    assert [turns.most for turns in in_flight(plan.schedule)] == [4, 2]
    assert [stage.sets for stage in make_stages(plan)] == [4, 2]


def test_every_engine_belongs_to_one_kernel() -> None:
    phases = [phases_of(differentiate(graph, [graph])[0]) for graph in (resnet(), cnn())]
    board = Board(parse_cluster("1xvcu118").devices[0])
    for p in phases:
        (networks,) = networks_of([p])
        made = kernels_on(networks, board, "stage0", p, 2)
        for design in (made.F, made.B):
            names = {e.name for e in design.engines}
            for stream in design.streams.values():
                assert {stream.producer, stream.consumer} - {None} <= names
            for port in (*design.inputs, *design.outputs):
                assert not port.stream or port.stream in design.streams


def test_update_kernel_is_as_wide_as_memory_feeds() -> None:
    narrow, wide = (update_kernel(1000, b) for b in (20.0, 320.0))
    assert narrow.interval == 16 * wide.interval


@pytest.mark.parametrize(
    ("model", "op"), [(by_frequency, "embedding_dense_backward"), (forgetful, "bernoulli")]
)
def test_an_op_without_engine_is_named(model: Callable[[], Graph], op: str) -> None:
    with pytest.raises(BackendError, match=op):
        make_plan(model(), parse_cluster("1xvcu118"), "fpga")


@pytest.mark.parametrize(
    ("model", "node", "lacks"),
    [
        (margin, "aten.gather.default multi_margin_loss", "no engine computes this op"),
        (masked, "aten.gt.Tensor gt", "its operand gt is a truth value, which only a choice reads"),
    ],
)
def test_a_loss_that_boards_do_not_train_with_is_refused_in_full(
    model: Callable[[], Graph], node: str, lacks: str
) -> None:
    with pytest.raises(BackendError) as found:
        make_plan(model(), parse_cluster("1xvcu118"), "fpga")
    assert node in str(found.value.got)
    assert lacks in str(found.value.got)
    assert found.value.want == "operations with an engine"
    assert str(found.value.hint).startswith("write the model or its loss with others")


def test_the_host_draws_the_masks_of_dropout(tmp_path: Path) -> None:
    """Two stages: every random op has the mask of its number in the model."""
    torch.manual_seed(2)
    graph = dropout()
    passes = default_passes(schedule="fbp-as", microbatches=3)
    plan = make_plan(graph, parse_cluster("2xvcu118"), "fpga", passes=passes)
    emit(plan, tmp_path / "out")
    stored, runners = compiled(tmp_path / "out")
    ready = runners
    assert [m.draw for r in ready for m in r.record.masks] == [0, 1]
    inputs = batches(plan.graph, 2)
    found = compare_emitted(stored, plan.graph, inputs, 1e-5, 0, runners)
    assert all(c.ok for c in found)
    for r in ready:
        r.stream = partial(int.__add__, 7)
    other = compare_emitted(stored, plan.graph, inputs, 1e-5, 0, runners)
    assert not all(c.ok for c in other)


def test_masks_of_one_name_on_two_boards_are_two_masks(tmp_path: Path) -> None:
    layers = nn.Linear(8, 6), nn.Dropout(), nn.ReLU(), nn.Linear(6, 3), nn.Dropout()
    loss = functional.mse_loss, torch.randn(4, 3)
    plan = pipec.compile(
        nn.Sequential(*layers), torch.randn(4, 8), "2xvcu118", target="fpga", loss=loss
    )
    emit(plan, tmp_path / "out")
    files = sorted((tmp_path / "out").glob("*/training.json"))
    records = [json.loads(file.read_text()) for file in files]
    assert [[m["shape"] for m in r["masks"]] for r in records] == [[[4, 6]], [[4, 3]]]


def test_kernels_of_a_board_without_ddr_have_their_tables_in_hbm(tmp_path: Path) -> None:
    passes = default_passes(schedule="fbp-as", microbatches=2)
    plan = make_plan(
        trained_mlp(2, width=8, batch=2), parse_cluster("1xu55c"), "fpga", passes=passes
    )
    emit(plan, tmp_path / "out")
    (file,) = (tmp_path / "out").glob("stage0_*/connections.cfg")
    banks = re.findall(r"^sp=stage0_(\w+)_top_1\.\w+:(\w+)\[", file.read_text(), re.MULTILINE)
    assert set(banks) == {(kernel, "HBM") for kernel in ("forward", "backward", "update")}


def test_kernels_without_engines_have_no_cycles(tmp_path: Path) -> None:
    """The second board only counts batches, which the host does."""
    passes = default_passes(schedule="1f1b-as", microbatches=4)
    plan = make_plan(resnet(), parse_cluster("2xvcu118"), "fpga", passes=passes)
    emit(plan, tmp_path / "out")
    assert [design.name for design in training_designs(plan) if not design.engines] == [
        "stage1_forward",
        "stage1_backward",
    ]
    found = FpgaBackend().cycles(plan, tmp_path / "out")
    assert {c.stage.rpartition("_")[0] for c in found} == {"stage0"}
    assert all(c.interval for c in found)
