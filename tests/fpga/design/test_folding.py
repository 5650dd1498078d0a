"""Folding onto boards: cheapest factors, memories that fit, weights streamed, limits respected."""

import dataclasses
import itertools
import json
import math
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from pipec.backends.fpga.arithmetic import arithmetic
from pipec.backends.fpga.cost import FpgaCost
from pipec.backends.fpga.design import StageDesign
from pipec.backends.fpga.engines.base import Layer, Use, nest_table
from pipec.backends.fpga.engines.mvu import Mvu, dense_cycles
from pipec.backends.fpga.engines.parts import Memory, Table
from pipec.backends.fpga.engines.tiles import ceil_div
from pipec.backends.fpga.folding import design_at
from pipec.backends.fpga.links import Frame, link_cycles
from pipec.backends.fpga.lowering.lower import lower
from pipec.backends.fpga.memory import KINDS, Item, place
from pipec.backends.fpga.runs import cycles
from pipec.backends.fpga.search import Board, Search, bound_interval, fit_design
from pipec.backends.fpga.stagejson import design_of, stage_record
from pipec.backends.fpga.timing import stage_timing
from pipec.cluster.cluster import Link
from pipec.cluster.presets import PRESETS
from pipec.cost.count import count
from pipec.errors import BackendError
from tests.fpga.design.models import MODELS, graph_of, made
from tests.fpga.design.staged import simulate_stage, within
from tests.sampling import each

VCU118 = PRESETS["vcu118"]


def board(precision: str = "float32", **fabric: Any) -> Board:
    """A VCU118 with some figures of its fabric changed."""
    assert VCU118.fpga is not None
    changed = dataclasses.replace(VCU118.fpga, **fabric)
    return Board(dataclasses.replace(VCU118, fpga=changed), precision)


def dense(n: int, out: int, taps: int, cin: int) -> Layer:
    table = Table(lambda: torch.zeros(1, out, taps, cin).numpy())
    use = Use("x", n * taps, cin)
    nest = Mvu(n, out, taps, cin)
    return Layer("d", "d", "", (use,), n, out, nest, tables={"weight": table})


sizes = st.tuples(st.integers(1, 20), st.integers(1, 24), st.sampled_from([1, 9]),
                  st.integers(1, 24))  # fmt: skip


