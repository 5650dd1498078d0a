"""Rules of a few lines that much of the backend reads, on numbers done by hand."""

import pytest

from pipec.backends.fpga.banks import slots_for
from pipec.backends.fpga.cpp import digits
from pipec.backends.fpga.engines.network import integers
from pipec.backends.fpga.engines.parts import lut_ram
from pipec.backends.fpga.engines.steps import Step, clamp_of
from pipec.backends.fpga.engines.tiles import ceil_div, ceil_tiles, divisors
from pipec.backends.fpga.engines.view import merge, standard_order, strides_of
from pipec.backends.fpga.folding import wire_lanes
from pipec.backends.fpga.numbers import kind_of, range_of, roundoff


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
    ],
)  # fmt: skip
def test_by_hand(found: object, want: object) -> None:
    assert found == want
