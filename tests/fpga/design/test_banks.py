"""Memory ports: who gets which, how many slots, and that nothing is slowed down without need."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from pipec.backends.fpga import banks
from pipec.backends.fpga.banks import READ_LATENCY, SLOTS, banks_of, period, with_banks
from pipec.backends.fpga.cycles import depths_of, processes_of, steady_state
from pipec.backends.fpga.design import StageDesign
from pipec.backends.fpga.fifo import sized
from pipec.backends.fpga.folding import design_at
from pipec.backends.fpga.lowering.layers import Dense
from pipec.backends.fpga.lowering.lower import lower
from pipec.backends.fpga.routing import Load
from pipec.backends.fpga.runs import busy_cycles
from pipec.backends.fpga.search import Board, Search
from pipec.backends.fpga.streaming import ddr_ports
from pipec.cluster.device import Device
from pipec.cluster.presets import preset
from tests.fpga.design.models import graph_of, made


def streaming(interval: int) -> StageDesign:
    """All four dense layers stream their weights."""
    model, x = made("vgg")
    network = lower(graph_of(model, x))
    streamed = {
        layer.name: 2 if layer.name.startswith("conv") else 1
        for layer in network.layers
        if isinstance(layer, Dense)
    }
    design = sized(design_at(network, interval, streamed=streamed))
    return replace(design, ddr=ddr_ports(design))


def narrow(ports: int, bandwidth: float = 38.4e9) -> Device:
    board = preset("vcu118")
    assert board.fpga is not None
    return replace(board, memory_bandwidth=bandwidth, fpga=replace(board.fpga, memory_ports=ports))


HBM = tuple(f"HBM[{k}]" for k in range(32))


@pytest.mark.parametrize(
    ("board", "names"), [("vcu118", ("DDR[0]", "DDR[1]")), ("u280", HBM), ("vcu129", ("DDR[0]",))]
)
def test_ports_have_the_linkers_names(board: str, names: tuple[str, ...]) -> None:
    fabric = preset(board).fpga
    assert fabric is not None
    assert banks_of(fabric) == names


@pytest.mark.parametrize(("ports", "interval"), [(1, 3_000), (2, 1_000), (32, 400)])
def test_slots_are_handed_out_once_and_suffice(ports: int, interval: int) -> None:
    design = with_banks(before := streaming(interval), narrow(ports, 19.2e9 * ports))
    held: dict[str, int] = {}
    for port in design.ddr:
        assert port.slots > 0
        held[port.bank] = held.get(port.bank, 0) + port.slots
    assert max(held.values()) <= SLOTS
    assert len(held) == min(ports, len(design.ddr))
    loads = [e for e in design.engines if isinstance(e.nest, Load)]
    assert len(loads) == 4
    assert {e.depth for e in loads} == {READ_LATENCY + SLOTS}
    assert design.interval == before.interval
    trace = steady_state(processes_of(design), depths_of(design))
    assert trace.interval == design.interval


def test_too_little_bandwidth_slows_the_stage_down_as_predicted() -> None:
    slow = narrow(1, bandwidth=1.6e9)  # an eighth of a beat per cycle
    before = streaming(400)
    assert period(before, slow) == 8 * SLOTS
    design = with_banks(before, slow)
    words = {e.name: busy_cycles(e) for e in design.engines if isinstance(e.nest, Load)}
    assert design.interval == max(words.values()) > before.interval
    trace = steady_state(processes_of(design), depths_of(design))
    assert trace.interval == pytest.approx(design.interval, rel=0.02)


@pytest.mark.parametrize(("slots", "streamed"), [(16, 2), (1, 1)])
def test_no_more_layers_stream_than_ports_have_slots(
    slots: int, streamed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two small layers stream rather than a large one, where there are slots for two."""
    monkeypatch.setattr(banks, "SLOTS", slots)
    sizes = [64, 512, 512, 512, 512, 1024, 1024, 64]
    model = torch.nn.Sequential(*(torch.nn.Linear(a, b) for a, b in pairwise(sizes)))
    board = narrow(1)
    assert board.fpga is not None
    board = replace(board, fpga=replace(board.fpga, bram36=1_800, uram=0, lut=600_000))
    network = lower(graph_of(model, torch.randn(1, 64)))
    assert len(Search("stage", network, Board(board, "float32")).best().ddr) == streamed
