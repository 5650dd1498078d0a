"""Outer products: the gradient of a weight matrix."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pipec.backends.fpga.arithmetic import arithmetic, sums_depth
from pipec.backends.fpga.engines.base import Folded, Layer, Tables
from pipec.backends.fpga.engines.mvu import Product, input_tokens, products_logic
from pipec.backends.fpga.engines.tiles import ceil_div
from pipec.backends.fpga.runs import Loop, Run, Runs


@dataclass(frozen=True)
class Outer(Product):
    """Outer-product unit: gradient of a weight matrix, ``dW = sum over v of dy[v] x[v]^T``.

    ```text
    for v in n: for g in groups: for f in nf: for s in sf:
      if f == 0: x[s] = read in0                      # SIMD elements, windows of an SWG
      if s == 0: dy = read in1                        # PE elements
      acc[v % partial][g][f][s][pe][simd] += dy[pe] * x[s][simd]
    for g in groups: for m in rows: for s in sf: write total(acc)[g][m/PE][s][m%PE]    # SIMD
    ```

    Attributes:
        partial: Accumulators used in turn by v, where one pass over a vector is shorter than the
            adder's latency.
    """

    constants = "N GROUPS ROWS NF SF PE SIMD PARTIAL"

    partial: int = 1

    @property
    def writes(self) -> int:
        """Output tokens per frame."""
        return self.groups * self.rows * self.sf

    def fold(self, layer: Layer, target: int, dtype: str, block: int = 0) -> Folded:
        """Cheapest PE and SIMD: products per vector, and the matrix written at the end."""
        found = list[tuple[int, ...]]()
        window, vectors = layer.window, self.n * self.groups
        for simd, kp in input_tokens(self, window):
            lanes, sf = simd // kp, self.taps // kp * ceil_div(self.channels, simd // kp)
            drain = self.groups * self.rows * sf
            pixels = window.batch * window.h * window.w if window else 0
            reading = pixels * ceil_div(self.channels, lanes) * self.groups
            left = max(target - drain, 1)
            pe = ceil_div(self.rows, max(left // (vectors * sf), 1))
            cycles = max(vectors * ceil_div(self.rows, pe) * sf + drain, reading)
            found.append((max(cycles - target, 0), pe * simd, pe + simd, pe, simd, kp))
        *_, pe, simd, kp = min(found, key=lambda form: form[:3])
        latency = arithmetic(dtype, layer.clock_mhz).add_latency
        nest = dataclasses.replace(self, pe=pe, simd=simd, kp=kp)
        partial = min(ceil_div(latency, nest.groups * nest.nf * nest.sf), max(nest.n, 1))
        nest = dataclasses.replace(nest, partial=partial)
        depth = sums_depth(dtype, 1, partial, 1, clock_mhz=layer.clock_mhz)
        return Folded(nest, simd, depth, reads=(simd // kp, pe), kp=kp, merged=kp)

    def runs(self, ii: int, inputs: int) -> Runs:
        nf, sf, vectors = self.nf, self.sf, self.n * self.groups
        rest = (Run(sf - 1, ii, 1), Run(min(nf - 1, 1), ii, 2), Run(max(nf - 2, 0), sf * ii, 2))
        last = (sf if nf > 1 else 1) * ii  # what the silent firings of the last f take
        return (
            Run(1, ii, 3), *rest,
            Loop(vectors - 1, (Run(1, last, 3), *rest)),
            Run(1, last, 0, 1), Run(self.writes - 1, ii, 0, 1),
        )  # fmt: skip

    def buffer(self, bits: int, sums: int) -> tuple[int, int]:
        words = self.partial * self.groups * self.nf * self.sf
        return (self.pe * self.simd * bits, words + ceil_div(self.sf, self.pe))

    def logic(self, dtype: str) -> tuple[float, float]:
        return products_logic(self.pe * self.simd, self.simd, dtype, 1, self.partial)

    def compute(self, layer: Layer, reads: Sequence[Tensor], table: Tables) -> Tensor:
        x, dy = (read.reshape(self.n, self.groups, -1) for read in reads)
        return torch.einsum("ngm,ngk->gmk", dy, x)
