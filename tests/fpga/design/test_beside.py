"""What stands on a board beside the engines: memory controllers, network cores, small kernels."""

from dataclasses import replace

import pytest

from pipec.backends.fpga import memory, search
from pipec.backends.fpga.designs import board_of, designs_of, left_of, networks
from pipec.backends.fpga.emit.link import Site, connect
from pipec.backends.fpga.engines.mvu import Mvu
from pipec.backends.fpga.engines.parts import PORT_BITS, Resources
from pipec.backends.fpga.folding import design_at
from pipec.backends.fpga.lowering.lower import lower
from pipec.backends.fpga.memory import adapter, interconnect, registers
from pipec.backends.fpga.search import Board, bind_to, deep_fifos, fit_design, port_kernels
from pipec.cluster.cluster import parse_cluster
from pipec.cluster.presets import preset
from pipec.compiler.driver import make_plan
from tests.fpga.design.models import graph_of, made

DDR4 = Resources(lut=33_256, ff=44_889, bram36=99.5)
CORE = Resources(lut=35_219, ff=86_269, bram36=91.5)
"""A DDR4 controller and a 100G core with its UDP layer, as FINN+'s tables of platforms say."""


def taken(board: Board, beside: Board) -> tuple[float, ...]:
    less = board.limits - beside.limits
    return tuple(round(x, 3) for x in (less.lut, less.ff, less.bram36))


@pytest.mark.parametrize(("words", "lut", "ff"), [(3, 234, 151), (7, 490, 291)])
def test_registers_of_arguments_take_what_amd_reports(words: int, lut: int, ff: int) -> None:
    assert (registers(words).lut, registers(words).ff) == (lut, ff)


@pytest.mark.parametrize(("kind", "count"), [("vcu118", 1), ("u250", 4), ("zcu102", 0)])
def test_memory_controllers_take_room_where_they_are_made_of_fabric(kind: str, count: int) -> None:
    """One for the tables; on a platform, whose frames go through all, every one."""
    device = preset(kind)
    assert device.fpga is not None
    hard = replace(device, fpga=replace(device.fpga, hard_memory=True))
    each = (DDR4.lut, DDR4.ff, DDR4.bram36)
    assert taken(Board(hard), Board(device)) == tuple(count * x for x in each)


@pytest.mark.parametrize("kind", ["u280", "u55c"])
def test_channels_of_hbm_share_what_they_need_in_any_case(kind: str) -> None:
    """As FINN+'s tables of platforms say, a third of a DDR4 controller."""
    board = Board(preset(kind))
    assert board.controllers == 1
    assert board.controller == Resources(lut=10_718, ff=21_793, bram36=4)


@pytest.mark.parametrize(
    ("bits", "ways", "lut", "ff"),
    [
        # Vivado 2023.1: a SmartConnect for one DMA that writes (analogdevicesinc/hdl, pull 1054)
        (64, 1, 910, 904),
        # a channel of HBM that is read and written (rapidstream-org/rapidstream-cookbook)
        (512, 2, 5_000, 6_500),
    ],
)
def test_ways_to_memory_take_what_is_published(bits: int, ways: int, lut: int, ff: int) -> None:
    found = interconnect(bits) * ways
    assert found.lut == pytest.approx(lut, rel=0.003)
    assert found.ff == pytest.approx(ff, rel=0.003)


def test_every_port_to_memory_has_a_way_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the tables, of two movers, and of each engine that streams weights."""
    model, x = made("vgg")
    network = lower(graph_of(model, x))
    streamed = {layer.name: 1 for layer in network.layers if isinstance(layer.nest, Mvu)}

    def count(way: Resources) -> tuple[float, float]:
        for module in (memory, search):
            monkeypatch.setattr(module, "interconnect", lambda _: way)
        movers = port_kernels((network.inputs, network.outputs), (), platform=True)
        board = Board(preset("u280")).beside(movers)
        made_for = bind_to(design_at(network, 4_000, streamed=streamed), board, "stage0")
        found = fit_design(made_for, board, deep_fifos(made_for))
        assert not hasattr(found, "exceeded")
        return board.limits.dsp, found.resources.dsp

    (most, used), (less, more) = count(Resources()), count(Resources(dsp=1))
    assert (most - less, more - used) == (2, len(streamed) + 1)


@pytest.mark.parametrize(("kind", "cores"), [("u280", (1, 2)), ("vcu118", (1, 1))])
def test_a_board_in_the_middle_has_a_network_core_on_each_side(
    kind: str, cores: tuple[int, int]
) -> None:
    """Where there is no platform these are Aurora cores, two of which take less than one."""
    alone = Board(preset(kind), links=0)
    for links, count in enumerate(cores, 1):
        found = taken(alone, Board(preset(kind), links=links))
        assert found == (count * CORE.lut, count * CORE.ff, count * CORE.bram36)


def test_a_second_controller_counts_where_weights_are_read_through_it() -> None:
    model, x = made("vgg")
    network = lower(graph_of(model, x))
    streamed = {layer.name: 1 for layer in network.layers if isinstance(layer.nest, Mvu)}
    used = []
    for hard in (False, True):
        device = preset("vcu118")
        assert device.fpga is not None
        fabric = replace(device.fpga, hard_memory=hard)
        slow = replace(device, memory_bandwidth=2 * 16 * fabric.clock_hz)  # as a processor's
        board = Board(replace(slow, fpga=fabric))
        made_for = bind_to(design_at(network, 4_000, streamed=streamed), board, "stage0")
        found = fit_design(made_for, board, deep_fifos(made_for))
        assert not hasattr(found, "exceeded")
        assert len({port.bank for port in found.ddr}) == 2
        used.append(found.resources)
    assert used[0] - used[1] == DDR4


def test_what_is_no_engine_is_counted_in_the_sum_of_a_stage() -> None:
    """FIFOs at its inputs belong to no engine."""
    model, x = made("vgg")
    (design,) = designs_of(make_plan(graph_of(model, x), parse_cluster("1xvcu118"), "fpga"))
    inputs = [s for s in design.streams.values() if s.producer is None]
    engines = sum(e.resources.lut for e in design.engines)
    assert inputs
    assert design.resources.lut - engines >= sum(s.token_bits for s in inputs)


def test_every_kernel_at_a_port_takes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a platform a mover for each, with an adapter of a whole port and three arguments."""
    model, x = made("vgg")
    plan = make_plan(graph_of(model, x), parse_cluster("1xu280"), "fpga")
    (design,) = designs_of(plan)
    board, network = board_of(plan, 0), networks(plan)[0]
    movers = connect(design, Site.of(board.fabric, hosted=True)).movers
    way = interconnect(PORT_BITS) + registers(3)
    each = [adapter(PORT_BITS, reads=mover.feeds) + way for mover in movers]
    whole = taken(board, left_of(plan, 0, network))
    monkeypatch.setattr(search, "adapter", lambda *_, **__: Resources())
    for name in ("interconnect", "registers"):
        monkeypatch.setattr(search, name, lambda _: Resources())
    rest = taken(board, left_of(plan, 0, network))
    assert len(movers) == 2
    for k, kind in enumerate(("lut", "ff", "bram36")):
        assert whole[k] - rest[k] == pytest.approx(sum(getattr(one, kind) for one in each))
        assert rest[k] >= 0
    assert rest[1] > 4 * PORT_BITS  # streams, held twice
