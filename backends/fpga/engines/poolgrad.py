"""Max pooling in training: where the maxima lie, and the gradients added there."""

import dataclasses
import math
from dataclasses import dataclass
from itertools import groupby, pairwise

from pipec.backends.fpga.arithmetic import arithmetic, place_depth, step_cost
from pipec.backends.fpga.engines.base import Folded, Layer, Nest
from pipec.backends.fpga.engines.tiles import ceil_div, lanes_for
from pipec.backends.fpga.engines.window import Window
from pipec.backends.fpga.runs import Loop, Run, Runs


@dataclass(frozen=True)
class ArgMax(Window, Nest):
    """Where the first maximum of each window lies, as ``iy*w + ix``; behind an SWG, ``kp`` 1.

    ```text
    for image in batch: for oy in oh: for ox in ow: for c in cf: for t in taps:
      x = read in0; keep t where x is larger than all before
      if t == taps-1: write (oy*sh - pt + t/kw*dh)*w + ox*sw - pl + t%kw*dw
    ```
    """

    constants = "BATCH W CF LANES KH KW SH SW DH DW PT PL OH OW"
    additions = 11

    @property
    def outside(self) -> float:
        return -math.inf

    def fold(self, layer: Layer, target: int, dtype: str, block: int = 0) -> Folded:
        rows = self.batch * max(self.oh * self.ow * self.taps, self.h * self.w)
        lanes = lanes_for(layer.channels, rows, target)
        nest = dataclasses.replace(self, cf=ceil_div(self.cf, lanes), lanes=lanes)
        return Folded(nest, nest.lanes, 4, dtype="int32")

    def runs(self, ii: int, inputs: int) -> Runs:
        results = self.batch * self.oh * self.ow * self.cf
        return (Loop(results, (Run(self.taps - 1, ii, 1), Run(1, ii, 1, 1))),)

    def logic(self, dtype: str) -> tuple[float, float]:
        return (0.0, 120.0 * self.lanes)


@dataclass(frozen=True)
class Scatter(Window, Nest):
    """Gradient of max pooling: every element of dy is added where its maximum came from.

    ```text
    for image in batch: for oy in oh:
      for ox in ow: for c in cf:
        dy = read in0; at = read in1; acc[at[lane]][c][lane] += dy[lane]
      for iy in rows that no later window covers: for ix in w: for c in cf:
        write acc[iy][ix][c]; clear it
    ```

    ``at`` is ``iy*w + ix`` of the maps of ``h x w`` pixels. Only the rows that open windows cover
    are held.
    """

    constants = "BATCH H W CF LANES KH SH PT OH OW RING MEETS"
    additions = 11
    updates = True

    @property
    def ring(self) -> int:
        """Rows held."""
        return min(max(self.kh, self.sh), self.h)

    @property
    def meets(self) -> int:
        """Gradients of one row of windows after which one may belong to the same place again."""
        return self.cf * (1 if self.overlap else self.ow)

    @property
    def overlap(self) -> bool:
        """Whether windows next to each other may have a column in common."""
        return (self.kw - 1) * self.dw >= self.sw

    def ends(self) -> list[int]:
        """Rows that are written after each row of windows."""
        final = [min(max((oy + 1) * self.sh - self.pt, 0), self.h) for oy in range(self.oh - 1)]
        edges = [0, *final, self.h]
        return [b - a for a, b in pairwise(edges)]

    def fold(self, layer: Layer, target: int, dtype: str, block: int = 0) -> Folded:
        pixels = self.batch * (self.oh * self.ow + self.h * self.w)
        lanes = lanes_for(layer.channels, pixels, target)
        wide = dataclasses.replace(self, cf=ceil_div(self.cf, lanes), lanes=lanes)
        # neighbouring windows may add to one pixel
        ii = (
            ceil_div(arithmetic(dtype, layer.clock_mhz).add_latency, wide.cf) if self.overlap else 1
        )
        return Folded(wide, wide.lanes, place_depth((wide.w, wide.ring)), ii=ii)

    def runs(self, ii: int, inputs: int) -> Runs:
        reads = Run(self.ow * self.cf, ii, 3)
        rows = [(reads, Run(end * self.w * self.cf, ii, 0, 1)) for end in self.ends()]
        body = tuple(Loop(len(list(same)), row) for row, same in groupby(rows))
        return (Loop(self.batch, body),)

    def buffer(self, bits: int, sums: int) -> tuple[int, int]:
        return (self.lanes * bits, self.ring * self.w * self.cf)

    def logic(self, dtype: str) -> tuple[float, float]:
        dsp, lut = step_cost("add", dtype)
        return (self.lanes * dsp, self.lanes * (lut + 100))