def sums_of(nest: Mvu) -> Iterator[tuple[int, ...]]:
    """Which sum every firing adds to, in the order of the loops of `Mvu`."""
    if nest.block > 1:
        for b, f, s, v in np.ndindex(nest.n // nest.block, nest.nf, nest.sf, nest.block):
            yield b, v, f, s % nest.partial
    for v in range(nest.n if nest.block == 1 else 0):
        if nest.order == "A":
            yield from ((v, f, s % nest.partial) for f, s in np.ndindex(nest.nf, nest.sf))
        else:
            yield from ((v, f, 0) for s, f in np.ndindex(nest.sf, nest.nf))


@settings(max_examples=300, deadline=None)
@given(sizes, st.integers(1, 20_000), st.integers(0, 20), st.sampled_from([200.0, 300.0, 400.0]))
def test_no_sum_meets_its_adder_again_too_early(
    size: tuple[int, int, int, int], target: int, block: int, clock: float
) -> None:
    n, out, taps, cin = size
    layer = dataclasses.replace(dense(n, out, taps, cin), clock_mhz=clock)
    nest = layer.nest.fold(layer, target, "float32", math.gcd(n, block) if block else 0).nest
    assert isinstance(nest, Mvu)
    last, latency = dict[tuple[int, ...], int](), arithmetic("float32", clock).add_latency
    for now, added in enumerate(sums_of(nest)):
        assert now - last.get(added, -latency) >= latency
        last[added] = now


@settings(max_examples=150, deadline=None)
@given(sizes, st.integers(1, 20_000))
def test_factors_are_the_cheapest_that_reach_the_target(
    size: tuple[int, int, int, int], target: int
) -> None:
    n, out, taps, cin = size
    layer = dense(n, out, taps, cin)
    found = layer.nest.fold(layer, target, "int8").nest
    assert isinstance(found, Mvu)

    def busy(pe: int, simd: int) -> int:
        nest = Mvu(n, out, taps, cin, pe, simd)
        assert cycles(nest_table(nest, 1, 1)) == n * nest.nf * nest.sf
        return n * nest.nf * nest.sf

    pairs = list(itertools.product(range(1, out + 1), range(1, cin + 1)))
    reached = [Mvu(n, out, taps, cin, *pair) for pair in pairs if busy(*pair) <= target]
    if reached:
        assert busy(found.pe, found.simd) <= target
        # where many engines are small, LUTs run out first
        few = min(nest.logic("int8")[0] for nest in reached) <= 16

        def price(nest: Mvu) -> tuple[float, ...]:
            dsp, lut = nest.logic("int8")
            return (nest.units, *((lut, dsp) if few else (dsp, lut)))

        assert price(found) == min(map(price, reached))
    else:
        assert busy(found.pe, found.simd) == min(busy(pe, simd) for pe, simd in pairs)


@settings(max_examples=100, deadline=None)
@given(sizes, st.sampled_from([1, 2, 4]), st.integers(1, 4), st.integers(1, 8))
def test_streamed_cycles_equal_the_run_table(
    size: tuple[int, int, int, int], block: int, pe: int, simd: int
) -> None:
    n, out, taps, cin = size[0] * block, *size[1:]
    nest = Mvu(n, out, taps, cin, pe, simd, block=block, streamed=True)
    nf, sf = ceil_div(out, pe), taps * ceil_div(cin, simd)
    assert cycles(nest_table(nest, 1, 2)) == dense_cycles(n, nf, sf, block, pe * simd, "int8")


items = st.lists(
    st.builds(Item, st.just("e"), st.uuids().map(str), st.integers(1, 300), st.integers(1, 9000)),
    min_size=1, max_size=6,
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(items, st.integers(100, 20_000), st.integers(1, 60), st.integers(1, 12))
def test_placement_fits_where_there_is_room(
    found: list[Item], lut: int, bram: int, uram: int
) -> None:
    room = (lut, bram, uram)

    def fits(choice: tuple[int, ...], limit: tuple[float, ...]) -> bool:
        used = [sum(i.costs[k] for i, c in zip(found, choice, strict=True) if c == k)
                for k in range(3)]  # fmt: skip
        return all(u <= r for u, r in zip(used, limit, strict=True))

    kinds = tuple(KINDS.index(kind) for kind in place(found, room))
    choices = list(itertools.product(range(3), repeat=len(found)))
    if not fits(
        kinds, room
    ):  # at most three items come out split, each of which may have had its place
        largest = [sorted((i.costs[k] for i in found), reverse=True)[:3] for k in range(3)]
        tight = tuple(r - sum(x) for r, x in zip(room, largest, strict=True))
        assert not any(fits(c, tight) for c in choices)


def test_a_fifo_that_is_only_reserved_takes_room_and_no_place() -> None:
    model, x = made("excite")
    design = Search(lower(graph_of(model, x)), board()).best()
    plain, reserved = (
        fit_design(design, board(), fifos) for fifos in ([], [Item("elsewhere", "fifo", 512, 4096)])
    )
    assert isinstance(plain, StageDesign)
    assert isinstance(reserved, StageDesign)
    assert set(reserved.streams) == set(plain.streams)


@pytest.mark.parametrize(
    ("name", "precision"),
    each(["resnet", "shuffle", "encoder"], ["float32", "int8", "ap_fixed<16,6>"]),
)
def test_designs_fit_small_boards(name: str, precision: str) -> None:
    """A board scaled down until its DSPs bind: within limits, and near the bound."""
    model, x = made(name)
    network = lower(graph_of(model, x), precision)
    need = arithmetic(precision).mac_dsp
    small = board(precision, dsp=round(300 * max(need, 1)), clock_hz=100e6)
    design = Search(network, small).best()
    assert within(design.resources, design.limits)
    assert design.interval >= bound_interval(network, small)
    assert simulate_stage(design, 4).interval == design.interval


def test_what_a_search_found_for_other_targets_changes_nothing() -> None:
    """Four of them have engines of the same names."""
    model, x = made("resnet")
    network = lower(graph_of(model, x))
    search = Search(network, board())
    for target in (970, 1_200, 1_300, 1_500, 2_000, 2_100):
        assert search.at(target) == Search(network, board()).at(target)


def test_more_dsps_give_a_shorter_interval() -> None:
    model, x = made("resnet")
    network = lower(graph_of(model, x))
    intervals = [Search(network, board(dsp=d)).best().interval for d in (400, 800, 1600, 3200)]
    assert intervals == sorted(intervals, reverse=True)
    assert intervals[0] > 2 * intervals[-1]


def big_linear() -> nn.Module:
    return nn.Sequential(nn.Linear(8192, 4096), nn.ReLU(), nn.Linear(4096, 10))


def test_weights_that_do_not_fit_are_streamed() -> None:
    network = lower(graph_of(big_linear(), torch.randn(1, 8192)))
    design = Search(network, Board(VCU118)).best()
    (port,) = design.ddr
    assert port.bytes_per_frame >= 8192 * 4096 * 4
    assert port.bytes_per_second <= VCU118.memory_bandwidth
    stored = design.engine(port.engine).weights[0]
    assert stored.memory is Memory.DDR
    assert stored.values().shape == stored.shape
    timing = stage_timing(design, VCU118)
    assert "streamed from DDR" in timing.notes[0]
    assert timing.memory_bytes == stored.bits // 8
    assert within(design.resources, design.limits)


def number(text: str) -> int:
    return int(text.replace(",", ""))


@pytest.mark.parametrize(
    ("fabric", "short"),
    [
        ({"bram36": 1_000, "uram": 0, "lut": 100_000, "dsp": 9}, {"DSP"}),
        ({"bram36": 2_000, "uram": 0, "lut": 40_000, "dsp": 4_000}, {"LUT"}),
        ({"bram36": 10, "uram": 0, "lut": 150_000, "dsp": 4_000}, {"BRAM36"}),
    ],
)
def test_a_refusal_names_the_limits_that_are_exceeded(
    fabric: dict[str, int], short: set[str]
) -> None:
    """And no other, each with by how much."""
    model, x = made("resnet")
    with pytest.raises(BackendError) as caught:
        Search(lower(graph_of(model, x)), board("float32", hard_memory=True, **fabric)).best()
    text = str(caught.value)
    assert "does not fit the board" in text
    found = re.findall(r"([\d,]+) ([A-Z]\w+) of ([\d,]+) \(([\d,]+) too many\)", text)
    assert {name for _, name, *_ in found} == short
    for used, _, limit, over in found:
        assert number(used) - number(limit) == number(over) > 0


def test_a_refusal_is_about_weights_in_memory_where_these_fit_no_chip() -> None:
    """Block RAMs would do then; what lacks are LUTs, for the memory controller too."""
    network = lower(graph_of(big_linear(), torch.randn(1, 8192)))
    with pytest.raises(BackendError) as caught:
        Search(network, board(bram36=400, uram=0, lut=90_000)).best()
    got = str(caught.value)
    assert "LUT of" in got
    assert "BRAM36" not in got


def test_a_gpu_is_no_board() -> None:
    model, x = made("resnet")
    gpu = Board(PRESETS["h100"])
    with pytest.raises(BackendError, match="no FPGA"):
        Search(lower(graph_of(model, x)), gpu).best()


@pytest.mark.parametrize("name", MODELS)
def test_record_is_plain_and_reproducible(name: str) -> None:
    texts = []
    for _ in range(2):
        model, x = made(name)
        design = design_at(lower(graph_of(model, x)), 700)
        record = stage_record(design)
        with pytest.raises(BackendError, match="another version"):
            design_of({**record, "schema": 1})
        texts.append(json.dumps(record, allow_nan=False))
    assert texts[0] == texts[1]


def test_link_takes_tokens_over_payload() -> None:
    model, x = made("inception")
    design = design_at(lower(graph_of(model, x)), 700)
    stream = design.streams[design.outputs[0].stream]
    assert stream.nbytes == stream.tokens * stream.lanes * 4
    frame, link = Frame.of(stream), Link(100e6)  # 0.5 bytes per cycle at 200 MHz
    assert frame.whole
    assert link_cycles([frame], link, 200e6) == stream.nbytes * 2
    slow = dataclasses.replace(VCU118, link_bandwidth=1e3)
    assert stage_timing(dataclasses.replace(design, interval=700), slow).bottleneck.startswith(
        "link"
    )


def test_cost_is_a_share_of_the_board() -> None:
    model, x = made("resnet")
    graph = graph_of(model, x)
    counted, cost = count(graph), FpgaCost()
    conv = graph.node("conv2d")
    flops = counted["conv2d"].flops
    usable = VCU118.fpga.dsp * 0.7 / 5 * 200e6 if VCU118.fpga else 0
    assert cost.seconds(conv, counted["conv2d"], VCU118) == pytest.approx(flops / 2 / usable)


def test_streamed_layers_cost_their_bandwidth() -> None:
    graph = graph_of(big_linear(), torch.randn(1, 8192))
    found = FpgaCost().seconds(graph.node("linear"), count(graph)["linear"], VCU118)
    assert found >= 8192 * 4096 * 4 / VCU118.memory_bandwidth
