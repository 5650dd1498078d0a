"""Sliding-window generator: a line buffer that turns pixels into windows (im2col)."""

import dataclasses
from dataclasses import dataclass
from itertools import product

from torch import Tensor
from torch.nn import functional

from pipec.backends.fpga.cpp import literal
from pipec.backends.fpga.engines.base import Engine, Folded, Layer, Nest, Unit
from pipec.backends.fpga.engines.parts import lut_ram
from pipec.backends.fpga.engines.tiles import LOAD_SHARES, ceil_div, ceil_tiles, lanes_for
from pipec.backends.fpga.engines.window import Window, image_cycles, image_rows, line_of, ring_of
from pipec.backends.fpga.numbers import bits_of
from pipec.backends.fpga.runs import Loop, Run, Runs


@dataclass(frozen=True)
class Swg(Window, Nest):
    """Windows of maps, one after the other; when it reads and writes is in `Window`."""

    additions = 18

    def fold(self, layer: Layer, target: int, dtype: str, block: int = 0) -> Folded:
        # a product loads them in bursts, for which they would otherwise wait in a FIFO
        rows = max(layer.rows, layer.inputs[0].rows)
        lanes = lanes_for(layer.channels, rows, target // max(LOAD_SHARES))
        return Folded(self, lanes, 3)

    def runs(self, ii: int, inputs: int) -> Runs:
        rows = []
        for row in image_rows(self):
            pairs = zip(row.counts.tolist(), row.codes.tolist(), strict=True)
            body = tuple(Run(count, ii, code & 1, code >> 1) for count, code in pairs)
            rows.append(Loop(row.times, body))
        return (Loop(self.batch, tuple(rows)),)

    def busy(self, ii: int, inputs: int) -> int:
        """Cycles per frame; its run table would be long."""
        return self.batch * image_cycles(self) * ii

    def buffer(self, bits: int, sums: int) -> tuple[int, int]:
        if not self.is_line:
            return (self.lanes * bits, ring_of(self).slots)
        return ((self.kh - 1) * self.dh * self.lanes * bits, line_of(self).pitch * self.cf)

    def logic(self, dtype: str) -> tuple[float, float]:
        columns = self.kh * (self.kw - 1) * self.dw if self.is_line else 0  # beside the newest one
        word = self.lanes * bits_of(dtype)
        return (0.0, float(self.kp * word + lut_ram(columns * word, self.cf)))

    def unit(self, engine: Engine) -> Unit:
        names = "BATCH H W CF LANES KH KW SH SW DH DW PT PL OH OW GROUPS KP"
        constants = self.look_up(names) | {"FIRINGS": image_cycles(self)}
        if not self.is_line:
            ring = ring_of(self)
            constants |= {"LEAD": ring.lead, "START": ring.start, "SLOTS": ring.slots}
        name = "swg_line" if self.is_line else "swg_ring"
        pad = literal(self.pad_value, engine.dtype)
        return Unit(name, constants, {"real_t<T> pad()": [f"return {pad};"]})


def window_cycles(window: Window, cf: int, kp: int) -> int:
    """Cycles that a window generator needs for a frame; of a ring an upper bound."""
    w, nest = window, dataclasses.replace(window, cf=cf, groups=cf, kp=kp)
    if nest.is_line:
        return nest.batch * image_cycles(nest)
    fill = max((w.kh - 1) * w.dh - w.pt, 0) * w.w + w.kw
    paced = max(w.oh * max(w.sh * w.w, w.ow * nest.taps), w.h * w.w)
    return (w.batch * (paced + fill) + 4) * cf


def window_factors(window: Window, channels: int, target: int) -> tuple[int, int]:
    """Fewest lanes times kernel positions for a channel-wise window operation."""

    def score(form: tuple[int, int]) -> tuple[int, int, int]:
        """Cycles above the target, elements of a token."""
        lanes, kp = form
        late = max(window_cycles(window, ceil_div(channels, lanes), kp) - target, 0)
        return late, lanes * kp, kp

    return min(product(ceil_tiles(channels), {1, window.kw, window.taps}), key=score)


def pad_window(window: Window, x: Tensor, value: float) -> Tensor:
    """``[batch, channels, h, w]`` with the padding of a window around it."""
    maps = x.reshape(window.batch, window.h, window.w, window.cf).permute(0, 3, 1, 2)
    high = (window.oh - 1) * window.sh + (window.kh - 1) * window.dh + 1
    wide = (window.ow - 1) * window.sw + (window.kw - 1) * window.dw + 1
    bottom, right = high - window.pt - window.h, wide - window.pl - window.w
    return functional.pad(maps, (window.pl, right, window.pt, bottom), value=value)


def convolve(window: Window, x: Tensor, weight: Tensor, groups: int) -> Tensor:
    """``[batch, oh, ow, out]`` of ``x``."""
    found = functional.conv2d(
        pad_window(window, x, 0.0), weight, None, (window.sh, window.sw), 0,
        (window.dh, window.dw), groups,
    )  # fmt: skip
    return found.permute(0, 2, 3, 1)
