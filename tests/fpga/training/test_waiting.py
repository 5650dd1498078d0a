"""FIFOs that lie in DDR: chosen, written, run in C simulation, timed."""

import dataclasses
from functools import cache
from pathlib import Path

import pytest
import torch

from pipec.backends.fpga import search as on_board
from pipec.backends.fpga.banks import blocks_of
from pipec.backends.fpga.csim.run import check_timing
from pipec.backends.fpga.demand import Demand, Shortage
from pipec.backends.fpga.design import StageDesign
from pipec.backends.fpga.engines.base import busy_cycles
from pipec.backends.fpga.engines.memory import Load
from pipec.backends.fpga.engines.mover import Refill, Spill
from pipec.backends.fpga.engines.parts import Memory
from pipec.backends.fpga.search import Board, Search, deep_fifos
from pipec.backends.fpga.training import kernels, movers
from pipec.backends.fpga.training.compare import compare_emitted
from pipec.backends.fpga.training.kernels import networks_of
from pipec.backends.fpga.training.movers import may_wait
from pipec.backends.fpga.training.phases import phases_of
from pipec.backends.fpga.training.run import TrainedRunner
from pipec.backends.fpga.training.stage import make_stages
from pipec.cluster.cluster import parse_cluster
from pipec.compiler.backend import load_backend
from pipec.compiler.driver import default_passes, emit, make_plan
from pipec.errors import BackendError
from pipec.plan.model import Plan
from pipec.plan.store import load_plan
from tests.fpga.training.models import resnet
from tests.fpga.training.test_plan import batches


def _in_memory(design: StageDesign) -> StageDesign:
    """The design with every FIFO in DDR that may lie there."""
    away = {n: dataclasses.replace(s, memory=Memory.DDR) for n, s in design.streams.items()
            if may_wait(s)}  # fmt: skip
    assert away
    return _unsized(dataclasses.replace(design, streams={**design.streams, **away}))


_unsized = kernels._reset_fifos


@cache
def on_one_board() -> Plan:
    """The same network with its maps on the chip."""
    return make_plan(resnet(), parse_cluster("1xvcu118"), "fpga")


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Path]:
    """A residual network with batch normalisation whose maps wait in DDR, and where it lies."""
    torch.manual_seed(0)
    passes = default_passes(schedule="fbp-as", microbatches=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(movers, "_LEAST_BITS", 1024)
        patch.setattr(kernels, "_reset_fifos", _in_memory)
        plan = make_plan(resnet(), parse_cluster("1xvcu118"), "fpga", passes=passes)
    folder = tmp_path_factory.mktemp("waiting") / "out"
    emit(plan, folder)
    return plan, folder


def test_kernels_whose_maps_wait_in_memory_train_as_autograd_does(
    planned: tuple[Plan, Path],
) -> None:
    """The ring goes round within a frame and between frames; loss, gradients, updates."""
    plan, folder = planned
    stored = load_plan(folder)
    runners = [
        r for r in load_backend("fpga").load(stored, folder).stages if isinstance(r, TrainedRunner)
    ]
    found = compare_emitted(stored, plan.graph, batches(plan.graph, 3), 1e-4, 0, runners)
    assert {"gradient", "update"} <= {c.kind for c in found}
    assert not [c for c in found if not c.ok]


@pytest.mark.parametrize("kernel", ["forward", "backward"])
def test_the_written_code_takes_the_simulated_cycles(
    planned: tuple[Plan, Path], kernel: str
) -> None:
    plan, folder = planned
    (stage,) = make_stages(plan)
    design = stage.kernels.F if kernel == "forward" else stage.kernels.B
    (written,) = folder.glob("stage0*")
    ends = [e for e in design.engines if isinstance(e.nest, Spill | Refill)]
    assert {type(e.nest) for e in ends} == {Spill, Refill}
    for e in ends:
        nest = e.nest
        assert isinstance(nest, Spill | Refill)
        (counted,) = (design.streams[s] for s in (*e.inputs, *e.outputs) if s.endswith("_full"))
        assert nest.tokens % nest.chunk == 0
        assert nest.slots > counted.depth + 1  # one is written, one is read
        assert busy_cycles(e) <= stage.kernels.interval
    check = check_timing(written / kernel, 3)
    assert check.differing == ()
    assert check.ends[2] - check.ends[1] <= 1.1 * stage.kernels.interval


def test_fifos_leave_the_chip_only_where_they_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    training = on_one_board().stages[0].training
    assert training is not None
    network, _ = networks_of([phases_of(training)])[0]
    board = Board(parse_cluster("1xvcu118").devices[0])
    monkeypatch.setattr(movers, "_LEAST_BITS", 1024)
    roomy = Search(network, board, movable=may_wait, waiting=()).best()
    assert all(s.memory is None for s in roomy.streams.values())
    deep = {item.owner for item in deep_fifos(roomy) if may_wait(roomy.streams[item.owner])}
    assert deep
    true, calls = on_board.fit_design, list[int]()

    def refused_once(*args: object) -> StageDesign | Shortage:
        calls.append(1)
        return Shortage((), of_memory=True) if len(calls) == 1 else true(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(on_board, "fit_design", refused_once)
    monkeypatch.setattr(on_board, "_ON_CHIP", 0.0)
    tight = Search(network, board, movable=may_wait, waiting=()).best()
    assert {s.name for s in tight.streams.values() if s.memory is Memory.DDR} == deep


def test_weights_leave_the_chip_where_only_fifos_in_memory_make_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The choice of layers counts every FIFO on the chip, finds none, and is not the last word."""
    training = on_one_board().stages[0].training
    assert training is not None
    network, _ = networks_of([phases_of(training)])[0]
    board, true = Board(parse_cluster("1xvcu118").devices[0]), on_board.fit_design

    def small(design: StageDesign, *others: object) -> StageDesign | Shortage:
        streams = any(isinstance(e.nest, Load) for e in design.engines)
        return true(design, *others) if streams else Shortage((), of_memory=True)  # type: ignore[arg-type]

    monkeypatch.setattr(on_board, "fit_design", small)
    monkeypatch.setattr(Demand, "find_cheapest", lambda *_: None)
    found = Search(network, board, movable=may_wait, waiting=()).best()
    loads = {e.name for e in found.engines if isinstance(e.nest, Load)}
    assert loads == {f"{layer}_load" for layer in blocks_of(network)}
    with pytest.raises(BackendError, match="does not fit"):
        Search(network, board, waiting=()).best()


def test_the_interval_is_no_shorter_than_memory_moves_values() -> None:
    """With a 160th of the bandwidth it is that of memory, whose slots may be half empty."""
    training = on_one_board().stages[0].training
    assert training is not None
    phases, device = phases_of(training), parse_cluster("1xvcu118").devices[0]
    slow = dataclasses.replace(device, memory_bandwidth=device.memory_bandwidth / 160)
    quick, found = (
        kernels.kernels_on(networks_of([phases])[0], Board(board), "stage0", phases, 2)
        for board in (device, slow)
    )
    moved = sum(p.bytes_per_frame for k in (found.F, found.B) for p in k.ddr)
    least = moved / (0.8 * slow.memory_bandwidth) * found.F.clock_mhz * 1e6
    assert quick.interval < least <= found.interval <= 2.5 * least
