"""Reductions: pooling over windows, global pooling and means over rows."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from pipec.backends.fpga.arithmetic import arithmetic, operators, sums_depth
from pipec.backends.fpga.cpp import identifier, literal
from pipec.backends.fpga.engines.base import Engine, Folded, Layer, Nest, Tables, Unit
from pipec.backends.fpga.engines.fixed import factor
from pipec.backends.fpga.engines.integer import limits, multiplier, rescaling
from pipec.backends.fpga.engines.parts import Weight, weight
from pipec.backends.fpga.engines.swg import convolve, pad_window, window_factors
from pipec.backends.fpga.engines.tiles import ceil_div, lanes_for
from pipec.backends.fpga.numbers import int8_format, kind_of, parse_fixed
from pipec.backends.fpga.runs import Loop, Run, Runs


@dataclass(frozen=True)
class Reduce(Nest):
    """Reduction over a window or over rows: pooling after an SWG, global pooling, mean over rows.

    ```text
    for v in n: for j in window: for c in cf:
      x = read in0                                     # [kp][lanes]
      acc[c][lane] = op(acc[c][lane], x[..][lane])     # over kp; acc starts at j == 0
      if j == window-1: write acc[c] * scale           # scale: number, or table[v % period]
    ```

    Attributes:
        n: Results per frame; ``window`` inputs each; ``cf`` partial results side by side.
        op: ``max``, ``min`` or ``sum`` (a mean is a sum with ``scale = 1/count``).
        scale: Factor on the result (1 for max and min).
        table: Period of a table of scales, role ``scale`` ``[period]``, used instead of
            ``scale``; 0 if there is none (average pooling that does not count its padding).
        partial: Partial results used in turn by j, as in `Mvu` (in floating point: a comparison
            and a choice take two cycles).
    """

    additions = 5
    updates = True

    n: int
    window: int
    cf: int
    lanes: int = 1
    kp: int = 1
    op: str = "max"
    scale: float = 1.0
    table: int = 0
    partial: int = 1

    @property
    def moves(self) -> bool:
        return self.op != "sum" or (self.window, self.scale, self.table) == (1, 1, 0)

    @property
    def outside(self) -> float:
        return -math.inf if self.op == "max" else 0.0

    def fold(self, layer: Layer, target: int, dtype: str, block: int = 0) -> Folded:
        real = dtype != "int8" and parse_fixed(dtype) is None
        latency = arithmetic(dtype, layer.clock_mhz).add_latency if self.op == "sum" else 1 + real
        clock, mul = layer.clock_mhz, operators(layer.clock_mhz).mul
        if layer.window is None:
            lanes = lanes_for(layer.channels, layer.rows * self.window, target)
            cf = ceil_div(layer.channels, lanes)
            partial = ceil_div(latency, cf) if self.window > 1 else 1
            nest = dataclasses.replace(self, cf=cf, lanes=lanes, partial=partial)
            return Folded(nest, lanes, sums_depth(dtype, 1, partial, clock_mhz=clock, more=mul))
        lanes, kp = window_factors(layer.window, layer.channels, target)
        cf, tables = ceil_div(layer.channels, lanes), tuple[Weight, ...]()
        if (scale := layer.tables.get("scale")) is not None:
            period = (layer.window.oh * layer.window.ow * cf,)
            tables = (weight("scale", period, scale, dtype, lambda a: np.repeat(a, cf)),)
            if dtype == "int8":
                tables = (rescaling(layer, period, lambda a: np.repeat(a, cf)),)
        partial = latency if layer.window.taps > kp else 1
        nest = dataclasses.replace(
            self, n=layer.rows * cf, window=layer.window.taps // kp, lanes=lanes, kp=kp,
            table=tables[0].shape[0] if tables else 0, partial=partial,
        )  # fmt: skip
        depth = sums_depth(dtype, kp, partial, clock_mhz=clock, more=mul)
        return Folded(nest, lanes, depth, tables, kp=kp)

    def runs(self, ii: int, inputs: int) -> Runs:
        body = (Run((self.window - 1) * self.cf, ii, 1), Run(self.cf, ii, 1, 1))
        return (Loop(self.n, body),)

    def buffer(self, bits: int, sums: int) -> tuple[int, int]:
        return (self.lanes * sums, self.cf * self.partial)

    def logic(self, dtype: str) -> tuple[float, float]:
        cost = arithmetic(dtype)
        units = self.lanes * (self.kp - 2 + min(self.partial + 1, self.window))
        if kind_of(dtype) == "int8":
            narrow = self.lanes * cost.narrowing_lut if self.op == "sum" else 0.0
            return (0.0, 16.0 * units + narrow)
        if self.op != "sum":
            return (0.0, 80.0 * units)
        return (units * cost.add_dsp + self.lanes * cost.mul_dsp, 200.0 * units)

    def unit(self, engine: Engine) -> Unit:
        constants = self.look_up("N WINDOW CF LANES KP PARTIAL")
        op = "add" if self.op == "sum" else self.op
        functions = {"term_t<T> combine(term_t<T> x, term_t<T> y)": [f"return ops::{op}(x, y);"]}
        exact = bool(engine.result) and int8_format(engine.dtype) is not None
        if exact:  # in steps of the scale
            constants |= limits(engine)
        if self.table:
            table = "rescale" if exact and self.op == "sum" else "scale"
            return Unit("reduce", constants, functions, tables=(table,))
        if not exact and self.scale == 1:
            argument = "engine::unscaled()"
        elif not exact and (form := parse_fixed(engine.dtype)) is not None:
            taken = form[0] - 1 + (self.window * self.kp - 1).bit_length()  # bits of a sum
            argument = "engine::ratio<{}, {}>()".format(*factor(self.scale, taken))
        elif not exact:
            argument = literal(self.scale, engine.dtype)
        elif self.op != "sum":
            argument = "engine::steps()"
        else:
            by = [f"found.multiplier = {multiplier(engine)};", "return found;"]
            functions["rescale by()"] = ["rescale found(0);", *by]
            argument = f"cfg::{identifier(engine.name)}::by()"
        return Unit("reduce", constants, functions, arguments=(argument,))

    def compute(self, layer: Layer, reads: Sequence[Tensor], table: Tables) -> Tensor:
        window = layer.window
        if window is None:
            x = reads[0].reshape(layer.rows, self.window, layer.channels)
            if self.op == "sum":
                return x.sum(1) * self.scale
            return x.amax(1) if self.op == "max" else x.amin(1)
        if self.op == "sum":
            ones = torch.ones(window.cf, 1, window.kh, window.kw)
            found = convolve(window, reads[0], ones, window.cf)
            if "scale" in layer.tables:
                return found * table(layer.tables["scale"]).reshape(window.oh, window.ow, 1)
            return found * self.scale
        maps = pad_window(window, reads[0], -np.inf)
        found = functional.max_pool2d(
            maps, (window.kh, window.kw), (window.sh, window.sw), 0, (window.dh, window.dw)
        )
        return found.permute(0, 2, 3, 1)
