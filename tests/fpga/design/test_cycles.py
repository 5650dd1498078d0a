"""The simulator against closed forms, published figures, and a cycle-by-cycle oracle."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipec.backends.fpga.cycles import cycles_of, latency_of, network_of, simulate_design
from pipec.backends.fpga.engines.base import busy_cycles, nest_table
from pipec.backends.fpga.engines.gear import Dwc
from pipec.backends.fpga.engines.map import Map
from pipec.backends.fpga.engines.matmul import Matmul
from pipec.backends.fpga.engines.mvu import Mvu
from pipec.backends.fpga.engines.norm import ROW_OPS, Norm
from pipec.backends.fpga.engines.perm import Perm
from pipec.backends.fpga.engines.reduce import Reduce
from pipec.backends.fpga.engines.route import Concat, Fork
from pipec.backends.fpga.engines.swg import Swg
from pipec.backends.fpga.engines.tiles import ceil_div
from pipec.backends.fpga.engines.vvu import Vvu
from pipec.backends.fpga.engines.window import image_cycles, image_rows, line_of
from pipec.backends.fpga.fifo import busiest, size_fifos
from pipec.backends.fpga.folding import design_at
from pipec.backends.fpga.lowering.lower import lower
from pipec.backends.fpga.runs import Loop, Run, cycles, tokens
from pipec.backends.fpga.simulator.native import Process, simulate
from pipec.errors import BackendError
from tests.fpga.design.models import MODELS, graph_of, made
from tests.fpga.design.naive import naive
from tests.fpga.design.staged import simulate_stage

TURN_ROUND = 1
"""Cycle between two frames in FINN's window generator."""


@pytest.mark.parametrize(("size", "cf", "rtl"), [(18, 2, 4_670), (34, 4, 37_114)])
def test_window_generator_equals_finns_rtl(size: int, cf: int, rtl: int) -> None:
    """Steady cycles per frame of FINN's ConvolutionInputGenerator_rtl, 3x3, in Verilator."""
    nest = Swg(1, size, size, cf, 4, 3, 3, oh=size - 2, ow=size - 2)
    assert image_cycles(nest) + TURN_ROUND == rtl
    assert cycles(nest_table(nest, 1, 1)) == image_cycles(nest)


@pytest.mark.parametrize(
    ("mw", "mh", "pe", "simd", "n", "formula"),
    [(64, 32, 4, 8, 10, 640), (576, 64, 8, 16, 50, 14_400), (128, 64, 16, 32, 20, 320)],
)
@pytest.mark.parametrize("order", ["A", "B"])
def test_mvu_equals_finns_formula(
    mw: int, mh: int, pe: int, simd: int, n: int, formula: int, order: str
) -> None:
    nest = Mvu(n, mh, 1, mw, pe, simd, order=order)
    assert cycles(nest_table(nest, 1, 1)) == formula
    assert tokens(nest_table(nest, 1, 1), 0, written=False) == n * mw // simd
    assert tokens(nest_table(nest, 1, 1), 0, written=True) == n * mh // pe


def test_zhang_fpga15_alexnet_on_64_by_7() -> None:
    """Zhang et al., FPGA'15: five layers of AlexNet on Tm=64, Tn=7; fill of 20 per tile."""
    layers = [(3, 48, 55, 11, 0), (48, 128, 27, 5, 20), (256, 192, 13, 3, 20),
              (192, 192, 13, 3, 20), (192, 128, 13, 3, 20)]  # fmt: skip
    plain, found = 0, []
    for n, m, size, k, fill in layers:
        nest = Mvu(size * size, m, k * k, n, pe=64, simd=7)
        busy = cycles(nest_table(nest, 1, 1))
        plain += busy
        found.append(busy + fill * ceil_div(m, 64) * ceil_div(n, 7))
    assert found == [366_025, 255_430, 171_051, 129_444, 86_296]
    assert sum(found) == 1_008_246
    assert plain == 1_002_946


