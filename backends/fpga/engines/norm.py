"""Row units: softmax, normalisations, local response, and the gradients of some.

They need a whole row before they write.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from pipec.backends.fpga.arithmetic import CONVERTED, steps_cost
from pipec.backends.fpga.cpp import literal
from pipec.backends.fpga.engines.base import Engine, Folded, Layer, Nest, Tables, Unit
from pipec.backends.fpga.engines.integer import real_type
from pipec.backends.fpga.engines.parts import in_tokens, weight
from pipec.backends.fpga.engines.tiles import ceil_div, lanes_for
from pipec.backends.fpga.numbers import fixed_point
from pipec.backends.fpga.runs import Loop, Run, Runs

GAP = 40
"""Cycles between two passes of a row unit, which computes in float32: its pipeline drains."""


ROW_OPS: dict[str, tuple[int, tuple[str, ...]]] = {
    "softmax": (3, ("max", "exp", "add", "div")),
    "log_softmax": (3, ("max", "exp", "add", "sub")),
    "layer_norm": (3, ("add", "square", "add", "mul")),
    "rms_norm": (2, ("square", "add", "mul")),
    "lrn": (2, ("square", "add", "pow", "mul")),
    "softmax_gradient": (2, ("mul", "add", "sub", "mul")),
    "log_softmax_gradient": (2, ("add", "exp", "mul", "sub")),
    "layer_norm_gradient": (
        4, ("add", "sub", "square", "add", "mul", "mul", "add", "add", "mul", "sub", "mul")
    ),
}  # fmt: skip
"""Row op to its passes over a row, reading and writing included, and its steps per element."""


@dataclass(frozen=True)
class Norm(Nest):
    """What needs the whole row before it can write the first result.

    ```text
    for r in rows:
      for c in cf: x[c] = read in0 (y[c] = read in1); statistics
      (passes-2) silent passes over the row
      for c in cf: write
    ```

    Every pass after the first starts ``gap`` cycles after the last firing of the one before (the
    pipeline drains between passes). A row has ``taps`` positions of ``channels`` elements each:
    ``cf = taps*ceil(channels/lanes)``; padding lanes take no part. Gradients read ``dy`` and ``y``:

    ```text
    softmax_gradient        y the result: y * (dy - sum(dy * y))
    log_softmax_gradient    y the result: dy - exp(y) * sum(dy)
    layer_norm_gradient     y the operand: (g - mean(g) - h * mean(g * h)) / std
                            with g = dy * scale, h = (y - mean) / std
    ```

    Attributes:
        op: One of `ROW_OPS`.
        eps: Epsilon of layer_norm and rms_norm.
        size: Window of lrn: ``y = x / (k + alpha/size * sum x^2 over c-(size-1)//2 .. c+size//2)``
            to the power ``beta``.
        scale: Whether there is a table of factors, role ``scale`` ``[cf][lanes]``.
        shift: Whether there is a table of summands, role ``shift`` ``[cf][lanes]``.
    """

    rows: int
    channels: int
    taps: int = 1
    lanes: int = 1
    op: str = "softmax"
    passes: int = 3
    gap: int = 1
    eps: float = 0.0
    size: int = 0
    alpha: float = 0.0
    beta: float = 0.0
    k: float = 0.0
    scale: bool = False
    shift: bool = False

    @property
    def cf(self) -> int:
        """Tokens per row."""
        return self.taps * ceil_div(self.channels, self.lanes)

    @property
    def is_gradient(self) -> bool:
        """Whether it reads ``dy`` too."""
        return self.op.endswith("_gradient")

    def header(self) -> str:
        return "rowgrad.h" if self.is_gradient else "norm.h"

    def folded(self, layer: Layer, target: int, dtype: str, block: int = 0) -> Folded:
        left = max(target - self.rows * (self.passes - 1) * GAP, 1)
        lanes = lanes_for(self.channels, self.rows * self.taps, left, self.passes)
        nest = dataclasses.replace(self, lanes=lanes, gap=GAP)
        row = (nest.taps, nest.channels)
        shape, kind = (nest.cf, lanes), real_type(dtype)
        tables = tuple(
            weight(role, shape, table, kind, lambda a: in_tokens(a.reshape(row), lanes))
            for role, table in layer.tables.items()
        )
        return Folded(nest, lanes, GAP, tables)

    def runs(self, ii: int, inputs: int) -> Runs:
        silent = (self.passes - 2) * (self.gap + (self.cf - 1) * ii)
        read = Run(self.cf, ii, (1 << inputs) - 1)
        body = (read, Run(1, self.gap + silent, 0, 1), Run(self.cf - 1, ii, 0, 1))
        return (Loop(self.rows, body),)

    def buffer(self, bits: int, sums: int) -> tuple[int, int]:
        return ((1 + self.is_gradient) * self.lanes * bits, self.cf)

    def logic(self, dtype: str) -> tuple[float, float]:
        steps = (*ROW_OPS[self.op][1], *["mul"] * self.scale, *["add"] * self.shift)
        dsp, lut = steps_cost(steps, self.lanes, "float32")
        converted = self.lanes * (fixed_point(dtype) is not None)
        return dsp + converted * CONVERTED[0], lut + converted * CONVERTED[1]

    def unit(self, engine: Engine) -> Unit:
        constants = self.named("ROWS TAPS C=channels LANES GAP")
        if "softmax" in self.op:
            function = self.op.removeprefix("log_")
            return Unit(function, {**constants, "LOG": function != self.op})
        if self.op == "lrn":
            constants |= {"BEFORE": (self.size - 1) // 2, "AFTER": self.size // 2}
            k, alpha, beta = (literal(v, engine.dtype) for v in (self.k, self.alpha, self.beta))
            size = literal(self.size, engine.dtype)
            body = [f"return x / ops::pow({k} + {alpha} / {size} * sum, {beta});"]
            return Unit("lrn", constants, {"real_t<T> op(real_t<T> x, real_t<T> sum)": body})
        eps = {"real_t<T> eps()": [f"return {literal(self.eps, engine.dtype)};"]}
        tables = ("scale?no_table", "shift?no_table")
        return Unit(self.op, constants, eps, tables=tables[: 1 if self.is_gradient else 2])

    def compute(self, layer: Layer, reads: Sequence[Tensor], table: Tables) -> Tensor:
        x = reads[0].reshape(self.rows, self.taps * self.channels)
        if self.op == "softmax":
            y = torch.softmax(x, -1)
        elif self.op == "log_softmax":
            y = torch.log_softmax(x, -1)
        elif self.op == "layer_norm":
            y = functional.layer_norm(x, x.shape[1:], eps=self.eps)
        elif self.op == "rms_norm":
            y = x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt()
        else:
            wide = functional.pad(x.square(), ((self.size - 1) // 2, self.size // 2))
            total = wide.unfold(1, self.size, 1).sum(-1)
            y = x / (self.k + self.alpha / self.size * total) ** self.beta
        rows = {role: table(found).reshape(-1) for role, found in layer.tables.items()}
        y = y * rows["scale"] if "scale" in rows else y
        return y + rows["shift"] if "shift" in rows else y
