"""Row units: softmax, normalisations, local response, and the gradients of some.

They need a whole row before they write.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from pipec.backends.fpga.arithmetic import CLOCK, CONVERT, MEMORY, PICK, operators, steps_cost
from pipec.backends.fpga.cpp import literal
from pipec.backends.fpga.engines.base import Engine, Folded, Layer, Nest, Tables, Unit
from pipec.backends.fpga.engines.integer import real_type
from pipec.backends.fpga.engines.parts import in_tokens, weight
from pipec.backends.fpga.engines.tiles import ceil_div, lanes_for
from pipec.backends.fpga.numbers import kind_of, parse_fixed
from pipec.backends.fpga.runs import Loop, Run, Runs

HAND_OVER = 2
"""Cycles from the end of a pipelined loop to the start of what follows."""

ROW_OPS: dict[str, tuple[tuple[str, ...], int, tuple[str, ...]]] = {
    "softmax": (("max", "sub", "exp", "sub", "exp", "mul"), 1, ("div",)),
    "log_softmax": (("max", "sub", "exp", "sub", "sub"), 1, ("log",)),
    "layer_norm": (("sub", "square", "sub", "mul"), 2, ("mean", "mean", "add", "sqrt", "div")),
    "rms_norm": (("square", "mul"), 1, ("mean", "add", "sqrt", "div")),
    "lrn": (("mul", "add", "pow", "div"), 0, ()),
    "softmax_gradient": (("mul", "sub", "mul"), 1, ()),
    "log_softmax_gradient": (("exp", "mul", "sub"), 1, ()),
    "layer_norm_gradient": (
        ("sub", "square", "sub", "mul", "mul", *("sub", "mul") * 3), 4,
        ("mean", "mean", "mean", "mean", "add", "sqrt", "div"),
    ),
}  # fmt: skip
"""Row op to the steps of an element in all passes, the sums over a row, and the steps of a row."""
PARTS = 8
"""Results of a row that are used in turn; as in ``dot.h``."""


@dataclass(frozen=True)
class Norm(Nest):
    """What needs the whole row before it can write the first result.

    ```text
    for r in rows:
      for c in cf: x[c] = read in0 (y[c] = read in1); statistics
      (passes-2) silent passes over the row
      for c in cf: write
    ```

    Pass k starts ``gaps[k]`` cycles after the last firing of the one before, the first one after
    that of the row before: the pipeline drains, and its results become one. A row has
    ``taps`` positions of ``channels`` elements each: ``cf = taps*ceil(channels/lanes)``; padding
    lanes take no part. Gradients read ``dy`` and ``y``:

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

    additions = 6

    rows: int
    channels: int
    taps: int = 1
    lanes: int = 1
    op: str = "softmax"
    gaps: tuple[int, ...] = ()
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
    def passes(self) -> int:
        """Passes over a row, reading and writing included."""
        return len(self.gaps or self.drains("float32", CLOCK))

    @property
    def is_gradient(self) -> bool:
        """Whether it reads ``dy`` too."""
        return self.op.endswith("_gradient")

    def header(self) -> str:
        return "rowgrad.h" if self.is_gradient else "norm.h"

    def fold(self, layer: Layer, target: int, dtype: str, block: int = 0) -> Folded:
        nest, lanes = dataclasses.replace(self, lanes=0), 1
        while nest.lanes < lanes:  # more lanes, longer gaps
            nest = dataclasses.replace(self, lanes=lanes)
            nest = dataclasses.replace(nest, gaps=nest.drains(dtype, layer.clock_mhz))
            left = max(target - self.rows * sum(nest.gaps), 1)
            lanes = lanes_for(self.channels, self.rows * self.taps, left, self.passes)
        lanes = nest.lanes
        row = (nest.taps, nest.channels)
        shape, kind = (nest.cf, lanes), real_type(dtype)
        tables = tuple(
            weight(role, shape, table, kind, lambda a: in_tokens(a.reshape(row), lanes))
            for role, table in layer.tables.items()
        )
        return Folded(nest, lanes, nest.gaps[0] - HAND_OVER, tables)

    def runs(self, ii: int, inputs: int) -> Runs:
        first, *silent, last = (max(g, ii) for g in self.gaps or (1,) * self.passes)
        hidden, rest = sum(g + (self.cf - 1) * ii for g in silent), self.cf - 1
        reads = (1 << inputs) - 1
        reading = (Run(1, first, reads), Run(rest, ii, reads))
        writing = (Run(1, last + hidden, 0, 1), Run(rest, ii, 0, 1))
        return (Loop(self.rows, (*reading, *writing)),)

    def drains(self, dtype: str, clock_mhz: float) -> tuple[int, ...]:
        """The gaps that it needs: what a pass takes from its last token on, and the sums of a row.

        A row unit computes in float32 in any network.
        """
        add, mul, div, root, exp, power, _ = operators(clock_mhz)
        lanes, row = ((n - 1).bit_length() for n in (self.lanes, min(self.cf, PARTS)))
        narrow = CONVERT * (kind_of(dtype) != "float32")
        total = (lanes + 1 + row) * add  # over the lanes, into the row's sums, over these
        mean, scale = total + div, mul * self.scale
        deviation = add + mul + mean + add + root + div
        found = {
            "softmax": ((lanes + 1 + row) * PICK, add + exp + total + div, add + exp + mul),
            "log_softmax": ((lanes + 1 + row) * PICK, add + exp + total + exp, 2 * add),
            "layer_norm": (mean, deviation, add + mul + scale + add * self.shift),
            "rms_norm": (deviation - add, mul + scale + add * self.shift),
            "lrn": (0, mul + self.size * add + mul + add + power + div),
            "softmax_gradient": (mul + total, add + mul),
            "log_softmax_gradient": (total, exp + mul + add),
            "layer_norm_gradient": (
                mean, deviation, scale + add + 2 * mul + mean, scale + 3 * add + 3 * mul
            ),
        }[self.op]  # fmt: skip
        masked = self.channels % self.lanes and self.op != "lrn"  # lanes without a channel
        mask = max(2 * add, 4 * PICK) if masked else 0
        *others, written = (MEMORY + narrow + cycles + HAND_OVER + mask for cycles in found)
        return (written + PICK + (div + add if kind_of(dtype) == "int8" else narrow), *others)

    def buffer(self, bits: int, sums: int) -> tuple[int, int]:
        return ((1 + self.is_gradient) * self.lanes * bits, self.cf)

    def logic(self, dtype: str) -> tuple[float, float]:
        """Of operators as clang counts them in the code: no two passes share one."""
        steps, sums, once = ROW_OPS[self.op]
        steps += ("mul",) * self.scale * (1 + self.is_gradient) + ("add",) * self.shift
        steps += ("add",) * self.size + ("convert",) * (parse_fixed(dtype) is not None)
        adders = sums * (self.lanes - 1 + (self.cf > PARTS) + min(self.cf, PARTS) - 1)
        squares = bool(self.size) * self.lanes + max(self.size - 1, 0) * (self.cf > 1)
        mean = "mul" if (self.taps * self.channels).bit_count() == 1 else "div"
        row = [mean if step == "mean" else step for step in once]
        row += ["add"] * adders + ["square"] * squares
        (dsp, lut), more = steps_cost(steps, self.lanes, "float32"), steps_cost(row, 1, "float32")
        return (dsp + more[0], lut + more[1])

    def unit(self, engine: Engine) -> Unit:
        constants = self.look_up("ROWS TAPS C=channels LANES")
        first, *others = self.gaps or (1,) * self.passes
        cases = "".join(f"pass == {k} ? {gap} : " for k, gap in enumerate(others, 1))
        gaps = {"int gap(int pass)": [f"return {cases}{first};"]}
        if "softmax" in self.op:
            function = self.op.removeprefix("log_")
            return Unit(function, {**constants, "LOG": function != self.op}, gaps)
        if self.op == "lrn":
            constants |= {"BEFORE": (self.size - 1) // 2, "AFTER": self.size // 2}
            k, alpha, beta = (literal(v, engine.dtype) for v in (self.k, self.alpha, self.beta))
            size = literal(self.size, engine.dtype)
            body = [f"return x / ops::pow({k} + {alpha} / {size} * sum, {beta});"]
            op = {"real_t<T> op(real_t<T> x, real_t<T> sum)": body}
            return Unit("lrn", constants, op | gaps)
        eps = {"real_t<T> eps()": [f"return {literal(self.eps, engine.dtype)};"]}
        tables = ("scale?no_table", "shift?no_table")
        return Unit(self.op, constants, eps | gaps, tables=tables[: 1 if self.is_gradient else 2])

    def compute(self, layer: Layer, reads: Sequence[Tensor], table: Tables) -> Tensor:
        x = reads[0].reshape(self.rows, self.taps * self.channels)
        if "softmax" in self.op:
            y: Tensor = getattr(torch, self.op)(x, -1)
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
