"""Published figures that a whole simulated chain must give."""

import pytest

from pipec.backends.fpga.cycles import latency_of, steady_state
from pipec.backends.fpga.engines.base import nest_table
from pipec.backends.fpga.engines.gear import Dwc
from pipec.backends.fpga.engines.mvu import Mvu
from pipec.backends.fpga.engines.reduce import Reduce
from pipec.backends.fpga.engines.swg import Swg
from pipec.backends.fpga.engines.tiles import ceil_div
from pipec.backends.fpga.runs import Loop, Run, cycles
from pipec.backends.fpga.simulator.native import Process

CONVS = [  # input size, channels in and out, PE, SIMD, whether a 2x2 maximum follows
    (32, 3, 64, 16, 3, False), (30, 64, 64, 32, 32, True), (14, 64, 128, 16, 32, False),
    (12, 128, 128, 16, 32, True), (5, 128, 256, 4, 32, False), (3, 256, 256, 1, 32, False),
]  # fmt: skip
DENSE = [(256, 512, 1, 4), (512, 512, 1, 8), (512, 10, 5, 1)]


class Chain:
    """Processes one behind the other."""

    def __init__(self) -> None:
        self.processes: list[Process] = []
        self.depths: dict[str, int] = {}
        self.last: tuple[str, ...] = ()

    def add(self, nest: Swg | Mvu | Reduce | Dwc, depth: int) -> None:
        name = f"{type(nest).__name__.lower()}{len(self.processes)}"
        out = (f"{name}_out",)
        table = nest_table(nest, 1, 1)
        self.processes.append(Process(name, table, self.last, out, depth=4))
        self.depths[out[0]] = depth
        self.last = out

    def width(self, rows: int, channels: int, have: int, want: int) -> None:
        if have != want:
            self.add(Dwc(rows, 1, channels, have, 1, channels, want), 128)

    def window(self, size: int, channels: int, lanes: int, k: int, stride: int = 1) -> None:
        cf, out = channels // lanes, (size - k) // stride + 1
        groups = cf if stride > 1 else 1
        self.add(
            Swg(1, size, size, cf, lanes, k, k, stride, stride, oh=out, ow=out, groups=groups),
            k * k * cf,
        )


def cnv() -> Chain:
    chain = Chain()
    lanes = 3
    for size, cin, cout, pe, simd, pooled in CONVS:
        chain.width(size * size, cin, lanes, simd)
        chain.window(size, cin, simd, 3)
        chain.add(Mvu((size - 2) ** 2, cout, 9, cin, pe, simd), cout // pe * 2 * size)
        lanes = pe
        if pooled:
            half = (size - 2) // 2
            chain.window(size - 2, cout, pe, 2, 2)
            chain.add(Reduce(half * half * cout // pe, 4, 1, pe), 64)
    for cin, cout, pe, simd in DENSE:
        chain.width(1, cin, lanes, simd)
        chain.add(Mvu(1, cout, 1, cin, pe, simd), cout // pe)
        lanes = pe
    return chain


def test_cnv_runs_at_its_busiest_layer() -> None:
    """FINN CNV-W1A1 as submitted to MLPerf Tiny v0.7: 32,768 cycles per frame (3,052 at 100 MHz).

    Measured at batch 1, host included: 151,178 cycles; the latency must lie below.
    """
    chain = cnv()
    assert steady_state(chain.processes, chain.depths).interval == 32_768
    assert 32_768 < latency_of(chain.processes, chain.depths, {}) < 151_178


@pytest.mark.parametrize(
    ("k", "cin", "cout", "ofm", "published"),
    [(11, 3, 96, 55, 112_283), (5, 96, 256, 23, 373_799), (3, 256, 384, 11, 185_759),
     (3, 384, 384, 11, 278_639), (3, 384, 256, 11, 185_759)],
)  # fmt: skip
def test_systolic_array_takes_scale_sims_cycles(
    k: int, cin: int, cout: int, ofm: int, published: int
) -> None:
    """SCALE-Sim 3, weight stationary, 32 x 32, AlexNet: weights in, pixels through, pipeline out.

    A fold loads 32 rows of weights, takes a pixel per cycle, and drains the skew of both sides.
    """
    rows = columns = 32
    folds = ceil_div(k * k * cin, rows) * ceil_div(cout, columns)
    fold = (Run(rows, 1, 0b10), Run(ofm * ofm, 1, 0b01), Run(1, rows + columns - 2, 0, 1))
    table = (Loop(folds, fold),)
    assert cycles(table) - 1 == published
    weights = Process("weights", (Run(folds * rows, 1, 0, 1),), (), ("w",))
    pixels = Process("pixels", (Run(folds * ofm * ofm, 1, 0, 1),), (), ("x",))
    array = Process("array", table, ("x", "w"), ("y",))
    sink = Process("sink", (Run(folds, 1, 1),), ("y",), ())
    net = [weights, pixels, array, sink]
    trace = steady_state(net, {"w": 2, "x": 2, "y": 2})
    assert trace.interval == published + 1
