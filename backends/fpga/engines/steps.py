"""Which elementwise chains 8-bit integers can run, and how.

| mode | steps | what an engine does per lane |
|---|---|---|
| copy | none | nothing |
| lookup | functions of one element | one table of 256 results |
| sum, product | two streams added, subtracted or multiplied, then clamps | integers, one shift |
| affine | ``* table + table``, then clamps | integers, one shift |
| real | anything else | converts to float32 and back |
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from pipec.backends.fpga.engines.parts import UNCLAMPED, Table
from pipec.backends.fpga.numbers import HIGHEST, LOWEST, Int8


class Mode(StrEnum):
    """How a chain of steps is run."""

    COPY = "copy"
    LOOKUP = "lookup"
    SUM = "sum"
    PRODUCT = "product"
    AFFINE = "affine"
    REAL = "real"


@dataclass(frozen=True)
class Step:
    """One elementwise step ``x = op(x)`` or ``x = op(x, y)`` of a `Map`.

    Attributes:
        op: One of `UNARY` or `BINARY`, or ``leaky_relu`` (slope ``value``) or ``elu`` (alpha), or
            ``f_grad``, ``x f'(.)``: x a gradient, y the result of f (relu, sigmoid, tanh) or its
            operand (gelu, silu).
        operand: Where y comes from: ``none``, ``scalar`` (``value``), ``table`` (role ``tableK``
            for step K, ``[period][lanes]``, entry ``token % period``), or ``stream`` (in1).
        value: The scalar, or the slope.
        period: Entries of the table.
    """

    op: str
    operand: str = "none"
    value: float = 0.0
    period: int = 0


@dataclass(frozen=True)
class MapStep(Step):
    """A step before it is folded: with its table, ``[period rows][channels]``."""

    period: int = 1
    table: Table | None = None


def clamp_of(steps: Sequence[Step]) -> tuple[float, float] | None:
    """The limits that steps put on a number; None if they do anything else."""
    low, high = UNCLAMPED
    for step in steps:
        if step.op == "relu":
            at_least, at_most = 0.0, math.inf
        elif step.op in ("max", "min") and step.operand == "scalar":
            at_least = step.value if step.op == "max" else -math.inf
            at_most = step.value if step.op == "min" else math.inf
        else:
            return None
        low, high = (min(max(v, at_least), at_most) for v in (low, high))
    return low, high


def affine_steps(steps: Sequence[Step]) -> int:
    """How many steps at the front are ``* table``, ``+ table`` or one after the other."""
    ops = [s.op if s.operand == "table" else "" for s in steps[:2]]
    if ops == ["mul", "add"]:
        return 2
    return 1 if ops[:1] in (["mul"], ["add"]) else 0


def mode_of(steps: Sequence[Step]) -> Mode:
    """How 8-bit integers run a chain."""
    if not steps:
        return Mode.COPY
    if all(step.operand in ("none", "scalar") for step in steps):
        return Mode.LOOKUP
    first = steps[0]
    if first.operand == "stream" and clamp_of(steps[1:]) is not None:
        if first.op in ("add", "sub", "rsub"):
            return Mode.SUM
        if first.op == "mul":
            return Mode.PRODUCT
    front = affine_steps(steps)
    return Mode.AFFINE if front and clamp_of(steps[front:]) is not None else Mode.REAL


def may_join(before: Sequence[Step], joined: Sequence[Step]) -> bool:
    """Whether a chain may be lengthened to ``joined`` without leaving the integers for it."""
    return mode_of(before) is Mode.REAL or mode_of(joined) is not Mode.REAL


UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "abs": torch.abs, "ceil": torch.ceil, "cos": torch.cos, "erf": torch.erf, "exp": torch.exp,
    "floor": torch.floor, "log": torch.log, "neg": torch.neg, "reciprocal": torch.reciprocal,
    "relu": torch.relu, "round": torch.round, "rsqrt": torch.rsqrt, "sigmoid": torch.sigmoid,
    "sign": torch.sign, "silu": functional.silu, "sin": torch.sin, "softplus": functional.softplus,
    "sqrt": torch.sqrt, "square": torch.square, "tanh": torch.tanh, "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
}  # fmt: skip
"""Map ops of one operand."""

BINARY: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "add": lambda x, y: x + y, "sub": lambda x, y: x - y, "rsub": lambda x, y: y - x,
    "mul": lambda x, y: x * y, "div": lambda x, y: x / y, "rdiv": lambda x, y: y / x,
    "pow": lambda x, y: x**y, "rpow": lambda x, y: y**x,
    "max": lambda x, y: x.clamp_min(y), "min": lambda x, y: x.clamp_max(y),
}  # fmt: skip
"""Map ops of two operands ``x op y``; ``rsub`` is ``y - x``, ``rdiv`` is ``y / x``."""
_SHAPED = {"leaky_relu": functional.leaky_relu, "elu": functional.elu}
"""Map ops of one operand and a number."""


def results(steps: tuple[Step, ...], of: Int8, into: Int8) -> NDArray[np.int8]:
    """Results of functions of one element for every 8-bit number from -128 on, [256].

    In float64, rounded once; a result that is no number becomes 0.
    """
    x = torch.from_numpy(of.dequantise(np.arange(LOWEST, HIGHEST + 1))).double()
    for step in steps:
        x = function(step)(x)
    return into.quantise(np.nan_to_num(x.numpy(), nan=0.0, posinf=np.inf, neginf=-np.inf))


def function(step: Step) -> Callable[[Tensor], Tensor]:
    """A step of one operand as a function of tensors."""
    unary, shaped = UNARY.get(step.op), {**BINARY, **_SHAPED}
    return unary if unary is not None else lambda x: shaped[step.op](x, step.value)
