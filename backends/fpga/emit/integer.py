"""How engines that compute on 8-bit integers are written: limits, products, tables of results."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from pipec.backends.fpga.design import Engine
from pipec.backends.fpga.emit.cpp import cpp_type, identifier
from pipec.backends.fpga.emit.unit import Unit
from pipec.backends.fpga.int8 import HIGHEST, LOWEST, Int8, int8_format, multipliers
from pipec.backends.fpga.lowering.integer import AnyStep, Mode, mode_of
from pipec.backends.fpga.nests import Map, Reduce, Step

_UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "abs": torch.abs, "ceil": torch.ceil, "cos": torch.cos, "erf": torch.erf, "exp": torch.exp,
    "floor": torch.floor, "log": torch.log, "neg": torch.neg, "reciprocal": torch.reciprocal,
    "relu": torch.relu, "round": torch.round, "rsqrt": torch.rsqrt, "sigmoid": torch.sigmoid,
    "sign": torch.sign, "silu": functional.silu, "sin": torch.sin, "softplus": functional.softplus,
    "sqrt": torch.sqrt, "square": torch.square, "tanh": torch.tanh, "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
}  # fmt: skip
_BINARY: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "add": lambda x, y: x + y, "sub": lambda x, y: x - y, "rsub": lambda x, y: y - x,
    "mul": lambda x, y: x * y, "div": lambda x, y: x / y, "rdiv": lambda x, y: y / x,
    "pow": lambda x, y: x**y, "rpow": lambda x, y: y**x,
    "max": lambda x, y: x.clamp_min(y), "min": lambda x, y: x.clamp_max(y),
    "leaky_relu": functional.leaky_relu, "elu": functional.elu,
}  # fmt: skip


def results(steps: tuple[Step, ...], of: Int8, into: Int8) -> NDArray[np.int8]:
    """What a chain of functions makes of every 8-bit number, in float64, rounded once, [256].

    Args:
        steps: Functions of one element.
        of: What the 256 numbers from -128 on stand for.
        into: Format of the results; a result that is no number becomes 0.
    """
    x = torch.from_numpy(of.real(np.arange(LOWEST, HIGHEST + 1))).double()
    for step in steps:
        x = function(step)(x)
    return into.raw(np.nan_to_num(x.numpy(), nan=0.0, posinf=np.inf, neginf=-np.inf))


def function(step: AnyStep) -> Callable[[Tensor], Tensor]:
    """A step of one operand as a function of tensors."""
    unary = _UNARY.get(step.op)
    return unary if unary is not None else lambda x: _BINARY[step.op](x, step.value)


def combined(op: str, x: Tensor, y: Tensor) -> Tensor:
    """A step of two operands, elementwise."""
    return _BINARY[op](x, y)


def limits(engine: Engine) -> dict[str, int]:
    """Constants of the last step from a sum to 8 bits, of an engine that has one."""
    by = engine.narrowing
    return {} if by is None else {"SHIFT": by.shift, "LOW": by.low, "HIGH": by.high}


def finish(engine: Engine) -> dict[str, list[str]]:
    """The function that takes one sum of a product of activations to 8 bits."""
    body = f"return {_narrowed(engine)}(int64_t(sum) * {_multiplier(engine)});"
    return {f"{cpp_type(engine.result)} finish(int32_t sum)": [body]}


def _narrowed(engine: Engine) -> str:
    return f"narrowed<{cpp_type(engine.result)}, {identifier(engine.name)}>"


def _multiplier(engine: Engine) -> int:
    assert engine.narrowing is not None
    assert engine.narrowing.multiplier is not None
    return engine.narrowing.multiplier


def reduce(
    engine: Engine, nest: Reduce, constants: Mapping[str, int], functions: Mapping[str, list[str]]
) -> Unit:
    """Pooling and reduction over rows: exact in steps of the scale."""
    constants = {**constants, **limits(engine)}
    if nest.op != "sum":
        arguments: tuple[str, ...] = ("engine::steps()",)
    elif nest.table:
        return Unit("reduce.h", "reduce", constants, functions, tables=("rescale",))
    else:
        functions = {
            **functions,
            "rescale by()": ["rescale found(0);",
                             f"found.multiplier = {_multiplier(engine)};", "return found;"],
        }  # fmt: skip
        arguments = (f"cfg::{identifier(engine.name)}::by()",)
    return Unit("reduce.h", "reduce", constants, functions, arguments=arguments)


def elementwise(engine: Engine, nest: Map, constants: Mapping[str, int]) -> Unit | None:
    """A chain that integers run; None if it needs float32, or nothing is quantised."""
    reads, writes = int8_format(engine.dtype), int8_format(engine.result)
    if reads is None or writes is None or not nest.steps:
        return None
    x, y = cpp_type(engine.dtype), cpp_type(engine.result)
    constants = {**constants, **limits(engine)}
    if nest.steps[0].op == "affine":
        body = f"return {_narrowed(engine)}(int64_t(x.steps()) * t0.multiplier + t0.bias);"
        functions = {f"{y} op({x} x, rescale t0)": [body]}
        return Unit("map.h", "map1", constants, functions, tables=("table0",))
    mode = mode_of(nest.steps)
    if mode is Mode.LOOKUP:
        functions = {f"{y} op({x} x)": _lookup(results(nest.steps, reads, writes), y)}
        return Unit("map.h", "map1", constants, functions)
    if mode not in (Mode.SUM, Mode.PRODUCT):
        return None
    second = int8_format(engine.second)
    assert second is not None
    if mode is Mode.PRODUCT:
        found = f"int64_t(x.steps() * y.steps()) * {_multiplier(engine)}"
    else:
        a, b = sum_multipliers(nest.steps[0].op, (reads, second), writes)[0]
        found = f"int64_t(x.steps()) * {a} + int64_t(y.steps()) * {b}"
    functions = {f"{y} op({x} x, {cpp_type(engine.second)} y)": [
        f"return {_narrowed(engine)}({found});"
    ]}  # fmt: skip
    return Unit("map.h", "map2", constants, functions)


def sum_multipliers(op: str, reads: tuple[Int8, Int8], writes: Int8) -> tuple[tuple[int, int], int]:
    """The multipliers of both operands of a sum, and its shift.

    Args:
        op: ``add``, ``sub`` or ``rsub``.
        reads: Formats of the operands.
        writes: Format of the sum.
    """
    signs = {"add": (1, 1), "sub": (1, -1), "rsub": (-1, 1)}[op]
    ratios = [s * r.scale / writes.scale for s, r in zip(signs, reads, strict=True)]
    found, shift = multipliers(np.array(ratios))
    return (int(found[0]), int(found[1])), shift


def _lookup(values: NDArray[np.int8], y: str) -> list[str]:
    rows = [", ".join(map(str, row)) for row in values.reshape(16, 16)]
    return [
        "static const int8_t result[256] = {",
        *(f"    {row}," for row in rows),
        "};",
        f"return {y}::of(result[x.raw + 128]);",
    ]
