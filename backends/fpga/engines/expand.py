"""Zeros around values: pixels put apart, class numbers as rows."""

import dataclasses
from dataclasses import dataclass

from pipec.backends.fpga.engines.base import Folded, Layer, Nest, Rows
from pipec.backends.fpga.engines.tiles import ceil_div
from pipec.backends.fpga.runs import Loop, Run, Runs


@dataclass(frozen=True)
class OneHot(Rows):
    """Class numbers to rows of zeros with a one: ``for row: i = read in0; for c in cf: write``.

    A row is zeros throughout where the number is ``ignored`` or no class.
    """

    label = "one_hot"

    ignored: int = -1

    def runs(self, ii: int, inputs: int) -> Runs:
        return (Loop(self.rows, (Run(1, ii, 1, 1), Run(self.cf - 1, ii, 0, 1))),)

    def logic(self, dtype: str) -> tuple[float, float]:
        return (0.0, 120.0 * self.lanes)


@dataclass(frozen=True)
class Spread(Nest):
    """Zeros between pixels: a pixel of ``oh x ow`` goes to every ``sh``-th row, ``sw``-th column.

    ```text
    for image in batch: for iy in h: for ix in w: for c in cf:
      if iy % sh == 0 and ix % sw == 0: write (read in0) else: write 0
    ```

    The gradient of a strided convolution of one pixel. ``oh = ceil(h/sh)``, ``ow = ceil(w/sw)``.
    """

    batch: int
    h: int
    w: int
    cf: int
    lanes: int
    sh: int
    sw: int

    def fold(self, layer: Layer, target: int, dtype: str, block: int = 0) -> Folded:
        lanes = layer.row_lanes(target)
        nest = dataclasses.replace(self, cf=ceil_div(self.cf, lanes), lanes=lanes)
        return Folded(nest, lanes, 2)

    def runs(self, ii: int, inputs: int) -> Runs:
        full, rest = divmod(self.w, self.sw)
        pixel, zeros = Run(self.cf, ii, 1, 1), Run((self.sw - 1) * self.cf, ii, 0, 1)
        tail = (pixel, Run((rest - 1) * self.cf, ii, 0, 1)) if rest else ()
        row = (Loop(full, (pixel, zeros)), *tail)
        blank = self.w * self.cf
        rows, left = divmod(self.h, self.sh)
        image: list[Run | Loop] = [Loop(rows, (*row, Run((self.sh - 1) * blank, ii, 0, 1)))]
        if left:
            image += [*row, Run((left - 1) * blank, ii, 0, 1)]
        return (Loop(self.batch, tuple(image)),)
