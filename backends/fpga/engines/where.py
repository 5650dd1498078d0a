"""Comparison and choice: ``a > b ? x : y``, element by element."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn

from pipec.backends.fpga.arithmetic import step_cost, step_depth
from pipec.backends.fpga.cpp import literal
from pipec.backends.fpga.engines.base import Engine, Layer, Rows, Tables, Unit
from pipec.backends.fpga.engines.constants import shape_of
from pipec.backends.fpga.engines.network import Builder, UnsupportedError, Value, lowers
from pipec.backends.fpga.numbers import bits_of
from pipec.graph.ir import OutputKind, op_name

OPERATORS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<=", "eq": "==", "ne": "!="}
"""Comparisons as in ATen, and in C++."""


class Choices(nn.Module):
    """Choices by comparisons of streams with numbers and with each other, one broadcast."""

    def forward(self, x: Tensor) -> Tensor:
        y, mean = torch.tanh(x), x.mean(1, keepdim=True)
        z = torch.where(x > 0.3, x, y) + torch.where(y <= x * 0.5, 0.25, x)
        z = z + x.masked_fill(x < -0.5, -0.75) * torch.where(x != 0.1, 7.0, 2.0)
        z = z + torch.where(torch.relu(x) == x, y, 3.0) + torch.where(torch.isnan(y), 1.0, x)
        return z + torch.where(mean >= x, x - 1.0, mean)


@dataclass(frozen=True)
class Where(Rows):
    """``for i in tokens: read one token of every operand in a stream; write a op b ? x : y``.

    Attributes:
        op: One of `OPERATORS`.
        streams: Operands that arrive in streams, a letter for each in the order of the inputs.
        a: What an operand is that does not; ``b``, ``x`` and ``y`` likewise.
    """

    op: str = "gt"
    streams: str = "axy"
    a: float = 0.0
    b: float = 0.0
    x: float = 0.0
    y: float = 0.0

    constants = "ROWS C=channels LANES"
    sample = (Choices, (2, 3, 5, 4))

    def depth(self, dtype: str, clock_mhz: float) -> int:
        return 1 + step_depth("max", dtype, clock_mhz)

    def logic(self, dtype: str) -> tuple[float, float]:
        dsp, lut = step_cost("max", dtype)
        return (self.lanes * dsp, self.lanes * (lut + bits_of(dtype)))

    def unit(self, engine: Engine) -> Unit:
        names = {k: k for k in self.streams}
        texts = (names.get(k) or literal(getattr(self, k), engine.dtype) for k in "abxy")
        a, b, x, y = (f"real_t<T>({text})" for text in texts)
        parameters = ", ".join(f"real_t<T> {k}" for k in self.streams)
        body = [f"return {a} {OPERATORS[self.op]} {b} ? {x} : {y};"]
        functions = {f"real_t<T> op({parameters})": body}
        return Unit("where", self.look_up(self.constants), functions, leading=0)

    def rtl(self) -> dict[str, int | tuple[int, ...]]:
        ports = tuple(self.streams.find(k) for k in "abxy")
        numbers = tuple(round(getattr(self, k)) for k in "abxy")
        sizes = self.look_up("ROWS CF C=channels LANES") | {"NI": len(self.streams)}
        op = list(OPERATORS).index(self.op)
        return {**sizes, "OP": op, "PORTS": ports, "NUMBERS": numbers}

    def compute(self, layer: Layer, reads: Sequence[Tensor], table: Tables) -> Tensor:
        known = dict(zip(self.streams, reads, strict=True))
        a, b, x, y = (known.get(k, torch.tensor(getattr(self, k))) for k in "abxy")
        return torch.where(getattr(torch, self.op)(a, b), x, y)


_ISNAN = "aten.isnan.default"
_TESTS = {f"aten.{op}.{form}": op for op in OPERATORS for form in ("Scalar", "Tensor")}
_TESTS[_ISNAN] = "ne"  # it is unlike itself


@lowers(*_TESTS)
def comparison(b: Builder, node: fx.Node) -> tuple[()]:
    """No engine by itself: what chooses by it compares (`choice`)."""
    return ()


@lowers("aten.where.self")
def choice(b: Builder, node: fx.Node) -> Value:
    """One layer of the streams among both sides of the comparison and both choices."""
    test, *chosen = node.args
    if not isinstance(test, fx.Node) or op_name(test) not in _TESTS:
        raise UnsupportedError("a choice by something else than a comparison")
    trains = b.graph.outputs_of(OutputKind.LOSS, OutputKind.GRADIENT, OutputKind.WEIGHT_GRADIENT)
    sides = test.args[:2]
    if op_name(test) == _ISNAN:
        sides = (test.args[0], test.args[0])
        if (other := _never_nan(b, node, chosen[1])) is not None:
            return other
    elif b.precision != "float32" and not trains:  # bounds of errors follow slopes, not steps
        raise UnsupportedError("a choice that a rounding may turn", "choose the precision float32")
    operands = dict(zip("abxy", (*sides, *chosen), strict=True))
    streams = {k: b.value(one) for k, one in operands.items() if b.is_stream(one)}
    numbers = {k: b.number(one) for k, one in operands.items() if k not in streams}
    if len({v.dtype for v in streams.values()}) > 1:
        raise UnsupportedError("operands of several types")
    first, uses = b.align(node, list(streams.values()))
    rows, op = first.view.numel // first.channels, _TESTS[op_name(test)]
    nest = Where(rows, first.channels, 1, op, "".join(streams), **numbers)
    return b.put(nest, node, uses, first.view, first.channels)


def _never_nan(b: Builder, node: fx.Node, other: object) -> Value | None:
    """What is chosen of numbers that are never NaN: the stream that stands for all others."""
    if b.precision.startswith(("float", "bfloat")) or not b.is_stream(other):
        return None
    assert isinstance(other, fx.Node)
    return b.value(other) if shape_of(other) == shape_of(node) else None