def test_cnv_folding_has_interval_32768() -> None:
    """FINN CNV-W1A1 as submitted to MLPerf Tiny v0.7 (PE, SIMD per layer)."""
    convs = [(30, 3, 64, 16, 3), (28, 64, 64, 32, 32), (12, 64, 128, 16, 32),
             (10, 128, 128, 16, 32), (3, 128, 256, 4, 32), (1, 256, 256, 1, 32)]  # fmt: skip
    dense = [(256, 512, 1, 4), (512, 512, 1, 8), (512, 10, 5, 1)]
    nests = [Mvu(s * s, out, 9, cin, pe, simd) for s, cin, out, pe, simd in convs]
    nests += [Mvu(1, out, 1, cin, pe, simd) for cin, out, pe, simd in dense]
    busy = [cycles(nest_table(nest, 1, 1)) for nest in nests]
    assert busy == [32_400, 28_224, 20_736, 28_800, 20_736, 18_432, 32_768, 32_768, 1_024]
    assert sum(busy) == 215_888


geometry = st.tuples(
    st.sampled_from([1, 3, 5, 7]), st.sampled_from([1, 2]), st.booleans(), st.integers(7, 20),
    st.sampled_from([1, 4]),
)  # fmt: skip


@settings(max_examples=80, deadline=None)
@given(geometry)
def test_window_closed_form(case: tuple[int, int, bool, int, int]) -> None:
    k, s, same, w, cf = case
    p = k // 2 if same else 0
    out = (w + 2 * p - k) // s + 1
    nest = Swg(1, w, w, cf, 1, k, k, s, s, 1, 1, p, p, out, out)
    exact = image_cycles(nest)
    assert tokens(nest_table(nest, 1, 1), 0, written=False) == nest.reads
    assert tokens(nest_table(nest, 1, 1), 0, written=True) == nest.writes
    assert exact >= max(nest.reads, nest.writes)
    if nest.writes >= nest.reads and k > 1 and w >= 9:
        fill, window = ((k - 1 - p) * w + k - p) * cf, k * k * cf
        early = nest.writes + max(0, fill - window) + 1 - exact
        least = (
            0 if s == 1 or same else -3 * k
        )  # rows are read at one pace, windows end before them
        assert least <= early <= 1


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_every_window_generator_moves_all_tokens(data: st.DataObject) -> None:
    """Any padding, stride and dilation: an image in, its windows out; lines have a closed form."""

    def side() -> tuple[int, int, int, int, int, int]:
        k, s, d = (data.draw(st.integers(1, most)) for most in (4, 3, 2))
        size, before, behind = (data.draw(st.integers(low, 9)) for low in (1, 0, 0))
        extent = (k - 1) * d + 1
        before, behind = min(before, extent), max(behind, extent - size - before)
        return size, k, s, d, before, (size + before + behind - extent) // s + 1

    (h, kh, sh, dh, pt, oh), (w, kw, sw, dw, pl, ow) = side(), side()
    cf, kp = data.draw(st.sampled_from([1, 2, 5])), data.draw(st.sampled_from([1, kw, kh * kw]))
    groups = cf if kp > 1 else data.draw(st.sampled_from([1, cf]))
    nest = Swg(1, h, w, cf, 1, kh, kw, sh, sw, dh, dw, pt, pl, oh, ow, groups, kp)
    table = nest_table(nest, 1, 1)
    assert tokens(table, 0, written=False) == nest.reads
    assert tokens(table, 0, written=True) == nest.writes
    assert len(image_rows(nest)) <= oh + 2
    if nest.is_line:
        assert image_cycles(nest) == line_cycles(nest)


