"""What arithmetic costs on the fabric, per element type: DSPs, LUTs, stages of pipelines.

Stages are those of the cores that Vitis HLS 2023.2 names in public reports (``..._7_full_dsp`` has
7), at and below the clock of the report. `benchmarks.hls_check`, which is held against reports,
derives what emitted loops need, and compares depths and pauses with it.

DSPs and LUTs are figures for UltraScale+, full-DSP operators. Those of fp32 products, sums,
exponentials and reciprocals are from AMD's synthesis reports, and chains of them add up; other
functions are good to about a factor 1.5. int8: two products with a common operand are one of the
27x18 multiplier (``multiply_pair`` in ``dot.h``); fixed point up to 18x27 bits takes one each.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from pipec.backends.fpga.numbers import bits_of, kind_of, parse_fixed
from pipec.cluster.device import FpgaResources
from pipec.cluster.presets import DSP_PER_MAC

N = TypeVar("N", int, NDArray[np.int64])
PICK, CONVERT, WIDE = 3, 6, 4
"""Cycles of a choice, of float32 to or from a narrow type (assumed), and of a product of integers
of more than 32 bits."""
MEMORY, ADDRESS = 2, 1
"""Cycles of a word of a memory, and of a sum that is its address."""
PAIR = 4
"""Cycles that two products in one multiplier (`multiply_pair` in ``dot.h``) take beyond one."""


class Operators(NamedTuple):
    """Stages of float32 operators at a clock; ``exp`` stands for other functions, too.

    ``apart`` is how far two additions into one word of memory must be apart where that is more
    than `Arithmetic` says, which holds up to 250 MHz.
    """

    add: int
    mul: int
    div: int = 12
    root: int = 12
    exp: int = 14
    pow: int = 33
    apart: int = 0


_BY_CLOCK = {
    220: Operators(5, 4), 250: Operators(7, 4), 300: Operators(7, 4, apart=6),
    400: Operators(10, 6, 16, apart=9),
}  # fmt: skip
CLOCK = FpgaResources.clock_hz / 1e6
"""MHz of a board that does not say its own."""


@lru_cache
def operators(clock_mhz: float = CLOCK) -> Operators:
    """Stages of operators at a clock; a period of 3.33 ns counts as 300 MHz."""
    return _BY_CLOCK[min((c for c in _BY_CLOCK if clock_mhz <= 1.01 * c), default=400)]


@dataclass(frozen=True)
class Arithmetic:
    """Costs of one element type.

    Attributes:
        mac_dsp: DSPs of a lone multiply-accumulate; ``mul_dsp`` and ``add_dsp`` of its parts.
        mac_lut: LUTs of a multiply-accumulate.
        add_latency: Cycles of a dependent addition: how far apart two additions into one
            accumulator must be.
        mul_latency: Cycles of a multiplication of integers, or to make float32 of an operand.
        last_latency: Cycles from a sum to the result in its own type, written.
        real: Whether sums are those of floating-point numbers.
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
    last_latency: int
    narrowing_lut: float = 0.0
    together: int = 1
    real: bool = False

    def time(self, clock_mhz: float) -> tuple[int, int]:
        """Cycles of a product, and of an addition in a tree."""
        cores = operators(clock_mhz)
        return (self.mul_latency + cores.mul, cores.add) if self.real else (self.mul_latency, 1)

    def multipliers(self, common: N) -> N:
        """How many products take as many DSPs as so many with a common operand."""
        return -(-common // self.together)


_TABLE = {
    "float32": Arithmetic(DSP_PER_MAC["float32"], 3, 2, 276, 5, 0, 1, real=True),
    "float16": Arithmetic(DSP_PER_MAC["float16"], 2, 2, 250, 4, CONVERT, 4 + CONVERT, real=True),
    "bfloat16": Arithmetic(DSP_PER_MAC["bfloat16"], 1, 2, 200, 4, 0, 3, real=True),
    "int8": Arithmetic(2 * DSP_PER_MAC["int8"], 1, 0, 30, 1, 2, 8, 280.0, together=2),
    "int32": Arithmetic(3, 3, 0, 64, 1, 2, 1),
}


@lru_cache
def arithmetic(dtype: str, clock_mhz: float = CLOCK) -> Arithmetic:
    """Costs of an element type at a clock; ``ap_fixed<W,I>`` needs one DSP per 27x18 bits."""
    if kind_of(dtype) in _TABLE:
        cost = _TABLE[kind_of(dtype)]
        apart = operators(clock_mhz).apart if cost.real else 0
        return dataclasses.replace(cost, add_latency=max(cost.add_latency, apart))
    width = bits_of(dtype)
    dsp = -(-width // 27) * -(-width // 18)
    return Arithmetic(dsp, dsp, 0, 2 * width, 1, WIDE, 5)


def sums_depth(
    dtype: str, terms: int, partial: int, common: int = 0, *, clock_mhz: float = CLOCK,
    bias: bool = False, more: int = 0,
) -> int:  # fmt: skip
    """Pipeline depth of sums: of terms in a tree, into a register or memory, of partial sums.

    Args:
        dtype: Arithmetic.
        terms: Added at once.
        partial: Sums that are used in turn, and added in a tree at the end.
        common: Products that have one operand in common, of which terms are one each; 0 if they
            are none.
        clock_mhz: Clock.
        bias: Whether something is added to the sum.
        more: Cycles of anything else on the way.
    """
    cost, (product, addition) = arithmetic(dtype), arithmetic(dtype).time(clock_mhz)
    levels = (terms - 1).bit_length() + 1 + (partial - 1).bit_length() + bias
    products = product * (common > 0) + PAIR * (common > 1 and cost.together > 1)
    return ADDRESS + MEMORY + products + addition * levels + more + cost.last_latency


def place_depth(*ways: Sequence[int]) -> int:
    """Cycles that make the place of an element out of a number, by products and sums.

    Each way to it has what is divided by, one after the other (``quotient_of`` in ``base.h``, a
    product and a difference); powers of two cost nothing.
    """
    return 9 + WIDE * max(sum(n & (n - 1) > 0 for n in way) for way in ways)


_STEPS = {
    "exp": (7, 748, "e"), "log": (9, 700, "e"), "pow": (21, 1300, "p"), "rpow": (21, 1300, "p"),
    "sqrt": (0, 500, "r"), "rsqrt": (8, 615, "rd"), "div": (0, 800, "d"), "rdiv": (0, 800, "d"),
    "reciprocal": (8, 115, "d"), "erf": (18, 900, "ee"), "gelu": (29, 1332, "eemma"),
    "gelu_tanh": (33, 2264, "eemmmmmaaa"), "sigmoid": (17, 1061, "nead"),
    "tanh": (11, 1400, "nead"), "silu": (9, 1746, "eadm"), "softplus": (18, 1646, "eae"),
    "sin": (12, 1500, "e"), "cos": (12, 1500, "e"), "convert": (3, 450, ""),
    "elu": (12, 1024, "eam"), "mul": (3, 78, "m"), "square": (3, 78, "m"),
    "sigmoid_grad": (8, 354, "amm"), "tanh_grad": (8, 354, "amm"),
    "silu_grad": (30, 1691, "eadmmmaa"), "gelu_grad": (50, 2590, "eemmmmaa"),
    "gelu_tanh_grad": (57, 3326, "eemmmmmmmmaaaaa"),
    "leaky_relu": (3, 158, "mc"), "add": (2, 198, "a"), "sub": (2, 198, "a"), "rsub": (2, 198, "a"),
}  # fmt: skip
"""fp32 elementwise step to DSPs and LUTs per lane, and the operators one after the other by their
first letters, ``n`` a negation and ``c`` a comparison and a choice, which the others are;
``convert`` takes a fixed-point number to float32 and back."""
_NATIVE = {"mul": WIDE, "square": WIDE, "leaky_relu": WIDE, "add": 1, "sub": 1, "rsub": 1}
"""Cycles of steps that fixed-point numbers take as they are; functions are computed in float32."""


def step_cost(op: str, dtype: str) -> tuple[float, float]:
    """DSPs and LUTs of one elementwise step of a `Map`, per lane."""
    if not _is_native(op, dtype):
        return _STEPS.get(op, (0, 80))[:2]
    width = bits_of(dtype)
    return (arithmetic(dtype).mul_dsp * (_NATIVE.get(op) == WIDE), width)


def step_depth(op: str, dtype: str, clock_mhz: float = CLOCK) -> int:
    """Stages of one elementwise step of a `Map`."""
    if _is_native(op, dtype):
        return _NATIVE.get(op, 1)
    cores = operators(clock_mhz)
    stages = {"a": cores.add, "m": cores.mul, "d": cores.div, "r": cores.root, "e": cores.exp,
              "p": cores.pow, "c": PICK, "n": 1}  # fmt: skip
    return sum(stages[letter] for letter in _STEPS.get(op, (0, 0, "c"))[2])


def _is_native(op: str, dtype: str) -> bool:
    return parse_fixed(dtype) is not None and (op in _NATIVE or op not in _STEPS)


def steps_cost(ops: Iterable[str], lanes: int, dtype: str) -> tuple[float, float]:
    """DSPs and LUTs of elementwise steps one after the other."""
    costs = [step_cost(op, dtype) for op in ops]
    return (lanes * sum(c[0] for c in costs), lanes * sum(c[1] for c in costs))
