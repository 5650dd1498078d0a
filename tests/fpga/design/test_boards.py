"""Stages joined by links: the slowest of them sets the pace, and links serialise."""

import json
from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from pipec.backends.fpga import boards
from pipec.backends.fpga.boards import cycles_of_boards, pace
from pipec.backends.fpga.cycles import cycles_of
from pipec.backends.fpga.demand import Shortage
from pipec.backends.fpga.design import Port, StageDesign, Stream
from pipec.backends.fpga.designs import designs_of, left_of, networks
from pipec.backends.fpga.engines.base import Engine
from pipec.backends.fpga.engines.map import Map
from pipec.backends.fpga.engines.route import Concat, Fork
from pipec.backends.fpga.engines.steps import Step
from pipec.backends.fpga.fifo import size_fifos
from pipec.backends.fpga.links import Frame, link_cycles
from pipec.backends.fpga.runs import cycles, tokens
from pipec.backends.fpga.search import Search, deep_fifos, fit_design
from pipec.backends.fpga.stagejson import design_of, stage_record
from pipec.cluster.cluster import Cluster, Link, parse_cluster
from pipec.cluster.presets import preset
from pipec.compiler.driver import make_plan
from pipec.errors import BackendError
from pipec.schedule.action import ActionKind
from tests.fpga.design.models import graph_of, made
from tests.fpga.design.staged import within


@given(st.integers(1, 400), st.integers(1, 2_000))
def test_pacing_takes_exactly_the_time_it_is_given(beats: int, frame: int) -> None:
    table = pace(beats, frame)
    assert cycles(table) == max(beats, frame)
    assert tokens(table, 0, written=True) == tokens(table, 0, written=False) == beats


@cache
def stages() -> tuple[StageDesign, ...]:
    """A residual network on three boards: some values skip a board."""
    model, x = made("resnet")
    plan = make_plan(graph_of(model, x), parse_cluster("3xvcu118"), "fpga")
    return tuple(map(as_read, designs_of(plan)))


