"""What arithmetic costs on the fabric, per element type: DSPs, LUTs, latencies.

Latencies hold up to 250 MHz: at 300, adders that are in no recurrence have 7 stages, products 4.
`benchmarks.hls_check` derives what emitted loops need, and compares depths and pauses with it.

Figures for UltraScale+ at about 200 MHz, full-DSP operators. DSPs and LUTs of fp32 products, sums,
exponentials and reciprocals are those of AMD's synthesis reports, and chains of them add up; other
functions are good to about a factor 1.5. int8: two products with a common operand are one of the
27x18 multiplier (``multiply_pair`` in ``dot.h``); fixed point up to 18x27 bits takes one each.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from pipec.backends.fpga.numbers import bits_of, kind_of, parse_fixed
from pipec.cluster.presets import DSP_PER_MAC

N = TypeVar("N", int, NDArray[np.int64])
ADD, MUL, DIV, ROOT, EXP, POW, PICK, CONVERT, WIDE = 4, 3, 11, 11, 13, 32, 2, 6, 4
"""Cycles of float32 operators, as public reports of Vitis HLS have them (`POW` and `CONVERT`, to or
from a narrow type, assumed), of a choice, and of a product of integers of more than 32 bits."""
MEMORY, ADDRESS = 2, 1
"""Cycles of a word of a memory, and of a sum that is its address."""
PAIR = 4
"""Cycles that two products in one multiplier (`multiply_pair` in ``dot.h``) take beyond one."""


@dataclass(frozen=True)
class Arithmetic:
    """Costs of one element type.

    Attributes:
        mac_dsp: DSPs of a lone multiply-accumulate; ``mul_dsp`` and ``add_dsp`` of its parts.
        mac_lut: LUTs of a multiply-accumulate.
        add_latency: Cycles of a dependent addition: how far apart two additions into one
            accumulator must be.
        mul_latency: Cycles of a multiplication; ``sum_latency`` of an addition in a tree.
        last_latency: Cycles from a sum to the result in its own type, written.
        narrowing_lut: LUTs that take one exact sum to 8 bits: a 27x17 multiplier on the fabric,
            rounding, clamps.
        together: Products with a common operand that take the DSPs of one.
    """

    mac_dsp: float
    mul_dsp: float
    add_dsp: float
    mac_lut: float
    add_latency: int
    mul_latency: int
    sum_latency: int
    last_latency: int
    narrowing_lut: float = 0.0
    together: int = 1

    def multipliers(self, common: N) -> N:
        """How many products take as many DSPs as so many with a common operand.

        Example:
            >>> arithmetic("int8").multipliers(5), arithmetic("float32").multipliers(5)
            (3, 5)
        """
        return -(-common // self.together)


_TABLE = {
    "float32": Arithmetic(DSP_PER_MAC["float32"], 3, 2, 276, 5, MUL, ADD, 1),
    "float16": Arithmetic(DSP_PER_MAC["float16"], 2, 2, 250, 4, MUL + CONVERT, ADD, 2 + CONVERT),
    "bfloat16": Arithmetic(DSP_PER_MAC["bfloat16"], 1, 2, 200, 4, MUL, ADD, 3),
    "int8": Arithmetic(2 * DSP_PER_MAC["int8"], 1, 0, 30, 1, 2, 1, 8, 280.0, together=2),
    "int32": Arithmetic(3, 3, 0, 64, 1, 2, 1, 1),
}


def arithmetic(dtype: str) -> Arithmetic:
    """Costs of an element type; ``ap_fixed<W,I>`` needs one DSP per 27x18 bits.

    Example:
        >>> arithmetic("float32").mac_dsp, arithmetic("ap_fixed<16,6>").mac_dsp
        (5.0, 1)
    """
    if kind_of(dtype) in _TABLE:
        return _TABLE[kind_of(dtype)]
    width = bits_of(dtype)
    dsp = -(-width // 27) * -(-width // 18)
    return Arithmetic(dsp, dsp, 0, 2 * width, 1, WIDE, 1, 5)


def sums_depth(
    dtype: str, terms: int, partial: int, common: int = 0, *, bias: bool = False, more: int = 0
) -> int:
    """Pipeline depth of sums: of terms in a tree, into a register or memory, of partial sums.

    Args:
        dtype: Arithmetic.
        terms: Added at once.
        partial: Sums that are used in turn, and added in a tree at the end.
        common: Products that have one operand in common, of which terms are one each; 0 if they
            are none.
        bias: Whether something is added to the sum.
        more: Cycles of anything else on the way.

    Example:
        >>> sums_depth("int8", 8, 1, 1), sums_depth("float32", 8, 1, 4, bias=True)
        (17, 27)
    """
    cost = arithmetic(dtype)
    levels = (terms - 1).bit_length() + 1 + (partial - 1).bit_length() + bias
    products = cost.mul_latency * (common > 0) + PAIR * (common > 1 and cost.together > 1)
    return ADDRESS + MEMORY + products + cost.sum_latency * levels + more + cost.last_latency


def place_depth(*ways: Sequence[int]) -> int:
    """Cycles that make the place of an element out of a number, by products and sums.

    Each way to it has what is divided by, one after the other (``quotient_of`` in ``base.h``, a
    product and a difference); powers of two cost nothing.

    Example:
        >>> place_depth((4, 8)), place_depth((3,), (6, 7))
        (9, 17)
    """
    return 9 + WIDE * max(sum(n & (n - 1) > 0 for n in way) for way in ways)


_STEPS = {
    "exp": (7, 748, EXP), "log": (9, 700, 15), "pow": (21, 1300, POW), "rpow": (21, 1300, POW),
    "sqrt": (0, 500, ROOT), "rsqrt": (8, 615, ROOT + DIV), "div": (0, 800, DIV),
    "rdiv": (0, 800, DIV), "reciprocal": (8, 115, DIV), "erf": (18, 900, 30),
    "gelu": (29, 1332, 40), "gelu_tanh": (33, 2264, 60), "sigmoid": (17, 1061, 35),
    "tanh": (11, 1400, 40), "silu": (9, 1746, 38), "softplus": (18, 1646, 32),
    "sin": (12, 1500, 20), "cos": (12, 1500, 20), "elu": (12, 1024, 20), "mul": (3, 78, MUL),
    "square": (3, 78, MUL), "sigmoid_grad": (8, 354, 11), "tanh_grad": (8, 354, 11),
    "silu_grad": (30, 1691, 55), "gelu_grad": (50, 2590, 55), "gelu_tanh_grad": (57, 3326, 85),
    "leaky_relu": (3, 158, 5), "add": (2, 198, 5), "sub": (2, 198, 5), "rsub": (2, 198, 5),
}  # fmt: skip
"""fp32 elementwise step to (DSP, LUT, latency) per lane; the others are comparators."""


def step_cost(op: str, dtype: str) -> tuple[float, float, int]:
    """DSPs, LUTs and latency of one elementwise step of a `Map`, per lane.

    What is no fixed point is computed in float32, and so are functions.
    """
    native = {"mul": 2, "square": 2, "leaky_relu": 2, "add": 1, "sub": 1, "rsub": 1}
    if parse_fixed(dtype) is None or (op in _STEPS and op not in native):
        return _STEPS.get(op, (0, 80, PICK))
    width = bits_of(dtype)
    if native.get(op) == 2:
        return (arithmetic(dtype).mul_dsp, width, WIDE)
    return (0, width, 1)


CONVERTED = (3.0, 450.0)
"""DSPs and LUTs per lane that take a fixed-point number to float32 and back."""


def steps_cost(ops: Iterable[str], lanes: int, dtype: str) -> tuple[float, float]:
    """DSPs and LUTs of elementwise steps one after the other."""
    costs = [step_cost(op, dtype) for op in ops]
    return (lanes * sum(c[0] for c in costs), lanes * sum(c[1] for c in costs))
