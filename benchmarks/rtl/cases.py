"""The configurations, chosen before they were first run. Names are by group; none was dropped."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from benchmarks.rtl.case import Case, net
from benchmarks.rtl.finn import window
from benchmarks.rtl.generate import Json
from benchmarks.rtl.nets import Net, Part
from benchmarks.rtl.stages import rigid_stages, sample_cases, stage_cases
from benchmarks.rtl.style import Style
from benchmarks.rtl.tile import Tile
from pipec.backends.fpga.engines.base import Nest
from pipec.backends.fpga.engines.gear import Dwc
from pipec.backends.fpga.engines.map import Map
from pipec.backends.fpga.engines.memory import Load
from pipec.backends.fpga.engines.mvu import Mvu
from pipec.backends.fpga.engines.norm import Norm
from pipec.backends.fpga.engines.perm import Perm
from pipec.backends.fpga.engines.reduce import Reduce
from pipec.backends.fpga.engines.route import Concat, Const, Fork, Repeat, Slice
from pipec.backends.fpga.engines.steps import Step
from pipec.backends.fpga.engines.swg import Swg
from pipec.backends.fpga.engines.tiles import ceil_div
from pipec.backends.fpga.engines.vvu import Vvu
from pipec.backends.fpga.stagejson import stage_record


def same(size: int, cf: int, k: int, stride: int = 1, **more: int) -> Swg:
    """A square window with padding k // 2."""
    out = (size + 2 * (k // 2) - k) // stride + 1
    return Swg(1, size, size, cf, more.pop("lanes", 1), k, k, stride, stride,
               pt=k // 2, pl=k // 2, oh=out, ow=out, **more)  # fmt: skip


def source(name: str, out: str, tokens: int, lanes: int = 1) -> Part:
    """Writes ``tokens`` a frame."""
    return name, Const(tokens, lanes, lanes), (), (out,)


def sink(name: str, into: str, tokens: int, lanes: int = 1) -> Part:
    """Reads ``tokens`` a frame."""
    return name, Map(tokens, lanes, lanes), (into,), (f"{name}_out",)


def wrap(nest: Nest) -> list[Part]:
    """One engine, fed and drained at once."""
    return [("unit", nest, ("x",), ("y",))]


def surround(nest: Nest, reads: int, writes: int, lanes: tuple[int, int] = (1, 1)) -> list[Part]:
    """One engine between a source and a sink."""
    return [
        source("src", "x", reads, lanes[0]),
        ("unit", nest, ("x",), ("y",)),
        sink("snk", "y", writes, lanes[1]),
    ]


def feed_mvu(n: int, rows: int, channels: int, pe: int, simd: int, **more: int | str) -> list[Part]:
    """A matrix-vector unit between a source and a sink."""
    nest = Mvu(n, rows, 1, channels, pe, simd, **more)  # type: ignore[arg-type]
    reads, writes = n * nest.groups * nest.sf, n * nest.groups * nest.nf
    return surround(nest, reads, writes, (simd, pe))


def mac_cases() -> list[Case]:
    """Tiled MAC engines: PE x SIMD products a cycle, weights in a table or streamed."""
    block = Mvu(16, 12, 1, 16, 4, 8, block=4, streamed=True)
    words = block.nf * block.sf
    from_ddr = [
        source("src", "x", 16 * block.sf, 8),
        ("ddr", Load(words, 32, 4, 16), (), ("w",)),
        ("unit", block, ("x", "w"), ("y",)),
        sink("snk", "y", 16 * block.nf, 4),
    ]
    each = Mvu(10, 12, 1, 16, 4, 8, streamed=True)
    every = [from_ddr[0], ("ddr", Load(words, 32, 10, 16), (), ("w",)),
             ("unit", each, ("x", "w"), ("y",)), sink("snk", "y", 10 * each.nf, 4)]  # fmt: skip
    every[0] = source("src", "x", 10 * each.sf, 8)
    b = [*every]
    b[2] = ("unit", replace(each, order="B"), ("x", "w"), ("y",))
    return [
        net("mac01", "FINN's MVU 64x32, PE 4, SIMD 8", Net(wrap(Mvu(10, 32, 1, 64, 4, 8)))),
        net("mac02", "FINN's MVU 576x64, PE 8, SIMD 16", Net(wrap(Mvu(50, 64, 1, 576, 8, 16))), 2),
        net("mac03", "FINN's MVU 128x64, PE 16, SIMD 32", Net(wrap(Mvu(20, 64, 1, 128, 16, 32)))),
        net("mac04", "input stationary", Net(wrap(Mvu(12, 32, 1, 64, 4, 8, order="B")))),
        net("mac05", "initiation interval 2", Net(feed_mvu(12, 12, 16, 3, 4), {"unit": 2})),
        net("mac06", "input stationary, interval 3",
            Net(feed_mvu(12, 12, 16, 3, 4, order="B"), {"unit": 3})),
        net("mac07", "tiles that overhang: 7x10 by PE 3, SIMD 4", Net(feed_mvu(30, 7, 10, 3, 4))),
        net("mac08", "latency 21, four partial sums",
            Net(feed_mvu(9, 6, 32, 2, 4, partial=4), latency={"unit": 21})),
        net("mac09", "two groups", Net(feed_mvu(14, 6, 12, 2, 3, groups=2))),
        net("mac10", "four groups, input stationary, slow source",
            Net(feed_mvu(14, 6, 12, 2, 3, groups=4, order="B"), {"src": 5})),
        net("mac11", "slow sink", Net(feed_mvu(14, 12, 12, 2, 3), {"snk": 7})),
        net("mac12", "bursts of results into FIFOs of 2 and a slow sink",
            Net(feed_mvu(14, 12, 12, 2, 3, order="B"), {"snk": 3}, depths=2)),
        net("mac13", "all rows at once", Net(feed_mvu(25, 6, 24, 6, 2))),
        net("mac14", "all of a vector at once", Net(feed_mvu(25, 24, 8, 2, 8))),
        net("mac15", "weights from DDR, latency 40, once per vector",
            Net(every, latency={"ddr": 40}, depth={"w": 64})),
        net("mac16", "the same, input stationary, FIFO of 2 behind the DDR",
            Net(b, latency={"ddr": 40}, depth={"w": 2})),
        net("mac17", "weights from DDR at one word in 4 cycles, four vectors per pass",
            Net(from_ddr, {"ddr": 4}, latency={"ddr": 60}, depth={"w": 16})),
        net("mac18", "weights from DDR faster than four vectors take them",
            Net(from_ddr, {"ddr": 1}, latency={"ddr": 60}, depth={"w": 2})),
    ]  # fmt: skip


def conv(swg: Swg, rows: int, pe: int, order: str = "A") -> list[Part]:
    """Window generator and matrix-vector unit."""
    groups = swg.groups if swg.kp == 1 else 1
    nest = Mvu(
        swg.batch * swg.oh * swg.ow, rows, swg.taps, swg.cf // groups * swg.lanes, pe,
        swg.lanes * swg.kp, swg.kp, groups, order,
    )  # fmt: skip
    return [("swg", swg, ("x",), ("w",)), ("mvu", nest, ("w",), ("y",))]


def depthwise(size: int, channels: int, k: int, kp: int, stride: int = 1) -> list[Part]:
    """Window generator and vector-vector unit."""
    swg = same(size, channels, k, stride, groups=channels, kp=kp)
    vvu = Vvu(swg.oh * swg.ow, channels, k * k, 1, kp)
    return [("swg", swg, ("x",), ("w",)), ("vvu", vvu, ("w",), ("y",))]


def two_layers() -> list[Part]:
    """Convolution, ReLU, pooling."""
    first = conv(same(9, 2, 3), 4, 2)
    pool = Swg(1, 9, 9, 4, 1, 2, 2, 2, 2, oh=4, ow=4, groups=4)
    return [
        *first,
        ("relu", Map(81, 4, 2, (Step("relu"),)), ("y",), ("r",)),
        ("dwc", Dwc(81, 1, 4, 2, 1, 4, 1), ("r",), ("r1",)),
        ("pool", pool, ("r1",), ("pw",)),
        ("max", Reduce(64, 4, 1), ("pw",), ("z",)),
    ]


def window_cases() -> list[Case]:
    """Sliding windows, alone and before what reads them."""
    dilated = Swg(1, 12, 12, 2, 1, 3, 3, 1, 1, 2, 2, 2, 2, 12, 12)
    oblong = Swg(1, 6, 13, 2, 1, 3, 5, 1, 2, 1, 1, 1, 2, 6, 7)
    point = Swg(1, 11, 11, 2, 1, 1, 1, 2, 2, oh=6, ow=6)
    pool = Swg(1, 12, 12, 4, 1, 2, 2, 2, 2, oh=6, ow=6, groups=4, pad_value=float("-inf"))
    return [
        net("window01", "FINN's window 3x3 on 18x18, 2 tokens", Net(wrap(window(18, 2)))),
        net("window02", "FINN's window 3x3 on 34x34, 4 tokens", Net(wrap(window(34, 4)))),
        net("window03", "3x3 and MVU", Net(conv(same(10, 2, 3), 4, 2))),
        net("window04", "3x3 stride 2 and MVU", Net(conv(same(13, 2, 3, 2), 4, 2))),
        net("window05", "5x5 and MVU, input stationary", Net(conv(same(10, 2, 5), 6, 3, "B"))),
        net("window06", "7x7 stride 2 and MVU", Net(conv(same(14, 1, 7, 2), 4, 4))),
        net("window07", "1x1 stride 2 and MVU", Net(conv(point, 4, 4))),
        net("window08", "3x3 dilation 2", Net(conv(dilated, 4, 4))),
        net("window09", "batch of 3", Net(conv(replace(same(7, 2, 3), batch=3), 4, 4))),
        net("window10", "3x5 on 6x13, stride 1x2", Net(conv(oblong, 4, 4))),
        net("window11", "kp 3: a row of the kernel per token",
            Net(conv(same(11, 1, 3, lanes=3, groups=1, kp=3), 4, 2))),
        net("window12", "kp 9: the window in one token",
            Net(conv(same(11, 1, 3, lanes=2, groups=1, kp=9), 8, 2))),
        net("window13", "kp 7: 7x7 stride 2, the stem of a ResNet",
            Net(conv(same(16, 1, 7, 2, lanes=3, groups=1, kp=7), 8, 4))),
        net("window14", "two groups", Net(conv(same(8, 4, 3, groups=2), 4, 2))),
        net("window15", "depthwise 3x3", Net(depthwise(9, 4, 3, 1))),
        net("window16", "depthwise 3x3, kp 3, stride 2", Net(depthwise(13, 4, 3, 3, 2))),
        net("window17", "max pooling 2x2",
            Net([("swg", pool, ("x",), ("w",)), ("max", Reduce(144, 4, 1), ("w",), ("y",))])),
        net("window18", "initiation interval 2", Net(conv(same(9, 2, 3), 4, 4), {"swg": 2})),
        net("window19", "convolution, ReLU, pooling", Net(two_layers())),
        net("window20", "the same with slow source, sink, FIFOs of 2",
            Net([source("src", "x", 162), *two_layers(), sink("snk", "z", 64)],
                {"src": 4, "snk": 20}, depths=2)),
    ]  # fmt: skip


def residual(skip: int, depths: int, order: str = "A", k: int = 3) -> Net:
    """Fork, a k x k branch on 12x12x2, a skip path of given depth, a join."""
    parts: list[Part] = [
        source("src", "s", 288),
        ("fork", Fork(288, 2), ("s",), ("a", "skip")),
        ("swg", same(12, 2, k), ("a",), ("w",)),
        ("mvu", Mvu(144, 2, k * k, 2, 1, 1, order=order), ("w",), ("y",)),
        ("add", Map(144, 2, 1, (Step("add", "stream"),)), ("y", "skip"), ("z",)),
        sink("snk", "z", 288),
    ]
    return Net(parts, depth={"skip": skip}, depths=depths)


def inception(skip: int, depths: int = 8) -> Net:
    """Three branches of unlike depth, joined channel by channel."""
    parts: list[Part] = [
        ("fork", Fork(200, 3), ("s",), ("a", "b", "c")),
        ("swg_b", same(10, 2, 3), ("b",), ("wb",)),
        ("mvu_b", Mvu(100, 2, 9, 2, 1, 1), ("wb",), ("yb",)),
        ("swg_c", same(10, 2, 5), ("c",), ("wc",)),
        ("mvu_c", Mvu(100, 2, 25, 2, 2, 1), ("wc",), ("yc",)),
        ("dwc_c", Dwc(100, 1, 2, 2, 1, 2, 1), ("yc",), ("yc1",)),
        ("join", Concat(100, (2, 2, 2)), ("a", "yb", "yc1"), ("j",)),
        sink("snk", "j", 600),
    ]
    return Net(parts, depth={"a": skip, "yb": skip}, depths=depths)


def movers() -> list[Part]:
    """Everything that moves data: slice, repeat, transpose, converters."""
    return [
        source("src", "x", 120, 2),
        ("slice", Slice(4, 10, 1, 9, 3, 3), ("x",), ("s",)),
        ("repeat", Repeat(4, 9, 3), ("s",), ("r",)),
        ("dwc", Dwc(36, 1, 6, 2, 1, 6, 4), ("r",), ("d",)),
        ("perm", Perm(4, (9, 6), (1, 0), 6, 4, 9, 5), ("d",), ("p",)),
        ("odd", Dwc(24, 1, 9, 5, 1, 9, 2), ("p",), ("o",)),
        sink("snk", "o", 120, 2),
    ]


def fifo_cases() -> list[Case]:
    """Chains, forks, joins; FIFO depths across the threshold of deadlock."""
    found = [
        net(f"fifo{k:02}", f"residual, skip path of {skip}, FIFOs of {n}, order {order}",
            residual(skip, n, order))
        for k, (skip, n, order) in enumerate(
            [(20, 2, "A"), (24, 2, "A"), (26, 2, "A"), (28, 2, "A"), (34, 2, "A"), (90, 2, "A"),
             (16, 8, "B"), (20, 8, "B"), (24, 8, "B"), (40, 8, "B")], 1)
    ]  # fmt: skip
    for k, (skip, n) in enumerate([(12, 8), (30, 8), (60, 8), (400, 8), (400, 1)], 11):
        found.append(net(f"fifo{k:02}", f"three branches, FIFOs of {n}, two of {skip}",
                         inception(skip, n)))  # fmt: skip
    for k, n in enumerate([1, 2, 16], 16):
        found.append(net(f"fifo{k:02}", f"chain of six engines, FIFOs of {n}",
                         Net(two_layers(), depths=n)))  # fmt: skip
    found.append(net("fifo19", "slice, repeat, converters, transpose", Net(movers())))
    found.append(net("fifo20", "the same, FIFOs of 1, slow sink",
                     Net(movers(), {"snk": 2}, depths=1)))  # fmt: skip
    return found


def tile_cases() -> list[Case]:
    """Bursts from DDR into ping-pong buffers: load, compute, store, latency, buffers, requests."""
    shapes = [
        (20, 30, 10, 4, 2, 2), (64, 80, 16, 40, 2, 2), (100, 50, 20, 100, 2, 2),
        (100, 50, 20, 100, 4, 4), (20, 150, 20, 200, 2, 1), (20, 150, 20, 200, 3, 2),
        (50, 50, 50, 50, 2, 1), (50, 50, 50, 50, 3, 3), (64, 30, 90, 12, 2, 2),
        (33, 34, 35, 64, 4, 2), (100, 100, 1, 4, 1, 1), (1, 7, 1, 30, 4, 4),
    ]  # fmt: skip
    return [
        Case(f"tile{k:02}", "load {}, compute {}, store {}, latency {}, buffers {}, requests {}"
             .format(*shape), partial(Tile, *shape))
        for k, shape in enumerate(shapes, 1)
    ]  # fmt: skip


def norm_cases() -> list[Case]:
    """Row units of two and three passes."""

    def part(rows: int, c: int, lanes: int, passes: int, gap: int) -> list[Part]:
        tokens, gaps = rows * ceil_div(c, lanes), (1, *[gap] * (passes - 1))
        return surround(Norm(rows, c, 1, lanes, "softmax", gaps), tokens, tokens,
                       (lanes, lanes))  # fmt: skip

    return [
        net("norm01", "3 passes of 10, gap 1", Net(part(12, 10, 1, 3, 1))),
        net("norm02", "3 passes of 7 tokens, gap 23", Net(part(12, 20, 3, 3, 23))),
        net("norm03", "2 passes, slow source", Net(part(12, 16, 2, 2, 9), {"src": 5})),
        net("norm04", "3 passes, slow sink, FIFOs of 2",
            Net(part(12, 16, 2, 3, 9), {"snk": 6}, depths=2)),
        net("norm05", "rows of one token, interval 2", Net(part(40, 4, 4, 3, 11), {"unit": 2})),
        net("norm06", "2 passes, interval 3, latency 30",
            Net(part(9, 12, 2, 2, 14), {"unit": 3}, {"unit": 30})),
    ]  # fmt: skip


def cell(
    steps: int, x: int, h: int, lanes: int, rows: int = 1, act: int = 2, every: int = 1
) -> Net:
    """A recurrent cell: h = relu(W [x, h]); ``rows`` batch rows take turns around the loop.

    ``act`` is the activation's latency; a token of x comes every ``every`` cycles.
    """
    turns, cx, ch = steps * rows, x // lanes, h // lanes
    parts: list[Part] = [
        source("src", "x", turns * cx, lanes),
        ("join", Concat(turns, (cx, ch)), ("x", "h"), ("xh",)),
        ("mvu", Mvu(turns, h, 1, x + h, lanes, lanes), ("xh",), ("a",)),
        ("act", Map(turns, h, lanes, (Step("relu"),)), ("a",), ("b",)),
        ("fork", Fork(turns * ch, 2), ("b",), ("h", "y")),
        sink("snk", "y", turns * ch, lanes),
    ]
    initial, depth = {"h": rows * ch}, {"h": rows * ch + 2}
    return Net(parts, {"src": every}, {"act": act}, depth, initial=initial)


def cell_cases() -> list[Case]:
    """Feedback loops with state."""
    return [
        net("cell01", "h 8, x 4, one row", cell(10, 4, 8, 2)),
        net("cell02", "the same, activation of latency 20", cell(10, 4, 8, 2, act=20)),
        net("cell03", "two rows take turns", cell(10, 4, 8, 2, 2, 20)),
        net("cell04", "four rows take turns", cell(8, 4, 8, 2, 4, 20)),
        net("cell05", "one token of state, slow source", cell(20, 4, 4, 4, every=9)),
        net("cell06", "no room for the state's return: deadlock or not",
            replace(cell(10, 4, 8, 2), depth={"h": 2, "xh": 1}, initial={"h": 4})),
    ]  # fmt: skip


def share_port(of: int, shares: Sequence[tuple[int, ...]], depth: int, vectors: int) -> Case:
    """Engines with weights from one DDR port, its cycles dealt out by a table of slots."""
    parts: list[Part] = []
    nest = Mvu(vectors, 8, 1, 8, 2, 4, streamed=True)
    words = nest.nf * nest.sf
    for k in range(len(shares)):
        parts += [
            source(f"src{k}", f"x{k}", vectors * nest.sf, 4),
            (f"ddr{k}", Load(words, 8, vectors, 8), (), (f"w{k}",)),
            (f"mvu{k}", nest, (f"x{k}", f"w{k}"), (f"y{k}",)),
            sink(f"snk{k}", f"y{k}", vectors * nest.nf, 2),
        ]
    ii = {f"ddr{k}": of // len(share) for k, share in enumerate(shares)}
    latency = {f"ddr{k}": 30 for k in range(len(shares))}
    found = Net(parts, ii, latency, {f"w{k}": depth for k in range(len(shares))})
    slots = {f"ddr{k}": {"of": of, "mine": share} for k, share in enumerate(shares)}
    text = f"{len(shares)} engines, {[len(m) for m in shares]} of {of} slots, FIFOs of {depth}"

    def make() -> Json:
        record = stage_record(found.design("ports"))
        engines = [{**e, "slots": slots.get(e["name"])} for e in record["engines"]]
        return {**record, "engines": engines}

    return Case("", text, make)


def port_cases() -> list[Case]:
    """Ports shared by time slots."""
    found = [
        share_port(2, [(0,), (1,)], 16, 12),
        share_port(4, [(0, 2), (1,), (3,)], 16, 12),
        share_port(8, [(0, 2, 4, 6), (1, 5), (3,), (7,)], 16, 10),
        share_port(8, [(0, 2, 4, 6), (1, 5), (3,), (7,)], 1, 10),
        share_port(16, [(0, 4, 8, 12), (1,), (2, 10)], 4, 8),
        share_port(1, [(0,)], 2, 12),
    ]
    return [replace(case, name=f"ports{k:02}") for k, case in enumerate(found, 1)]


def rigid_cases() -> list[Case]:
    """Pipelines that stall as a whole: a few by hand, then every style on every small network."""
    nets = [
        ("chain, FIFOs of 2", Net(two_layers(), depths=2), Style.FLUSH),
        ("chain, FIFOs of 8", Net(two_layers(), depths=8), Style.FLUSH),
        ("chain, FIFOs of 1", Net(two_layers(), depths=1), Style.FLUSH),
        ("residual, skip path of 60", residual(60, 2), Style.FLUSH),
        ("residual, skip path of 90", residual(90, 8), Style.FLUSH),
        ("residual, skip path of 10", residual(10, 8), Style.FLUSH),
        ("three branches", inception(400), Style.FLUSH),
        ("row unit, slow sink",
         Net(surround(Norm(12, 16, 1, 2, "softmax", (1, 9, 9)), 96, 96, (2, 2)), {"snk": 6}),
         Style.FLUSH),
        ("bursts of results into a slow sink",
         Net(feed_mvu(14, 12, 12, 2, 3, order="B"), {"snk": 3}), Style.FLUSH),
        ("chain, FIFOs of 8", Net(two_layers(), depths=8), Style.STALL),
        ("bursts of results into a slow sink",
         Net(feed_mvu(14, 12, 12, 2, 3, order="B"), {"snk": 3}), Style.STALL),
        *[
            (f"{what}, FIFOs of {depth}", found, style)
            for style in (Style.FLUSH, Style.STALL)
            for depth in (1, 2, 4)
            for what, found in rigid_nets(depth)
        ],
    ]  # fmt: skip
    small = [
        net(f"rigid{k:02}", f"{style.value}: {what}", found, style=style)
        for k, (what, found, style) in enumerate(nets, 1)
    ]
    return [*small, *rigid_stages(len(small) + 1)]


def rigid_nets(depth: int) -> list[tuple[str, Net]]:
    """One small network per way in which a pipeline can be starved or held up."""
    norm = Norm(6, 16, 1, 2, "softmax", (1, 9, 9))
    fed = surround(Mvu(12, 8, 1, 12, 2, 3, order="B"), 48, 48, (3, 2))
    weights = Mvu(8, 8, 1, 8, 2, 4, streamed=True)
    ddr = [source("src", "x", 16, 4), ("ddr", Load(8, 8, 8, 8), (), ("w",)),
           ("unit", weights, ("x", "w"), ("y",)), sink("snk", "y", 32, 2)]  # fmt: skip
    loop = cell(6, 4, 8, 2)
    return [
        ("deep multiplier, slow source", Net(fed, {"src": 5}, {"unit": 21}, depths=depth)),
        ("deep multiplier, slow sink", Net(fed, {"snk": 5}, {"unit": 21}, depths=depth)),
        ("fork and join, skip path of 34", residual(34, depth)),
        ("movers", Net(movers(), depths=depth)),
        ("row unit", Net(surround(norm, 48, 48, (2, 2)), depths=depth)),
        ("weights from DDR, latency 30", Net(ddr, latency={"ddr": 30}, depths=depth)),
        ("recurrent cell", replace(loop, depths=depth)),
    ]


def cases() -> list[Case]:
    """All configurations."""
    return [
        *mac_cases(), *window_cases(), *fifo_cases(), *tile_cases(), *norm_cases(),
        *cell_cases(), *port_cases(), *rigid_cases(), *stage_cases(), *sample_cases(),
    ]  # fmt: skip