def crossing(k: int) -> list[Frame]:
    """What crosses from board k to the next."""
    wanted, here = {p.value for p in stages()[k + 1].inputs}, stages()[k]
    return [Frame.of(here.streams[p.stream]) for p in here.outputs if p.value in wanted]


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
    frames = crossing(0)
    sent = sum(f.nbytes for f in frames)
    if len(frames) > 1 or sent % 32 or 32 % frames[0].width:  # 64 bytes each, a header per 16
        sent = sum(64 * (beats + -(-beats // 16)) for beats in map(_beats, frames))
    assert found.interval == pytest.approx(sent / 0.2, rel=1e-3)
    assert found.bottleneck.startswith("link0.")


def _beats(frame: Frame) -> int:
    return -(-frame.tokens // (64 // frame.width))


@pytest.mark.parametrize("flight_us", [0.5, 20.0, 50.0])
@pytest.mark.parametrize(("tokens", "lanes"), [(8_192, 16), (4_096, 4), (8_192, 1)])
def test_credits_bound_what_a_link_far_away_carries(
    tokens: int, lanes: int, flight_us: float
) -> None:
    """Two copies cross; the estimate and the simulation of packets and credits say the same."""
    link, frame = Link(1e12, flight_us * 1e-6), Frame(tokens, 4 * lanes)
    found = cycles_of_boards(copied(tokens, lanes), [link])
    want = max(tokens, link_cycles([frame, frame], link, 200e6))
    assert found.interval == pytest.approx(want, rel=0.01)
    # 32 packets of 16 beats under way, there and back
    slowest = frame.packets * 2 * flight_us * 200 / 32
    near = cycles_of_boards(copied(tokens, lanes), [Link(1e12)]).interval
    assert found.interval == pytest.approx(max(near, slowest), rel=0.06)


def copied(n: int, lanes: int) -> tuple[StageDesign, StageDesign]:
    """A board that sends every token twice, and one that reads both copies side by side."""
    ports = {v: Port(v, v, v, (n, lanes), (0, 1), "float32") for v in "wxyz"}
    fork = Engine("fork", Fork(n, 2), ("w",), ("x", "y"), depth=1)
    join = Engine("join", Map(n, 1, lanes, (Step("add", "in1"),)), ("x", "y"), ("z",), depth=1)
    sent = {v: Stream(v, n, lanes, lanes, depth=2, producer="fork") for v in "xy"}
    read = {v: Stream(v, n, lanes, lanes, depth=2, consumer="join") for v in "xy"}
    given = Stream("w", n, lanes, lanes, consumer="fork")
    found = Stream("z", n, lanes, lanes, producer="join")
    both = ports["x"], ports["y"]
    return (
        StageDesign("here", (fork,), {"w": given, **sent}, (ports["w"],), both),
        StageDesign("there", (join,), {**read, "z": found}, both, (ports["z"],)),
    )


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
def test_a_link_holds_a_window_of_packets(flight: int) -> None:
    """One copy waits on the way till the other is through: in its board's own FIFO, two tokens,
    eight more in front of the link, and 32 packets of 16 beats of 16 tokens, the first of which is
    not drained as a whole."""
    links = [Link(1e12, (flight - 1) / 200e6)]
    room = 2 + 8 + 32 * 16 * 16
    assert cycles_of_boards(forked(room), links).interval >= room
    with pytest.raises(BackendError, match=r"link0\.y\.credit is empty"):
        cycles_of_boards(forked(room + 1), links)


@pytest.mark.parametrize("flight_us", [1, 100])
def test_a_plan_s_timeline_sends_as_links_do(flight_us: int) -> None:
    model, x = made("resnet")
    far = replace(preset("vcu118"), link_latency=flight_us * 1e-6)
    plan = make_plan(graph_of(model, x), Cluster((far,) * 2), "fpga")
    (channel,), timeline = plan.channels, plan.timeline
    assert plan.schedule is not None
    assert timeline is not None
    (stream,) = designs_of(plan)[0].outputs
    frame = Frame.of(designs_of(plan)[0].streams[stream.stream])
    sent = [k for k, a in enumerate(plan.schedule) if a.kind is ActionKind.SEND_F]
    taken = (timeline.end - timeline.begin)[sent]
    link = plan.cluster.link(0, 1)
    want = link_cycles([frame], link, 200e6) / 200e6 + flight_us * 1e-6
    assert taken == pytest.approx(want)
    assert want > link.seconds(frame.nbytes)
    assert channel.value == stream.value


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


def test_a_block_cut_in_two_does_not_deadlock_across_the_link(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both branches cross; each stage alone runs with less than the two together need."""
    monkeypatch.setattr(boards, "WINDOW", 1)  # that the link itself holds little
    graph = graph_of(Block().eval(), torch.randn(1, 2, 24, 24))
    plan = make_plan(graph, parse_cluster("2xvcu118"), "fpga")
    designs = designs_of(plan)
    assert len(designs[1].inputs) == 2
    links = [Link(1e12, 0.0)]
    found = cycles_of_boards([as_read(d) for d in designs], links)
    assert found.interval == max(d.interval for d in designs)
    alone = [as_read(size_fifos(_shallow(d))) for d in designs]
    assert max(cycles_of(r).interval for r in alone) == found.interval
    with pytest.raises(BackendError, match=r"link0\.conv2d\.credit is empty"):
        cycles_of_boards(alone, links)


def test_deeper_fifos_are_counted_and_given_room() -> None:
    """What waits for the other branch lies in LUTs here, and there are few of them."""
    graph = graph_of(Block(16, groups=16).eval(), torch.randn(1, 2, 48, 48))
    vcu118 = preset("vcu118")
    assert vcu118.fpga is not None
    fabric = replace(vcu118.fpga, lut=103_000, bram36=136, uram=0, dsp=940, hard_memory=True)
    small = replace(vcu118, kind="small", fpga=fabric)
    plan = make_plan(graph, Cluster((small, small)), "fpga")
    designs, board = designs_of(plan), left_of(plan, 1, networks(plan)[1])
    for design in designs:
        again = fit_design(design, board, deep_fifos(design))
        assert isinstance(again, StageDesign)
        assert again.resources == design.resources
        assert within(design.resources, design.limits)
    held = max(deep_fifos(designs[1]), key=lambda item: item.bits)
    assert held.owner == "add_in0"
    alone = Search(networks(plan)[1], board).best()
    depth = alone.streams[held.owner].depth
    assert depth < held.depth
    deeper = replace(alone, streams={**alone.streams, held.owner: designs[1].streams[held.owner]})
    assert isinstance(fit_design(deeper, board, deep_fifos(deeper)), Shortage)
    assert designs[1].interval > alone.interval


def as_read(design: StageDesign) -> StageDesign:
    """As ``stage.json`` tells of it."""
    return design_of(json.loads(json.dumps(stage_record(design))))


def _shallow(design: StageDesign) -> StageDesign:
    streams = {n: replace(s, depth=2) for n, s in design.streams.items()}
    return replace(design, streams=streams)