def line_cycles(nest: Swg) -> int:
    """Firings of one image on a line: window by window, row by row, then what is left to read."""
    line, steps = line_of(nest), nest.taps // nest.kp
    pixel = (nest.cf - 1) * steps  # all tokens of a window's last pixel but one
    inner = pixel + max((nest.sw - 1) * nest.cf + 1, steps)
    row = nest.sh * line.pitch - (nest.ow - 1) * nest.sw
    last = line.end - line.first - (nest.oh - 1) * nest.sh * line.pitch - (nest.ow - 1) * nest.sw
    turns = (nest.oh - 1) * max((row - 1) * nest.cf + 1, steps)
    turns += max((last - 1) * nest.cf + 1, steps)
    return line.first * nest.cf + nest.oh * ((nest.ow - 1) * inner + pixel) + turns


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.integers(1, 9), st.integers(1, 9), st.integers(1, 30))
def test_width_converter_needs_no_more_than_its_wider_side(
    rows: int, lanes_in: int, lanes_out: int, channels: int
) -> None:
    nest = Dwc(rows, 1, channels, lanes_in, 1, channels, lanes_out)
    table = nest_table(nest, 1, 1)
    reads, writes = ceil_div(channels, lanes_in), ceil_div(channels, lanes_out)
    assert tokens(table, 0, written=False) == rows * reads
    assert tokens(table, 0, written=True) == rows * writes
    assert max(reads, writes) <= cycles(table) / rows <= max(reads, writes) + 1


def branch(depth: int, order: str = "A") -> list[Process]:
    """12x12 maps of two tokens per pixel: a 3x3 branch and a skip path, added."""
    pixels, cf = 144, 2
    swg = Swg(1, 12, 12, cf, 1, 3, 3, pt=1, pl=1, oh=12, ow=12)
    mvu = Mvu(pixels, 2, 9, 2, 1, 1, order=order)
    return [
        Process("fork", nest_table(Fork(pixels * cf, 2), 1, 1), ("x",), ("a", "skip"), depth),
        Process("swg", nest_table(swg, 1, 1), ("a",), ("w",), depth),
        Process("mvu", nest_table(mvu, 1, 1), ("w",), ("y",), depth),
        Process("add", nest_table(Map(pixels, 2), 1, 2), ("y", "skip"), ("z",), depth),
    ]


@pytest.mark.parametrize(("depth", "order", "n", "least"), [(1, "A", 2, 28), (4, "A", 2, 25),
                                                            (7, "B", 8, 22)])  # fmt: skip
