"""Fixed-point numbers in engines: whole numbers that stay exact, rounded once at the end."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from pipec.backends.fpga.engines.steps import Step
from pipec.backends.fpga.numbers import parse_fixed

_WIDEST = 62
"""Bits, without the sign, that a whole number may take: C++ computes in ``int64_t``."""


@dataclass(frozen=True)
class Exact:
    """A whole number in C++ that stands for a real one.

    Attributes:
        text: The expression, of type ``int64_t``.
        fraction: Bits behind the point: the number is ``text / 2**fraction``.
        bits: Bits of the largest magnitude, ``2**bits``.
    """

    text: str
    fraction: int
    bits: int

    @classmethod
    def raw(cls, name: str, dtype: str) -> Self:
        """A variable of a fixed-point type."""
        width, integer = parse_fixed(dtype) or (0, 0)
        return cls(f"int64_t({name}.raw)", width - integer, width - 1)

    @classmethod
    def constant(cls, value: float) -> Self | None:
        """A number that float32 holds; None if it is not finite."""
        number = float(np.float32(value))
        if not math.isfinite(number):
            return None
        over, under = number.as_integer_ratio()
        return cls(f"int64_t({over})", under.bit_length() - 1, abs(over).bit_length())

    def scale(self, fraction: int) -> Self:
        """The same number with at least as many bits of fraction."""
        more = fraction - self.fraction
        if more <= 0:
            return self
        return type(self)(f"{self.text} * (int64_t(1) << {more})", fraction, self.bits + more)


_ALONE = {"relu": "{x} > 0 ? {x} : 0", "abs": "{x} < 0 ? -{x} : {x}", "neg": "-{x}"}
_ALIGNED = {
    "add": "{x} + {y}", "sub": "{x} - {y}", "rsub": "{y} - {x}", "max": "{x} > {y} ? {x} : {y}",
    "min": "{x} < {y} ? {x} : {y}",
}  # fmt: skip
"""Steps of two numbers with as many bits of fraction."""


def _product(x: Exact, y: Exact) -> Exact:
    return Exact(f"{x.text} * {y.text}", x.fraction + y.fraction, x.bits + y.bits)


def chain(steps: Sequence[Step], dtype: str) -> list[str] | None:
    """The body of an elementwise function in whole numbers: C++ lines.

    Steps are on ``x``; operands are called ``y`` from a stream and ``tK`` from a table, all of the
    type of the result. None if that is not fixed-point, or a step needs floating point: a function
    such as exp, a division, more bits than 62.
    """
    if parse_fixed(dtype) is None:
        return None
    lines = list[str]()
    x = Exact.raw("x", dtype)
    for k, step in enumerate(steps):
        now = replace(x, text=f"x{k}")
        lines.append(f"const int64_t {now.text} = {x.text};")
        found = _step(step, k, now, dtype)
        if found is None or found.bits > _WIDEST:
            return None
        x = found
    fraction = Exact.raw("x", dtype).fraction
    x = x.scale(fraction)
    if x.bits > _WIDEST:
        return None
    return [*lines, f"return T::of<{x.fraction - fraction}>({x.text});"]  # half to even


def _step(step: Step, k: int, x: Exact, dtype: str) -> Exact | None:
    """A step on a variable; None if it needs floating point."""
    op, value = step.op, step.value
    y = Exact.raw("y" if step.operand == "stream" else f"t{k}", dtype)
    if op in _ALONE:
        return replace(x, text=_ALONE[op].format(x=x.text))
    if op == "square":
        return _product(x, x)
    if op == "div" and step.operand == "scalar" and abs(math.frexp(value)[0]) == 0.5:
        op, value = "mul", 1 / value  # only a power of two has an inverse without rounding
    if step.operand == "scalar" or op == "leaky_relu":
        known = Exact.constant(value)
        if known is None:
            return None
        y = known
    if op == "mul":
        return _product(x, y)
    if op == "leaky_relu":
        low, high = _product(x, y), x.scale(x.fraction + y.fraction)
        text = f"{x.text} > 0 ? {high.text} : {low.text}"
        return Exact(text, low.fraction, max(low.bits, high.bits))
    if op not in _ALIGNED:
        return None
    fraction = max(x.fraction, y.fraction)
    x, y = x.scale(fraction), y.scale(fraction)
    return Exact(_ALIGNED[op].format(x=x.text, y=y.text), fraction, max(x.bits, y.bits) + 1)


def factor(value: float, beside: int) -> tuple[int, int]:
    """The factor of a sum, as ``whole / 2**shift``; the whole number has 24 bits at most.

    The sum takes ``beside`` of the 62 bits that the product may.
    """
    bits = max(1, min(24, _WIDEST - beside))
    shift = bits - math.frexp(value)[1]
    whole = round(math.ldexp(float(value), shift))
    while shift > 0 and whole and whole % 2 == 0:
        whole, shift = whole // 2, shift - 1
    return (whole << -shift, 0) if shift < 0 else (whole, shift)


def finish_body(value: float, terms: int, dtype: str) -> list[str] | None:
    """The body that scales a sum of so many products and rounds it.

    None if floating point is needed.
    """
    form = parse_fixed(dtype)
    if form is None:
        return None
    width, fraction = form[0], form[0] - form[1]
    beside = 2 * (width - 1) + (terms - 1).bit_length()
    whole, shift = factor(value, beside)
    exact = math.ldexp(whole, -shift) == np.float32(value)
    if not exact and _WIDEST - beside < width + 2:
        return None
    return [f"return T::of<{fraction + shift}>(sum.raw * {whole});"]
