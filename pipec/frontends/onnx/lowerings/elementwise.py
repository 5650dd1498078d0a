"""Ops that act on each element: most of them one row of a table."""

import math
import operator
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as fn

from pipec.frontends.onnx.context import Context, Result, lowering
from pipec.frontends.onnx.lowerings.casting import narrow, to_ordered, widen
from pipec.frontends.onnx.refusals import Refused
from pipec.frontends.onnx.values import Value, is_known

Unary = Callable[..., Tensor]

_UNARY: dict[str, Unary] = {
    "Abs": torch.abs,
    "Acos": torch.acos,
    "Acosh": torch.acosh,
    "Asin": torch.asin,
    "Asinh": torch.asinh,
    "Atan": torch.atan,
    "Atanh": torch.atanh,
    "BitwiseNot": torch.bitwise_not,
    "Ceil": torch.ceil,
    "Cos": torch.cos,
    "Cosh": torch.cosh,
    "Erf": torch.erf,
    "Exp": torch.exp,
    "Floor": torch.floor,
    "HardSwish": fn.hardswish,
    "IsNaN": torch.isnan,
    "Log": torch.log,
    "Mish": fn.mish,
    "Neg": torch.neg,
    "Not": torch.logical_not,
    "Reciprocal": torch.reciprocal,
    "Relu": torch.relu,
    "Round": torch.round,
    "Sigmoid": torch.sigmoid,
    "Sign": torch.sign,
    "Sin": torch.sin,
    "Sinh": torch.sinh,
    "Softplus": fn.softplus,
    "Softsign": fn.softsign,
    "Sqrt": torch.sqrt,
    "Tan": torch.tan,
    "Tanh": torch.tanh,
}
_KEPT = frozenset({"Abs", "BitwiseNot", "Sign", "Relu"})
"""Of these, on unsigned integers, the identity or what works on widened numbers."""

_COMPARE: dict[str, Callable[..., Tensor]] = {
    "Equal": torch.eq,
    "Greater": torch.gt,
    "GreaterOrEqual": torch.ge,
    "Less": torch.lt,
    "LessOrEqual": torch.le,
}
_CONNECTIVES: dict[str, Callable[..., Tensor]] = {
    "And": torch.logical_and,
    "Or": torch.logical_or,
    "Xor": torch.logical_xor,
    "BitwiseAnd": torch.bitwise_and,
    "BitwiseOr": torch.bitwise_or,
    "BitwiseXor": torch.bitwise_xor,
}
_ARITHMETIC: dict[str, Callable[..., Tensor]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
}


@lowering(*_UNARY)
def unary(ctx: Context, x: Tensor) -> Result:
    """A function of one tensor."""
    function = _UNARY[ctx.node.op_type]
    return narrow(function(widen(x)), x) if ctx.node.op_type in _KEPT else function(x)


def operands(ctx: Context, a: Value, b: Value) -> tuple[Any, Any]:
    """Two operands; a known one of one element becomes a Python number where that is safe.

    Before opset 7 the second operand is broadcast from the dimension ``axis`` on.
    """
    if ctx.version < 7 and ctx.attr("broadcast", 0) and ctx.has("axis"):
        b = _align(ctx, ctx.tensor(a).dim(), b, ctx.attr("axis"))
    for first, second in ((a, b), (b, a)):
        number = ctx.number(second)
        if number is not None and isinstance(first, Tensor) and isinstance(second, np.ndarray):
            plain = first.dtype not in (torch.uint16, torch.uint32, torch.uint64)
            if plain and second.ndim <= first.dim():
                return (first, number) if second is b else (number, first)
    return widen(ctx.tensor(a)), widen(ctx.tensor(b))


def _align(ctx: Context, rank: int, b: Value, axis: int) -> Tensor:
    t = ctx.tensor(b)
    return t.reshape(tuple(t.shape) + (1,) * (rank - axis % rank - t.dim()))


@lowering(*_ARITHMETIC, raw=None)
def arithmetic(ctx: Context, a: Value, b: Value) -> Result:
    """Sum, difference, product; integers wrap around."""
    x, y = operands(ctx, a, b)
    return narrow(_ARITHMETIC[ctx.node.op_type](x, y), _like(ctx, a, b))


def _like(ctx: Context, *values: Value) -> Tensor:
    return ctx.tensor(next((v for v in values if isinstance(v, Tensor)), values[0]))


