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
from collections.abc import Sequence
from enum import StrEnum

from pipec.backends.fpga.lowering.layers import UNCLAMPED, MapStep
from pipec.backends.fpga.nests import Step


class Mode(StrEnum):
    """How a chain of steps is run."""

    COPY = "copy"
    LOOKUP = "lookup"
    SUM = "sum"
    PRODUCT = "product"
    AFFINE = "affine"
    REAL = "real"


AnyStep = MapStep | Step
"""What elementwise chains are made of, before and after folding."""


def clamp_of(steps: Sequence[AnyStep]) -> tuple[float, float] | None:
    """The limits that steps put on a number; None if they do anything else.

    Example:
        >>> clamp_of([Step("relu"), Step("min", "scalar", 6.0)]), clamp_of([Step("exp")])
        ((0.0, 6.0), None)
    """
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


def affine_steps(steps: Sequence[AnyStep]) -> int:
    """How many steps at the front are ``* table``, ``+ table`` or one after the other."""
    ops = [s.op if s.operand == "table" else "" for s in steps[:2]]
    if ops == ["mul", "add"]:
        return 2
    return 1 if ops[:1] in (["mul"], ["add"]) else 0


def mode_of(steps: Sequence[AnyStep]) -> Mode:
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


def may_join(before: Sequence[AnyStep], joined: Sequence[AnyStep]) -> bool:
    """Whether a chain may be lengthened to ``joined`` without leaving the integers for it."""
    return mode_of(before) is Mode.REAL or mode_of(joined) is not Mode.REAL
