"""Memory ports: who gets which, how many slots, and that nothing is slowed down without need."""

import re
from dataclasses import replace
from functools import cache
from itertools import combinations, pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipec.backends.fpga import banks
from pipec.backends.fpga.banks import (
    READ_LATENCY,
    SLOTS,
    assign_banks,
    banks_of,
    ddr_ports,
    period,
    slots_for,
    with_banks,
    with_slots,
)
from pipec.backends.fpga.cycles import network_of, steady_state
from pipec.backends.fpga.design import DdrPort, StageDesign
from pipec.backends.fpga.engines.memory import Load
from pipec.backends.fpga.engines.mvu import Mvu
from pipec.backends.fpga.fifo import size_fifos
from pipec.backends.fpga.folding import design_at
from pipec.backends.fpga.lowering.lower import lower
from pipec.backends.fpga.search import Board, Search, bind_to
from pipec.backends.fpga.training.movers import with_movers
from pipec.backends.fpga.training.update import UPDATED, update_kernel
from pipec.cluster.device import Device
from pipec.cluster.presets import preset
from pipec.errors import BackendError
from tests.fpga.design.models import graph_of, made


@cache
def streaming(interval: int) -> StageDesign:
    """All four dense layers stream their weights."""
    model, x = made("vgg")
    network = lower(graph_of(model, x))
    streamed = {
        layer.name: 2 if layer.name.startswith("conv") else 1
        for layer in network.layers
        if isinstance(layer.nest, Mvu)
    }
    design = size_fifos(design_at(network, interval, streamed=streamed))
    return replace(design, ddr=ddr_ports(design))


def narrow(ports: int, bandwidth: float = 38.4e9) -> Device:
    board = preset("vcu118")
    assert board.fpga is not None
    return replace(board, memory_bandwidth=bandwidth, fpga=replace(board.fpga, memory_ports=ports))


HBM = tuple(f"HBM[{k}]" for k in range(32))


@pytest.mark.parametrize(
    ("board", "names"),
    [
        ("vcu118", ("DDR[0]", "DDR[1]")),
        ("u280", HBM),
        ("vcu129", ("DDR[0]",)),
        ("zcu102", ("HP0", "HP1", "HP2", "HP3", "HPC0", "HPC1")),
    ],
)
def test_ports_have_the_linkers_names(board: str, names: tuple[str, ...]) -> None:
    fabric = preset(board).fpga
    assert fabric is not None
    assert banks_of(fabric) == names


@pytest.mark.parametrize(("ports", "interval"), [(1, 3_000), (2, 1_000), (32, 400)])
def test_slots_are_handed_out_once_and_suffice(ports: int, interval: int) -> None:
    design = with_banks(before := streaming(interval), narrow(ports, 19.2e9 * ports))
    assert isinstance(design, StageDesign)
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
    trace = steady_state(network_of(design)[0], network_of(design)[1])
    assert trace.interval == design.interval


def test_too_little_bandwidth_leaves_no_slots() -> None:
    slow = narrow(1, bandwidth=4.0e9)  # four fifths of it are a quarter of a beat per cycle
    assert period(slow) == 4 * SLOTS
    assert with_banks(streaming(3_000), slow) == ("88 time slots of 64 (24 too many)",)
    assert isinstance(with_banks(streaming(3_000), narrow(2, bandwidth=8.0e9)), StageDesign)
    design = with_banks(before := streaming(10_000), slow)
    assert isinstance(design, StageDesign)
    assert size_fifos(design).interval == before.interval


@given(
    st.lists(st.integers(1, SLOTS), min_size=1, max_size=6).filter(lambda s: sum(s) <= 2 * SLOTS)
)
def test_two_banks_are_filled_wherever_clients_can_be_parted(slots: list[int]) -> None:
    """None only if no half of the clients leaves room for the others, but for a rare puzzle."""
    names = {f"gmem{k}": wanted for k, wanted in enumerate(slots)}
    found = assign_banks(names, dict.fromkeys(("DDR[0]", "DDR[1]"), SLOTS))
    possible = any(
        max(sum(half), sum(slots) - sum(half)) <= SLOTS
        for n in range(len(slots) + 1)
        for half in combinations(slots, n)
    )
    if isinstance(found, tuple):
        assert not possible or sum(slots) > 2 * SLOTS - 4
    else:
        held = [sum(names[n] for n, b in found.items() if b == bank) for bank in found.values()]
        assert max(held) <= SLOTS