@lowering("Div", raw=None)
def divide(ctx: Context, a: Value, b: Value) -> Result:
    """Quotient; of integers rounded towards zero."""
    like = _like(ctx, a, b)
    if like.dtype == torch.uint64:
        raise Refused("division of uint64 numbers")
    x, y = operands(ctx, a, b)
    if not isinstance(x, Tensor):
        x, y = widen(ctx.tensor(a)), widen(ctx.tensor(b))
    if like.is_floating_point() or like.is_complex():
        return narrow(x / y, like)
    return narrow(torch.div(x, y, rounding_mode="trunc"), like)


@lowering("Mod", raw=None)
def modulo(ctx: Context, a: Value, b: Value) -> Result:
    """Remainder with the sign of the divisor, or of the dividend with ``fmod``."""
    like = _like(ctx, a, b)
    if like.dtype == torch.uint64:
        raise Refused("division of uint64 numbers")
    x, y = widen(ctx.tensor(a)), widen(ctx.tensor(b))
    return narrow(torch.fmod(x, y) if ctx.attr("fmod", 0) else torch.remainder(x, y), like)


@lowering("Pow", raw=None)
def power(ctx: Context, a: Value, b: Value) -> Result:
    """Power; the result has the type of the base."""
    x, y = operands(ctx, a, b)
    if not isinstance(x, Tensor):
        x, y = ctx.tensor(a), ctx.tensor(b)
    exact = not isinstance(y, float) or x.is_floating_point()
    found = torch.pow(x if exact else x.to(torch.float64), y)
    return found if found.dtype == x.dtype else found.to(x.dtype)


@lowering(*_COMPARE, raw=None)
def compare(ctx: Context, a: Value, b: Value) -> Result:
    """A comparison; unsigned 64-bit numbers keep their order as shifted signed ones."""
    if _like(ctx, a, b).dtype == torch.uint64:
        return _COMPARE[ctx.node.op_type](to_ordered(ctx.tensor(a)), to_ordered(ctx.tensor(b)))
    x, y = operands(ctx, a, b)
    if not isinstance(x, Tensor):
        x = ctx.tensor(a)
    return _COMPARE[ctx.node.op_type](x, y)


@lowering(*_CONNECTIVES)
def connective(ctx: Context, a: Tensor, b: Tensor) -> Result:
    """A logical or bitwise connective."""
    if ctx.version < 7 and ctx.has("axis"):
        b = _align(ctx, a.dim(), b, ctx.attr("axis"))
    return narrow(_CONNECTIVES[ctx.node.op_type](widen(a), widen(b)), a)


@lowering("BitShift")
def bit_shift(ctx: Context, a: Tensor, b: Tensor) -> Result:
    """Bits shifted left or right, zeros filled in."""
    x, y = widen(a), widen(b)
    if ctx.attr("direction") == "LEFT":
        return narrow(torch.bitwise_left_shift(x, y), a)
    if a.dtype == torch.uint64:  # the sign bit must not be copied: clear it after the first shift
        once = torch.bitwise_right_shift(x, torch.clamp(y, max=1))
        once = torch.bitwise_and(once, 2**63 - 1)
        shifted = torch.bitwise_right_shift(once, torch.clamp(y - 1, min=0))
        return narrow(torch.where(y == 0, x, shifted), a)
    return narrow(torch.bitwise_right_shift(x, y), a)


@lowering("Max", "Min", "Sum", "Mean", raw=None)
def variadic(ctx: Context, *values: Value) -> Result:
    """Maximum, minimum, sum or mean of any number of tensors."""
    like, op = _like(ctx, *values), ctx.node.op_type
    if op in ("Max", "Min"):
        return _extreme(ctx, list(values), like)
    total = reduce(operator.add, map(ctx.tensor, values))
    return total / len(values) if op == "Mean" and len(values) > 1 else total


def _extreme(ctx: Context, values: list[Value], like: Tensor) -> Tensor:
    function = torch.maximum if ctx.node.op_type == "Max" else torch.minimum
    shift = like.dtype == torch.uint64
    found = reduce(function, [(to_ordered if shift else widen)(ctx.tensor(v)) for v in values])
    return narrow(to_ordered(found) if shift else found, like)


@lowering("Where")
def where(_: Context, condition: Tensor, x: Tensor, y: Tensor) -> Result:
    """One or the other element."""
    return narrow(torch.where(condition, widen(x), widen(y)), x)