def test_skip_path_threshold_is_sharp(depth: int, order: str, n: int, least: int) -> None:
    depths = dict.fromkeys(["x", "a", "w", "y", "z"], n)
    net = branch(depth, order)
    with pytest.raises(BackendError) as caught:
        simulate(net, {**depths, "skip": least - 1}, 2)
    assert "fork waits: skip is full" in str(caught.value)
    assert "add waits: y is empty" in str(caught.value)
    simulate(net, {**depths, "skip": least}, 2)
    assert naive(net, {**depths, "skip": least - 1}, 2) is None
    assert naive(net, {**depths, "skip": least}, 2) is not None
    best = simulate(net, {**depths, "skip": 500}, 3).interval
    assert 5_184 <= best <= 5_200  # the MVU: 144 * 18 * 2


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_agrees_with_the_cycle_by_cycle_oracle(data: st.DataObject) -> None:
    """Every handshake cycle and every deadlock verdict, on nets with a fork and a join."""
    size, k = data.draw(st.integers(3, 6)), data.draw(st.sampled_from([1, 3]))
    ii, order = data.draw(st.integers(1, 3)), data.draw(st.sampled_from(["A", "B"]))
    lanes = data.draw(st.sampled_from([1, 2, 3]))
    pixels, channels = size * size, 4
    swg = Swg(1, size, size, 4, 1, k, k, pt=k // 2, pl=k // 2, oh=size, ow=size)
    mvu = Mvu(pixels, channels, k * k, channels, lanes, 1, order=order)
    dwc = Dwc(pixels, 1, channels, lanes, 1, channels, 1)
    norm = Norm(pixels, channels, 1, 1, "softmax", (1, 2, 2))
    parts = [
        ("fork", Fork(pixels * channels, 2), ("x",), ("a", "skip")),
        ("swg", swg, ("a",), ("w",)),
        ("mvu", mvu, ("w",), ("y",)),
        ("dwc", dwc, ("y",), ("y1",)),
        ("norm", norm, ("skip",), ("s1",)),
        ("join", Concat(pixels, (channels, channels)), ("y1", "s1"), ("j",)),
        (
            "perm",
            Perm(size, (size, 2 * channels), (1, 0), 2 * channels, 1, size, 1),
            ("j",),
            ("p",),
        ),
        ("sum", Reduce(1, 2 * channels * pixels, 1, op="sum"), ("p",), ("z",)),
    ]
    processes = [
        Process(name, nest_table(nest, data.draw(st.sampled_from([1, ii])), len(ins)), ins, outs,
                data.draw(st.integers(1, 5)))
        for name, nest, ins, outs in parts
    ]  # fmt: skip
    streams = {s for p in processes for s in (*p.inputs, *p.outputs)}
    depths = {s: data.draw(st.integers(1, 9)) for s in sorted(streams)}
    depths["skip"] = data.draw(st.integers(1, 60))
    want = naive(processes, depths, 2)
    if want is None:
        with pytest.raises(BackendError, match="deadlock"):
            simulate(processes, depths, 2)
        return
    got = simulate(processes, depths, 2, record=True).handshakes
    assert {s: list(t) for s, t in got.items()} == want


@pytest.mark.parametrize("name", ["encoder", "mobile"])
def test_engines_multiply_no_faster_than_they_have_units(name: str) -> None:
    model, x = made(name)
    network = lower(graph_of(model, x))
    for target in (1, 2_000, 1 << 40):
        design = design_at(network, target)
        assert sum(e.nest.macs for e in design.engines) == network.macs
        for engine in design.engines:
            assert engine.nest.units * busy_cycles(engine) >= engine.nest.macs
            assert bool(engine.nest.units) == isinstance(engine.nest, Matmul | Mvu | Vvu)
            if engine.nest.units == 1 and isinstance(engine.nest, Mvu | Vvu):
                assert busy_cycles(engine) == engine.nest.macs


@pytest.mark.parametrize("name", MODELS)
def test_sized_fifos_reach_the_busiest_engine(name: str) -> None:
    model, x = made(name)
    network = lower(graph_of(model, x))
    for target in (1, 1_500):
        design = size_fifos(design_at(network, target))
        assert simulate_stage(design, 4).interval == design.interval
        assert latency_of(*network_of(design)) == pytest.approx(design.latency, rel=0.25)


@pytest.mark.parametrize(("name", "target"), [("resnet", 1_500), ("excite", 500)])
def test_closed_forms_and_simulation_call_the_same_engine_slowest(name: str, target: int) -> None:
    """Of several that are busy all the time."""
    design = size_fifos(design_at(lower(graph_of(*made(name))), target))
    longest, slowest = busiest(design)
    assert sum(busy_cycles(engine) == longest for engine in design.engines) > 1
    assert cycles_of(design).bottleneck == slowest


def test_simulated_designs_say_so() -> None:
    model, x = made("vgg")
    design = size_fifos(design_at(lower(graph_of(model, x)), 2_000))
    exact = simulate_design(design)
    assert (exact.simulated, exact.interval) == (True, design.interval)
    alone = simulate(*network_of(design)[:2], rigid=True, call=True)
    assert exact.latency == alone.latency >= simulate_stage(design, 1).latency


def test_stalls_are_charged_to_the_stream_that_caused_them() -> None:
    slow = Process("slow", (Run(10, 5, 1),), ("x",))
    fast = Process("fast", (Loop(2, (Run(5, 1, 0, 1),)),), (), ("x",))
    trace = simulate([fast, slow], {"x": 2}, 1)
    assert trace.flows["x"].empty + trace.flows["x"].full > 0
    assert trace.ends == (47,)


PASSES = {"softmax": 3, "log_softmax": 3, "layer_norm": 3, "rms_norm": 2, "lrn": 2,
          "softmax_gradient": 2, "log_softmax_gradient": 2, "layer_norm_gradient": 4}  # fmt: skip


@pytest.mark.parametrize("op", ROW_OPS)
def test_a_row_unit_passes_over_a_row_as_often_as_it_has_loops(op: str) -> None:
    """As in ``norm.h`` and ``rowgrad.h``; reading and writing are a pass each."""
    nest = Norm(6, 12, op=op)
    assert nest.passes == PASSES[op]
    (loop,) = nest.runs(1, 1)
    assert isinstance(loop, Loop)
    assert cycles(loop.body) == PASSES[op] * 12
