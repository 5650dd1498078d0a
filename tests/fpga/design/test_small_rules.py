"""Rules of a few lines that much of the backend reads, on numbers done by hand."""

import numpy as np
import pytest

from pipec.backends.fpga.arithmetic import arithmetic, operators, place_depth, sums_depth
from pipec.backends.fpga.banks import slots_for
from pipec.backends.fpga.boards import pace
from pipec.backends.fpga.cpp import digits
from pipec.backends.fpga.engines.base import Layer
from pipec.backends.fpga.engines.fixed import factor
from pipec.backends.fpga.engines.memory import beat_lanes
from pipec.backends.fpga.engines.mvu import dense_cycles
from pipec.backends.fpga.engines.network import integers
from pipec.backends.fpga.engines.outer import Outer
from pipec.backends.fpga.engines.parts import in_tokens, lut_ram
from pipec.backends.fpga.engines.perm import index_lines
from pipec.backends.fpga.engines.steps import Step, clamp_of
from pipec.backends.fpga.engines.tiles import ceil_div, ceil_tiles, divisors
from pipec.backends.fpga.engines.view import (
    View,
    indices,
    merge,
    permutation,
    standard_order,
    strides_of,
)
from pipec.backends.fpga.engines.window import (
    Line,
    Ring,
    Window,
    image_cycles,
    image_rows,
    line_of,
    ring_of,
)
from pipec.backends.fpga.flow import _points
from pipec.backends.fpga.folding import wire_lanes
from pipec.backends.fpga.numbers import kind_of, range_of, roundoff
from pipec.backends.fpga.runs import Loop, Run

NHWC = View.of((1, 2, 3, 5), (0, 2, 3, 1))
RING = Window(1, 18, 18, 2, 4, 3, 3, oh=16, ow=16)
LINE = Window(1, 32, 32, 1, 1, 3, 3, pt=1, pl=1, oh=32, ow=32, kp=9)


@pytest.mark.parametrize(
    ("found", "want"),
    [
        (slots_for(1 / 3, 16), 6),
        (digits("i", (2, 3)),
         ["const int i0 = quotient_of<3, 6>(i);", "const int i1 = remainder_of<3, 6>(i);"]),
        ([integers(given, 2) for given in ([2], 3, [1, 2])], [(2, 2), (3, 3), (1, 2)]),
        (lut_ram(32, 64), 32),
        (clamp_of([Step("relu"), Step("min", "scalar", 6.0)]), (0.0, 6.0)),
        (clamp_of([Step("exp")]), None),
        (ceil_div(7, 2), 4),
        (divisors(12), (1, 2, 3, 4, 6, 12)),
        (ceil_tiles(7), (1, 2, 3, 4, 7)),
        (strides_of((2, 3, 4)), (12, 4, 1)),
        (merge([(2, 12), (3, 4), (4, 1)]), ((24, 1),)),
        (standard_order((1, 64, 56, 56)), (0, 2, 3, 1)),
        (standard_order((1, 197, 768)), (0, 1, 2)),
        ((wire_lanes(3, "float32"), wire_lanes(64, "float32")), (3, 16)),
        ((kind_of("int8<8388608,-24,3>"), kind_of("ap_fixed<16,6>")), ("int8", "ap_fixed<16,6>")),
        ((roundoff("bfloat16"), roundoff("ap_fixed<16,6>")), (0.00390625, 0.00048828125)),
        ((range_of("ap_fixed<8,4>"), range_of("float32")),
         ((-8.0, 7.9375), (-float("inf"), float("inf")))),
        ((factor(0.125, 30), factor(1 / 3, 58), factor(6.0, 30)), ((1, 3), (11, 5), (6, 0))),
        ([beat_lanes(n, "int8") for n in (9, 1, 99)], [16, 4, 64]),
        (int(dense_cycles(10, 8, 8, 0, 32, "int8")), 640),
        (in_tokens(np.arange(6.0).reshape(2, 3), 2).tolist(), [[0, 1], [2, 0], [3, 4], [5, 0]]),
        (index_lines((2, 3), (1, 0))[1:],
         ["const int i1 = remainder_of<2, 6>(i);", "return i0 + i1 * 3;"]),
        (index_lines((3,), (0,), (0,))[-1], "return (2 - i0);"),
        (View.of((1, 8, 5, 5), (0, 2, 3, 1)).atoms, ((25, 1), (8, 25))),
        (permutation(NHWC, View.of((1, 2, 3, 5), (0, 1, 2, 3))), ((15, 2), (1, 0))),
        (indices([(2, 1), (3, 2)]).tolist(), [0, 2, 4, 1, 3, 5]),
        (ring_of(RING), Ring(takes=18, emits=144, period=144, lead=78, start=61, slots=80)),
        (line_of(LINE), Line(pitch=32, idle=0, first=33, end=1057)),
        ([(r.times, r.counts.tolist(), r.codes.tolist())
          for r in image_rows(Window(1, 2, 2, 1, 1, 1, 1, oh=2, ow=2))], [(2, [2], [3])]),
        ((image_cycles(RING), image_cycles(LINE)), (4669, 1057)),
        (pace(5, 7), (Loop(2, (Run(1, 2, 1, 1), Run(1, 1, 1, 1))), Run(1, 1, 1, 1))),
        (_points((Run(3, 2, 1, 1),), 1, 1, 8)[0].tolist(), [[2, 1, 1], [4, 2, 2], [6, 3, 3]]),
        ((operators().add, operators(300.3).add), (5, 7)),
        ([arithmetic(dtype).multipliers(5) for dtype in ("int8", "float32")], [3, 5]),
        ((arithmetic("float32").mac_dsp, arithmetic("ap_fixed<16,6>").mac_dsp), (5.0, 1)),
        ((sums_depth("int8", 8, 1, 1), sums_depth("float32", 8, 1, 4, bias=True)), (17, 33)),
        ((place_depth((4, 8)), place_depth((3,), (6, 7))), (9, 17)),
    ],
)  # fmt: skip
def test_by_hand(found: object, want: object) -> None:
    assert found == want


@pytest.mark.parametrize("target", [1, 12, 60, 100, 200, 500, 10_000])
def test_an_outer_product_meets_its_target_with_the_fewest_multipliers(target: int) -> None:
    """Against all forms: cycles are vectors times both tiles, and the matrix is written."""
    nest = Outer(n=6, rows=8, taps=1, channels=12)
    found = nest.fold(Layer("g", "g", "g", (), 8, 12, nest), target, "float32").nest
    assert isinstance(found, Outer)
    cycles = {
        (pe, simd): 6 * -(-8 // pe) * -(-12 // simd) + 8 * -(-12 // simd)
        for pe in range(1, 9)
        for simd in range(1, 13)
    }
    least = max(min(cycles.values()), target)
    assert cycles[found.pe, found.simd] <= least
    assert found.pe * found.simd == min(a * b for (a, b), c in cycles.items() if c <= least)
