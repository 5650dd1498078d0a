"""Feature maps: bringing a value into pixel-major, channel-minor order, and its channel order.

A convolution or a pooling makes the padding in front of it for nothing (`window_of`). Where
something else reads padded maps, or they leave the stage, or a number is padded with that the
reader's windows cannot have around the maps, `pad_around` pads them: a window generator with
windows of one pixel puts zeros around the maps, and other numbers are added to these zeros.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from torch import fx

from pipec.backends.fpga.engines.base import Nest
from pipec.backends.fpga.engines.network import Builder, Padding, UnsupportedError, Value
from pipec.backends.fpga.engines.parts import Array, Table
from pipec.backends.fpga.engines.reduce import Reduce
from pipec.backends.fpga.engines.steps import MapStep
from pipec.backends.fpga.engines.swg import Swg
from pipec.backends.fpga.engines.view import View, indices, merge, strides_of

NHWC = (0, 2, 3, 1)


@dataclass(frozen=True)
class Maps:
    """A batch of feature maps in a stream, rows being pixels.

    Attributes:
        value: The value, of shape ``[batch, channels, h, w]``.
        channel_order: Logical channel of every position in a pixel.
        padding: Padding that is still to be made around the maps.
    """

    value: Value
    channel_order: NDArray[np.int64]
    padding: Padding

    @property
    def batch(self) -> int:
        """Images."""
        return self.value.view.shape[0]

    @property
    def channels(self) -> int:
        """Channels."""
        return self.value.view.shape[1]

    @property
    def h(self) -> int:
        """Image rows, without padding."""
        return self.value.view.shape[2]

    @property
    def w(self) -> int:
        """Image columns, without padding."""
        return self.value.view.shape[3]


def as_maps(
    b: Builder, node: fx.Node, arg: object, groups: int = 1, spatial: int | None = None,
    around: float | None = None,
) -> Maps:  # fmt: skip
    """The argument as feature maps; reordered if its pixels, or its channel groups, are mixed.

    Args:
        b: The builder.
        node: The node that reads it.
        arg: Its argument: batch, channels, image rows and columns; without rows, or the batch.
        groups: Channel groups that must be contiguous and equally ordered.
        spatial: Axes of an image, 1 or 2; what follows batch and channels if not given.
        around: What `window_of` them has around the maps, where it makes their padding.
    """
    value = b.value(arg, around)
    if spatial is not None and len(value.view.shape) == spatial + 1:
        value = value.reshape((1, *value.view.shape))
    return as_maps_value(b, node, value, groups)


def as_maps_value(b: Builder, node: fx.Node, value: Value, groups: int = 1) -> Maps:
    """The same for a value."""
    padding = value.padding or Padding(0, 0, 0, 0, 0.0)
    shape = value.view.shape
    if len(shape) not in (3, 4):
        raise UnsupportedError(f"a tensor of rank {len(shape)} is not a feature map")
    four = value.view.reshape((*shape[:2], *[1] * (4 - len(shape)), *shape[2:]))
    value = dataclasses.replace(value, view=four, padding=None)
    order = _channel_order(value.view, groups)
    if order is None:
        value = b.permute(node, value, NHWC)
        order = np.arange(value.view.shape[1])
    return Maps(value, order, padding)


def _channel_order(view: View, groups: int) -> NDArray[np.int64] | None:
    """Where channels stand, if those of each group do so side by side and in the same order."""
    found = view.split([1])
    if found is None:
        return None
    outer, inner = found
    pixels = View.of(view.shape, NHWC).split([1])
    assert pixels is not None
    if merge(outer) != merge(pixels[0]):
        return None
    order = indices(inner, math.prod(view.shape[2:]))
    each = order.reshape(groups, -1) - np.arange(groups)[:, None] * (len(order) // groups)
    alike = (each == each[0]).all() and (np.sort(each[0]) == np.arange(each.shape[1])).all()
    return order if alike else None


def like_maps(maps: Maps, shape: tuple[int, ...]) -> View:
    """The view of maps of ``shape`` whose channels are ordered as those of others."""
    found = maps.value.view.split([1])
    assert found is not None
    n, _, h, w = shape
    old, strides = maps.h * maps.w, strides_of(shape)
    channels = [(size, stride // old * (h * w)) for size, stride in found[1]]
    pixels = [(n, strides[0]), (h, strides[2]), (w, strides[3])]
    return View(shape, merge([*pixels, *channels]))


def put_maps(
    b: Builder, node: fx.Node, nest: Nest, maps: Maps, shape: tuple[int, ...],
    *, suffix: str = "", **fields: Any,
) -> Value:  # fmt: skip
    """Append a layer from maps to maps of ``shape``, whose channels stay in their order."""
    inputs, view = (maps.value.use(maps.channels),), like_maps(maps, shape)
    return b.put(nest, node, inputs, view, shape[1], suffix=suffix, **fields)


def window_of(
    maps: Maps,
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
    padding: tuple[int, ...],
    out: tuple[int, ...],
) -> Swg:
    """The sliding window at one lane; padding of the op and padding still to be made add up.

    All are rows and columns; padding is that on top and on the left.
    """
    top, left = padding[0] + maps.padding.top, padding[1] + maps.padding.left
    n, c, h, w = maps.value.view.shape
    (kh, kw), (sh, sw), (dh, dw), (oh, ow) = kernel, stride, dilation, out
    return Swg(n, h, w, c, 1, kh, kw, sh, sw, dh, dw, top, left, oh, ow)


def pad_around(b: Builder, node: fx.Node, value: Value) -> Value:
    """The value with its padding around it, as layers named after ``node``."""
    padding = cast("Padding", value.padding)
    lead, pixels = value.view.shape[:-2], value.view.shape[-2:]
    out = (pixels[0] + padding.top + padding.bottom, pixels[1] + padding.left + padding.right)
    batch = lead[0] if len(lead) == 2 else 1
    four = (batch, math.prod(lead) // batch, *pixels)
    inside = dataclasses.replace(value, view=value.view.reshape(four), padding=None)
    maps = dataclasses.replace(as_maps_value(b, node, inside), padding=padding)
    window = window_of(maps, (1, 1), (1, 1), (1, 1), (0, 0), out)
    shape = (*four[:2], *out)
    copy = Reduce(math.prod(shape), 1, 1, op="sum")
    found = put_maps(b, node, copy, maps, shape, suffix="_border", window=window)
    if not padding.value:
        return found.reshape((*lead, *out))

    def numbers() -> Array:
        """The number around zeros."""
        table = np.full((*out, found.channels), padding.value)
        table[padding.top :, padding.left :][: pixels[0], : pixels[1]] = 0
        return table.reshape(-1, found.channels)

    step = MapStep("add", "table", table=Table(numbers), period=math.prod(out))
    return b.put_map(node, found, [step], suffix="_number").reshape((*lead, *out))