@lowering("Clip", raw=(1, 2))
def clip(ctx: Context, x: Tensor, low: Value = None, high: Value = None) -> Result:
    """Limited to an interval; the limits are attributes before opset 11."""
    if ctx.version < 11:
        bottom, top = ctx.attr("min"), ctx.attr("max")
    else:
        bottom, top = (_limit(ctx, v) for v in (low, high))
    if bottom is None and top is None:
        return x
    if x.dtype == torch.uint64:
        raise Refused("clipping uint64 numbers")
    wide = widen(x)
    if isinstance(bottom, Tensor) or isinstance(top, Tensor):
        for limit, function in ((bottom, torch.maximum), (top, torch.minimum)):
            if limit is not None:
                tensor = limit if isinstance(limit, Tensor) else torch.full_like(wide, limit)
                wide = function(wide, widen(tensor))
        return narrow(wide, x)
    return narrow(torch.clamp(wide, bottom, top), x)


def _limit(ctx: Context, value: Value) -> Tensor | float | None:
    if value is None:
        return None
    number = ctx.number(value) if is_known(value) else None
    return ctx.tensor(value) if number is None else number


_OF_ATTRIBUTES: dict[str, Callable[[Context, Tensor], Tensor]] = {
    "Celu": lambda ctx, x: fn.celu(x, ctx.attr("alpha", 1.0)),
    "Elu": lambda ctx, x: fn.elu(x, ctx.attr("alpha", 1.0)),
    "Gelu": lambda ctx, x: fn.gelu(x, approximate=ctx.attr("approximate", "none")),
    "HardSigmoid": lambda ctx, x: torch.clamp(
        x * ctx.attr("alpha", 0.2) + ctx.attr("beta", 0.5), 0, 1
    ),
    "LeakyRelu": lambda ctx, x: fn.leaky_relu(x, ctx.attr("alpha", 0.01)),
    "ThresholdedRelu": lambda ctx, x: fn.threshold(x, ctx.attr("alpha", 1.0), 0.0),
}
"""Functions of one tensor and of attributes, with their defaults."""

for _name, _function in _OF_ATTRIBUTES.items():
    lowering(_name)(_function)


_SELU = (1.67326319217681884765625, 1.05070102214813232421875)


@lowering("Selu")
def selu(ctx: Context, x: Tensor) -> Result:
    """Scaled exponential: ``gamma * (x if x > 0 else alpha * (e^x - 1))``."""
    alpha: float = ctx.attr("alpha", _SELU[0])
    gamma: float = ctx.attr("gamma", _SELU[1])
    if math.isclose(alpha, _SELU[0], rel_tol=1e-6) and math.isclose(gamma, _SELU[1], rel_tol=1e-6):
        return fn.selu(x)
    return torch.where(x > 0, x, torch.expm1(x) * alpha) * gamma


@lowering("Shrink")
def shrink(ctx: Context, x: Tensor) -> Result:
    """Zero within ``lambd`` of zero, moved towards zero by ``bias`` outside."""
    bias, limit = ctx.attr("bias", 0.0), ctx.attr("lambd", 0.5)
    zero = torch.zeros_like(x)
    shrunk = torch.where(x > limit, x - bias, torch.where(x < -limit, x + bias, zero))
    return shrunk.to(x.dtype)


@lowering("PRelu")
def prelu(ctx: Context, x: Tensor, slope: Tensor) -> Result:
    """Slope per element or channel below zero."""
    if ctx.version < 7 and slope.dim() == 1 and x.dim() > 1:
        slope = slope.reshape((-1,) + (1,) * (x.dim() - 2))
    per_channel = slope.dim() == x.dim() - 1 > 0 and slope.numel() == slope.shape[0]
    if x.is_floating_point() and per_channel and slope.numel() in (1, x.shape[1]):
        return fn.prelu(x, slope.reshape(-1))
    return narrow(torch.where(widen(x) < 0, widen(x) * widen(slope), widen(x)), x)


@lowering("Swish")
def swish(ctx: Context, x: Tensor) -> Result:
    """``x * sigmoid(alpha * x)``."""
    alpha = ctx.attr("alpha", 1.0)
    return fn.silu(x) if alpha == 1 else x * torch.sigmoid(alpha * x)


@lowering("IsInf")
def is_inf(ctx: Context, x: Tensor) -> Result:
    """Whether infinite, of the signs that are asked for."""
    positive, negative = ctx.attr("detect_positive", 1), ctx.attr("detect_negative", 1)
    if positive and negative:
        return torch.isinf(x)
    if positive or negative:
        return x == (math.inf if positive else -math.inf)
    return torch.zeros_like(x, dtype=torch.bool)
