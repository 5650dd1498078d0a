"""Stages joined by links: the slowest of them sets the pace, and links serialise."""

import json
from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from pipec.backends.fpga.boards import cycles_of_boards, paced
from pipec.backends.fpga.cycles import cycles_of
from pipec.backends.fpga.demand import Shortage
from pipec.backends.fpga.design import Port, StageDesign, Stream
from pipec.backends.fpga.designs import designs_of, networks
from pipec.backends.fpga.engines.base import Engine
from pipec.backends.fpga.engines.route import Concat, Fork
from pipec.backends.fpga.fifo import sized
from pipec.backends.fpga.runs import cycles, tokens
from pipec.backends.fpga.search import Board, Search, deep_fifos, fitted
from pipec.backends.fpga.stagejson import design_of, stage_record
from pipec.cluster.cluster import Cluster, Link, parse_cluster
from pipec.cluster.presets import preset
from pipec.compiler.driver import make_plan
from pipec.errors import BackendError
from tests.fpga.design.models import graph_of, made


@given(st.integers(1, 400), st.integers(1, 2_000))
def test_pacing_takes_exactly_the_time_it_is_given(beats: int, frame: int) -> None:
    table = paced(beats, frame)
    assert cycles(table) == max(beats, frame)
    assert tokens(table, 0, written=True) == tokens(table, 0, written=False) == beats


@cache
def stages() -> tuple[StageDesign, ...]:
    """A residual network on three boards: some values skip a board."""
    model, x = made("resnet")
    plan = make_plan(graph_of(model, x), parse_cluster("3xvcu118"), "fpga")
    return tuple(map(as_read, designs_of(plan)))


def crossing(k: int) -> int:
    """Bytes per frame from board k to the next."""
    wanted, here = {p.value for p in stages()[k + 1].inputs}, stages()[k]
    return sum(here.streams[p.stream].nbytes for p in here.outputs if p.value in wanted)


def test_fast_links_cost_their_flight_alone() -> None:
    alone = [cycles_of(r) for r in stages()]
    near = cycles_of_boards(stages(), [Link(1e12, 0.0)] * 2)
    assert near.interval == max(c.interval for c in alone)
    far = cycles_of_boards(stages(), [Link(1e12, 5e-6)] * 2)
    assert far.interval == near.interval
    assert far.latency == near.latency + 2 * 1_000  # 5 us at 200 MHz, twice
    assert max(c.latency for c in alone) < near.latency


def test_a_slow_link_sets_the_interval_and_is_named() -> None:
    rate = 40e6  # 0.2 bytes per cycle
    found = cycles_of_boards(stages(), [Link(rate, 0.0), Link(1e12, 0.0)])
    assert found.interval == pytest.approx(crossing(0) / 0.2, rel=1e-3)
    assert found.bottleneck.startswith("link0.")


def forked(n: int) -> tuple[StageDesign, StageDesign]:
    """A board that sends every token twice, and one that reads all of one copy, then the other."""
    ports = {v: Port(v, v, v, (n, 1), (0, 1), "float32") for v in "wxyz"}
    fork = Engine("fork", Fork(n, 2), ("w",), ("x", "y"), depth=1)
    join = Engine("join", Concat(1, (n, n)), ("x", "y"), ("z",), depth=1)
    sent = {v: Stream(v, n, 1, 1, depth=2, producer="fork") for v in "xy"}
    read = {v: Stream(v, n, 1, 1, depth=2, consumer="join") for v in "xy"}
    given, found = Stream("w", n, 1, 1, consumer="fork"), Stream("z", 2 * n, 1, 1, producer="join")
    x, y = ports["x"], ports["y"]
    return (
        StageDesign("here", (fork,), {"w": given, **sent}, (ports["w"],), (x, y)),
        StageDesign("there", (join,), {**read, "z": found}, (x, y), (ports["z"],)),
    )


