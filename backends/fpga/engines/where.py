"""Comparison and choice: ``a > b ? x : y``, element by element."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pipec.backends.fpga.arithmetic import step_cost
from pipec.backends.fpga.cpp import literal
from pipec.backends.fpga.engines.base import Engine, Folded, Layer, Rows, Tables, Unit
from pipec.backends.fpga.numbers import bits_of

OPERATORS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<=", "eq": "==", "ne": "!="}
"""Comparisons as in ATen, and in C++."""


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

    def folded(self, layer: Layer, target: int, dtype: str, block: int = 0) -> Folded:
        nest = self.wide(layer, target)
        return Folded(nest, nest.lanes, 1 + step_cost("max", dtype)[2])

    def logic(self, dtype: str) -> tuple[float, float]:
        dsp, lut, _ = step_cost("max", dtype)
        return (self.lanes * dsp, self.lanes * (lut + bits_of(dtype)))

    def unit(self, engine: Engine) -> Unit:
        given = {
            k: literal(getattr(self, k), engine.dtype) for k in "abxy" if k not in self.streams
        }
        a, b, x, y = (f"real_t<T>({given.get(k, k)})" for k in "abxy")
        parameters = ", ".join(f"real_t<T> {k}" for k in self.streams)
        body = [f"return {a} {OPERATORS[self.op]} {b} ? {x} : {y};"]
        functions = {f"real_t<T> op({parameters})": body}
        return Unit("where", self.named(self.constants), functions, leading=0)

    def compute(self, layer: Layer, reads: Sequence[Tensor], table: Tables) -> Tensor:
        known = dict(zip(self.streams, reads, strict=True))
        a, b, x, y = (known.get(k, torch.tensor(getattr(self, k))) for k in "abxy")
        compare = getattr(torch, self.op)
        return torch.where(compare(a, b), x, y)
