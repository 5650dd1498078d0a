"""Vector-vector unit: depthwise convolution, each channel with its own kernel."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from pipec.backends.fpga.arithmetic import arithmetic, sums_depth
from pipec.backends.fpga.engines.base import Engine, Folded, Layer, Nest, Tables, Unit
from pipec.backends.fpga.engines.integer import bias_of, limits
from pipec.backends.fpga.engines.mvu import add_bias, bias_table, products_logic
from pipec.backends.fpga.engines.parts import Array, in_tokens, weight
from pipec.backends.fpga.engines.swg import convolve, window_factors
from pipec.backends.fpga.engines.tiles import ceil_div
from pipec.backends.fpga.runs import Loop, Run, Runs


@dataclass(frozen=True)
class Vvu(Nest):
    """Vector-vector unit: depthwise convolution; each channel has its own kernel.

    ```text
    for v in n: for c in cf: for t in taps/kp:
      x = read in0                                     # [kp][lanes]
      acc[lane] += sum over kp of weight[c][t][kp][lane] * x[kp][lane]       # acc = 0 at t == 0
      if t == taps/kp-1: write acc[lane] + bias[c][lane]
    ```

    ``partial`` sums are used in turn by t, as in `Mvu`.
    Weights: role ``weight`` ``[cf][taps/kp][kp][lanes]``, role ``bias`` ``[cf][lanes]``.
    """

    additions = 6

    n: int
    channels: int
    taps: int
    lanes: int = 1
    kp: int = 1
    partial: int = 1
    bias: bool = False

    @property
    def cf(self) -> int:
        """Tokens per output pixel."""
        return ceil_div(self.channels, self.lanes)

    @property
    def macs(self) -> int:
        return self.n * self.channels * self.taps

    @property
    def units(self) -> int:
        return self.lanes * self.kp

    def fold(self, layer: Layer, target: int, dtype: str, block: int = 0) -> Folded:
        assert layer.window is not None
        lanes, kp = window_factors(layer.window, layer.channels, target)
        taps = self.taps
        partial = arithmetic(dtype, layer.clock_mhz).add_latency if taps > kp else 1
        bias = "bias" in layer.tables or dtype == "int8"
        nest = dataclasses.replace(self, lanes=lanes, kp=kp, partial=partial, bias=bias)
        shape = (nest.cf, taps // kp, kp, lanes)

        def arrange(w: Array) -> Array:  # [channels][taps]
            w = np.pad(w, ((0, nest.cf * lanes - nest.channels), (0, 0)))
            return w.reshape(nest.cf, lanes, taps).transpose(0, 2, 1)

        tables = (
            weight("weight", shape, layer.tables["weight"], dtype, arrange),
            *bias_table(layer, (nest.cf, lanes), dtype, lambda a: in_tokens(a[None], lanes)),
        )
        depth = sums_depth(dtype, kp, partial, 1, clock_mhz=layer.clock_mhz, bias=bias)
        return Folded(nest, lanes, depth, tables, kp=kp)

    def runs(self, ii: int, inputs: int) -> Runs:
        return (Loop(self.n * self.cf, (Run(self.taps // self.kp - 1, ii, 1), Run(1, ii, 1, 1))),)

    def logic(self, dtype: str) -> tuple[float, float]:
        return products_logic(self.units, self.lanes, dtype, 1, self.partial, bias=self.bias)

    def unit(self, engine: Engine) -> Unit:
        constants = self.look_up("N CF KS=taps PARTIAL KP LANES")
        constants["KS"] //= self.kp
        constants |= limits(engine)
        return Unit("vvu", constants, tables=("weight", bias_of(engine)))

    def compute(self, layer: Layer, reads: Sequence[Tensor], table: Tables) -> Tensor:
        assert layer.window is not None
        window, channels = layer.window, self.channels
        kernel = table(layer.tables["weight"]).reshape(channels, 1, window.kh, window.kw)
        return add_bias(layer, convolve(window, reads[0], kernel, channels), table)
