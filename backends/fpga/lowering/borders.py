"""Padding that no window generator of its readers makes: one of its own, with windows of one pixel.

A convolution or a pooling makes the padding in front of it for nothing (`maps.window_of`). Where
something else reads padded maps, or they leave the stage, or a number is padded with that the
reader's windows cannot have around the maps, the padding is made here: zeros around the maps, and
other numbers added to these zeros.
"""

import dataclasses
import math
from typing import cast

import numpy as np
from torch import fx

from pipec.backends.fpga.engines.parts import Array, Table
from pipec.backends.fpga.engines.reduce import Reduce
from pipec.backends.fpga.engines.steps import MapStep
from pipec.backends.fpga.lowering.maps import as_maps_value, put_maps, window_of
from pipec.backends.fpga.lowering.network import Builder, Padding, Value


def around(b: Builder, node: fx.Node, value: Value) -> Value:
    """The value with its padding around it, as layers named after ``node``."""
    padding = cast("Padding", value.padding)
    lead, pixels = value.view.shape[:-2], value.view.shape[-2:]
    out = (
        pixels[0] + padding.top + padding.bottom,
        pixels[1] + padding.left + padding.right,
    )
    batch = lead[0] if len(lead) == 2 else 1
    four = (batch, math.prod(lead) // batch, *pixels)
    inside = dataclasses.replace(value, view=value.view.reshape(four), padding=None)
    maps = dataclasses.replace(as_maps_value(b, node, inside), padding=padding)
    window = window_of(maps, (1, 1), (1, 1), (1, 1), (0, 0), out)
    shape = (*four[:2], *out)
    copy = Reduce(math.prod(shape), 1, 1, op="sum")
    found = put_maps(b, node, copy, maps, shape, suffix="_border", window=window)
    if padding.value:
        found = _numbered(b, node, found, padding, pixels)
    return found.reshape((*lead, *out))


def _numbered(
    b: Builder, node: fx.Node, value: Value, padding: Padding, pixels: tuple[int, ...]
) -> Value:
    """The number added to the zeros around the maps."""
    h, w = value.view.shape[-2:]

    def numbers() -> Array:
        found = np.full((h, w, value.channels), padding.value)
        found[padding.top : padding.top + pixels[0], padding.left : padding.left + pixels[1]] = 0
        return found.reshape(-1, value.channels)

    step = MapStep("add", "table", table=Table(numbers), period=h * w)
    return b.put_map(node, value, [step], suffix="_number")