@pytest.mark.parametrize("flight", [1, 51])
def test_a_link_holds_eight_beats_at_each_end_and_those_in_flight(flight: int) -> None:
    """One copy waits on the way till the other is through: in each board's own FIFO, two tokens and
    one in flight, at both ends of the link, where one is in flight from the port, and on it."""
    links = [Link(1e12, (flight - 1) / 200e6)]
    room = (2 + 1) + (8 + 1) + (8 + flight) + (2 + 1)
    assert cycles_of_boards(forked(room), links).interval >= room
    with pytest.raises(BackendError, match=r"link0\.y\.in is full"):
        cycles_of_boards(forked(room + 1), links)


def test_unlike_clocks_are_refused() -> None:
    first, *others = stages()
    with pytest.raises(BackendError, match="unlike clocks"):
        cycles_of_boards([replace(first, clock_mhz=300.0), *others], [Link(1e12, 0.0)] * 2)


class Block(nn.Module):
    """A residual block whose branch sees 13 rows before it writes one."""

    def __init__(self, channels: int = 2, groups: int = 1) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, channels, 1)
        convs = (nn.Conv2d(channels, channels, 7, padding=3, groups=groups) for _ in range(4))
        self.convs = nn.ModuleList(convs)

    def forward(self, x: Tensor) -> Tensor:
        x = y = self.stem(x)
        for conv in self.convs:
            y = torch.relu(conv(y))
        found: Tensor = x + y
        return found


def test_a_block_cut_in_two_does_not_deadlock_across_the_link() -> None:
    """Both branches cross; each stage alone runs with less than the two together need."""
    graph = graph_of(Block().eval(), torch.randn(1, 2, 24, 24))
    plan = make_plan(graph, parse_cluster("2xvcu118"), "fpga")
    designs = designs_of(plan)
    assert len(designs[1].inputs) == 2
    links = [Link(1e12, 0.0)]
    found = cycles_of_boards([as_read(d) for d in designs], links)
    assert found.interval == max(d.interval for d in designs)
    alone = [as_read(sized(_shallow(d))) for d in designs]
    assert max(cycles_of(r).interval for r in alone) == found.interval
    with pytest.raises(BackendError, match=r"link0\.conv2d\.in is full"):
        cycles_of_boards(alone, links)


def test_deeper_fifos_are_counted_and_given_room() -> None:
    """What waits for the other branch lies in LUTs here, and there are few of them."""
    graph = graph_of(Block(16, groups=16).eval(), torch.randn(1, 2, 48, 48))
    vcu118 = preset("vcu118")
    assert vcu118.fpga is not None
    fabric = replace(vcu118.fpga, lut=87_000, bram36=115, uram=0, dsp=900)
    small = replace(vcu118, kind="small", fpga=fabric)
    plan = make_plan(graph, Cluster((small, small)), "fpga")
    designs, board = designs_of(plan), Board(small)
    for design in designs:
        again = fitted(design, board, deep_fifos(design))
        assert isinstance(again, StageDesign)
        assert again.resources == design.resources
        assert design.resources.fits(design.limits)
    held = max(deep_fifos(designs[1]), key=lambda item: item.bits)
    assert held.owner == "add_in0"
    alone = Search(networks(plan)[1], board).best()
    depth = alone.streams[held.owner].depth
    assert depth < held.depth
    deeper = replace(alone, streams={**alone.streams, held.owner: designs[1].streams[held.owner]})
    assert isinstance(fitted(deeper, board, deep_fifos(deeper)), Shortage)
    assert designs[1].interval > alone.interval


def as_read(design: StageDesign) -> StageDesign:
    """As ``stage.json`` tells of it."""
    return design_of(json.loads(json.dumps(stage_record(design))))


def _shallow(design: StageDesign) -> StageDesign:
    streams = {n: replace(s, depth=2) for n, s in design.streams.items()}
    return replace(design, streams=streams)