def test_no_bank_holds_more_than_there_is_room() -> None:
    slots, sizes = {"a": 1, "b": 1, "c": 1}, {"a": 60, "b": 50, "c": 40}
    free = {"HBM[0]": SLOTS, "HBM[1]": SLOTS}
    found = assign_banks(slots, free, sizes, 100)
    assert isinstance(found, dict)
    assert sorted(sum(sizes[n] for n in sizes if found[n] == b) for b in set(found.values())) in (
        [50, 100],
        [60, 90],
    )
    assert assign_banks(slots, free, sizes, 80) == (
        "3 time slots and 150 bytes of 3 clients do not divide among 2 memory ports of at most "
        "64 slots and 80 bytes",
    )
    assert assign_banks(slots, free, sizes, 74) == ("150 bytes of memory of 148 (2 too many)",)
    over = "65 time slots of one port of 64 (1 too many)"
    assert assign_banks({"a": SLOTS + 1, "b": 1}, free) == (over,)
    board = narrow(4)
    assert isinstance(with_banks(streaming(3_000), board), StageDesign)
    tables = [w.bits // 8 for e in streaming(3_000).engines if isinstance(e.nest, Load)
              for w in e.weights]  # fmt: skip
    enough = replace(board, memory_bytes=4 * max(tables))
    assert isinstance(with_banks(streaming(3_000), enough), StageDesign)
    lacks = with_banks(streaming(3_000), replace(board, memory_bytes=4 * max(tables) - 4))
    most = max(tables)
    assert lacks == (f"{most:,} bytes behind one port of {most - 1:,} (1 too many)",)


def test_a_refusal_names_what_memory_ports_lack() -> None:
    """Weights of 9.4 MiB lie in half a MiB: in all, and the largest layer behind its port."""
    sizes = [64, 512, 512, 512, 512, 1024, 1024, 64]
    model = torch.nn.Sequential(*(torch.nn.Linear(a, b) for a, b in pairwise(sizes)))
    board = narrow(1)
    assert board.fpga is not None
    small = replace(board.fpga, bram36=1_900, uram=0, lut=600_000)
    board = replace(board, fpga=small, memory_bytes=1 << 19)
    network = lower(graph_of(model, torch.randn(1, 64)))
    with pytest.raises(BackendError) as error:
        Search(network, Board(board, "float32")).best()
    found = re.findall(r"([\d,]+) bytes .*? of 524,288 \(([\d,]+) too many\)", str(error.value))
    numbers = [[int(n.replace(",", "")) for n in pair] for pair in found]
    largest, every = 4 * 1024 * 1024, 4 * sum(a * b for a, b in pairwise(sizes))
    assert numbers == [[n, n - (1 << 19)] for n in (every, largest)]


def test_movers_without_time_slots_name_them() -> None:
    """Readers of weights hold all of them, or leave one of a finer table for each of five."""
    board = Board(narrow(1))
    design = bind_to(with_movers(update_kernel(1 << 12, 1.0), UPDATED), board, "update")
    assert len(design.ddr) == 5

    def beside(held: int) -> StageDesign | tuple[str, ...]:
        """Movers beside a reader of weights that holds so many slots."""
        reader = DdrPort("gmem", "load", 512, 0, 0.0, bank="DDR[0]", slots=held)
        return with_slots(replace(design, ddr=(*design.ddr, reader)), board.device)

    lacks = ("5 time slots of 0 (5 too many)", "2 time slots of one port of 0 (2 too many)")
    assert beside(SLOTS) == lacks
    assert isinstance(beside(SLOTS - 5), StageDesign)


@given(st.floats(1e-6, 1.0), st.integers(SLOTS, 20 * SLOTS))
def test_slots_are_the_fewest_that_keep_up(rate: float, rounds: int) -> None:
    slots = slots_for(rate, rounds)
    assert slots / rounds >= rate - 1e-6
    assert slots == 1 or (slots - 1) / rounds < rate


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
    board = replace(board, fpga=replace(board.fpga, bram36=1_900, uram=0, lut=600_000))
    network = lower(graph_of(model, torch.randn(1, 64)))
    assert len(Search(network, Board(board, "float32")).best().ddr) == streamed


@pytest.mark.parametrize(("clock", "rate"), [(100e6, 9.6e9), (200e6, 19.2e9), (300e6, 19.2e9)])
def test_a_processor_s_ports_move_sixteen_bytes_a_cycle(clock: float, rate: float) -> None:
    """Of a memory of 19.2 GB/s no more than its six ports carry at the board's clock."""
    device = preset("zcu102")
    assert device.fpga is not None
    board = replace(device, fpga=replace(device.fpga, clock_hz=clock))
    each = SLOTS * 64 / period(board) * clock  # bytes/s of a port's whole table of slots
    assert 0.8 * rate * 0.99 <= 6 * each <= 0.8 * rate
    assert Board(board).limits.ddr == pytest.approx(0.8 * rate)
