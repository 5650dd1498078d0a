"""Convolutions and linear layers: products with a constant matrix."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from torch import fx

from pipec.backends.fpga.engines.base import Layer, Use
from pipec.backends.fpga.engines.constants import shape_of
from pipec.backends.fpga.engines.mvu import Mvu
from pipec.backends.fpga.engines.network import Builder, UnsupportedError, Value, integers, lowers
from pipec.backends.fpga.engines.parts import PORT_BITS, Array, Table
from pipec.backends.fpga.engines.route import Concat
from pipec.backends.fpga.engines.swg import Swg
from pipec.backends.fpga.engines.tiles import divisors
from pipec.backends.fpga.engines.view import View, indices, merge
from pipec.backends.fpga.engines.vvu import Vvu
from pipec.backends.fpga.lowering.maps import (
    NHWC,
    Maps,
    as_maps,
    as_maps_value,
    put_maps,
    window_of,
)
from pipec.backends.fpga.numbers import bits_of
from pipec.graph.arguments import bind


def constant(b: Builder, node: object, what: str) -> fx.Node:
    """An argument that must be known at compile time.

    Raises:
        UnsupportedError: It is not.
    """
    if not isinstance(node, fx.Node) or node not in b.constants:
        raise UnsupportedError(
            f"its {what} is computed at run time", "weights must be parameters or constants"
        )
    return node


def bias_of(b: Builder, bias: object, shape: tuple[int, ...]) -> Table | None:
    """The bias as a table of that shape, one number for all repeated; None if there is none."""
    if bias is None:
        return None
    node, count = constant(b, bias, "bias"), math.prod(shape)

    def values() -> Array:
        return np.broadcast_to(b.constants.value(node).reshape(-1), (count,)).reshape(shape)

    return Table(values, b.constants.sources(node))


@lowers("aten.convolution.default")
def conv(b: Builder, node: fx.Node) -> Value:
    """``convolution(x, w, b, stride, padding, dilation, transposed, output_padding, groups)``.

    Of transposed ones what `written.gather_steps` leaves.
    """
    stride, padding, dilation, transposed, _, groups = cast("Any", node.args[3:])
    if transposed:
        raise UnsupportedError(
            "a transposed convolution over other than two axes, of a stride larger than its "
            "kernel, or with both stride and dilation"
        )
    weight = constant(b, node.args[1], "weight")
    dims = shape_of(weight)
    if len(dims) > 4:
        raise UnsupportedError(f"a convolution over {len(dims) - 2} axes has no engine")
    if dims[:2] == (1, 1) and len(dims) == len(shape_of(node)) == 4 and shape_of(node)[0] > 1:
        return _one_kernel(b, node, (stride, padding, dilation), weight)
    depthwise = dims[1] == 1 and groups > 1 and dims[0] == groups
    maps = as_maps(b, node, node.args[0], 1 if depthwise else groups, len(dims) - 2, 0.0)
    kernel = (*((1,) if len(dims) == 3 else ()), *dims[2:])
    out = shape_of(node)[-2:] if len(dims) == 4 else (1, shape_of(node)[-1])
    steps, spread = _pair(stride, dims, 1), _pair(dilation, dims, 1)
    border = _pair(padding, dims, 0)
    window = window_of(maps, kernel, steps, spread, border, out)
    if depthwise:
        table = b.constants.table(weight, (maps.channels, window.taps), (0, 1))
        bias = bias_of(b, node.args[2], (maps.channels,))
        return _depthwise(b, node, maps, window, (table, bias)).reshape(shape_of(node))
    bias = bias_of(b, node.args[2], (groups, dims[0] // groups))
    return _dense_conv(b, node, maps, window, (groups, weight, bias))


def _one_kernel(
    b: Builder, node: fx.Node, geometry: tuple[object, object, object], weight: fx.Node
) -> Value:
    """One kernel for every map of a batch of single channels: a depthwise convolution.

    The batch (mostly batch and channels of an average pooling, flattened) takes the place of the
    channels.
    """
    value = b.value(node.args[0], 0.0)
    swapped = value.view.permute((1, 0, 2, 3))
    if swapped is None:
        raise UnsupportedError("a batch of maps in a mixed element order")
    maps = as_maps_value(b, node, dataclasses.replace(value, view=swapped))
    dims, out = shape_of(weight), shape_of(node)
    steps, border, spread = (_pair(v, dims, 1) for v in geometry)
    window = window_of(maps, dims[2:], steps, spread, border, out[2:])
    kernels = Table(
        lambda: np.repeat(b.constants.value(weight).reshape(1, -1), maps.channels, 0),
        b.constants.sources(weight),
    )
    bias = bias_of(b, node.args[2], (maps.channels,))
    found = _depthwise(b, node, maps, window, (kernels, bias))
    back = found.view.permute((1, 0, 2, 3))
    assert back is not None
    return dataclasses.replace(found, view=back)


def _pair(value: object, dims: tuple[int, ...], single: int) -> tuple[int, ...]:
    found = integers(value, len(dims) - 2)
    return (single, *found) if len(found) == 1 else found


def _dense_conv(
    b: Builder, node: fx.Node, maps: Maps, window: Swg, tables: tuple[int, fx.Node, Table | None]
) -> Value:
    groups, weight, bias = tables
    dims = shape_of(weight)
    out, cin, taps = dims[0] // groups, dims[1], window.kh * window.kw
    order = maps.channel_order[:cin]

    def values() -> Array:
        w = b.constants.plain(weight).reshape(groups, out, cin, taps)
        return np.asarray(w.transpose(0, 1, 3, 2)[..., order])

    pixels = window.batch * window.oh * window.ow
    layer = Layer(
        **b.facts(node), inputs=(maps.value.use(cin),), rows=pixels * groups, channels=out,
        nest=Mvu(pixels, out, taps, cin, groups=groups),
        window=None if window.trivial else window,
        tables=_tables(Table(values, b.constants.sources(weight)), bias),
    )  # fmt: skip
    even = window.w % 2 == 0 and (window.sw, window.dw) == (2, 1)
    slow = maps.value.edge not in b.layers and window.batch * window.h * window.w > b.pace > 0
    if groups == 1 and even and slow:  # a model's input, pixel by pixel
        layer = pair_pixels(layer)
    view = View.of((window.batch, dims[0], window.oh, window.ow), NHWC)
    found = Value(b.add(layer), pixels, dims[0], view, maps.value.dtype)
    return found.reshape(shape_of(node))


def _tables(weight: Table, bias: Table | None) -> dict[str, Table]:
    return {"weight": weight} if bias is None else {"weight": weight, "bias": bias}


def pair_pixels(layer: Layer) -> Layer:
    """The same convolution of horizontal stride 2 over pairs of pixels, with stride 1.

    It is in one group, over maps of even width. Two neighbours are one pixel of twice the channels,
    so that half as many tokens are read. The kernel is widened to whole pairs with zeros.
    """
    window, nest, weight = layer.window, layer.nest, layer.tables["weight"]
    assert window is not None
    assert isinstance(nest, Mvu)
    left = (window.pl + 1) // 2
    kw = left + (window.kw - 1 - window.pl) // 2 + 1
    first = 2 * left - window.pl  # columns of zeros on the left

    def widen(w: Array) -> Array:
        """The weights for tokens of two pixels, zeros where the window has none."""
        w = w.reshape(1, nest.rows, window.kh, window.kw, nest.channels)
        wide = np.zeros((1, nest.rows, window.kh, 2 * kw, nest.channels), dtype=w.dtype)
        wide[..., first : first + window.kw, :] = w
        return wide.reshape(1, nest.rows, window.kh * kw, 2 * nest.channels)

    (use,) = layer.inputs
    return dataclasses.replace(
        layer,
        inputs=(dataclasses.replace(use, rows=use.rows // 2, channels=use.channels * 2),),
        nest=dataclasses.replace(nest, taps=window.kh * kw, channels=2 * nest.channels),
        window=dataclasses.replace(window, w=window.w // 2, cf=2 * window.cf, kw=kw, sw=1, pl=left),
        used=window.kw / (2 * kw),
    ).with_tables(weight=weight.apply(widen))


def _depthwise(
    b: Builder, node: fx.Node, maps: Maps, window: Swg, found: tuple[Table, Table | None]
) -> Value:
    shape = (window.batch, maps.channels, window.oh, window.ow)
    tables = _tables(*found)
    nest = Vvu(math.prod(shape) // maps.channels, maps.channels, window.taps)
    ordered = {role: t.apply(lambda w: w[maps.channel_order]) for role, t in tables.items()}
    return put_maps(b, node, nest, maps, shape, window=window, tables=ordered)


@lowers("aten.linear.default")
def linear(b: Builder, node: fx.Node) -> Value:
    """``linear(x, weight[out, in], bias)``."""
    return dense(b, node, node.args[0], node.args[1], bind(node)["bias"], transposed=False)


@lowers("aten.addmm.default")
def addmm(b: Builder, node: fx.Node) -> Value:
    """``addmm(bias, x, weight[in, out])`` with beta and alpha 1."""
    if node.kwargs.get("beta", 1) != 1 or node.kwargs.get("alpha", 1) != 1:
        raise UnsupportedError("addmm with beta or alpha other than 1")
    return dense(b, node, node.args[1], node.args[2], node.args[0], transposed=True)


def dense(
    b: Builder, node: fx.Node, x: object, weight: object, bias: object, *, transposed: bool
) -> Value:
    """``x @ weight.T + bias`` (or ``x @ weight``) with constant weight and bias."""
    matrix = constant(b, weight, "weight")
    value, order = last_axis(b, node, b.value(x))
    shape = value.view.shape
    k = shape[-1]
    out = shape_of(node)[-1]
    cin = value.channels if k % value.channels == 0 else k

    def values(part: slice = slice(None)) -> Array:
        """The matrix, or some of its rows, its columns in the order of the tokens."""
        w = b.constants.plain(matrix)
        w = (w.T if transposed else w)[part]
        if not np.array_equal(order, np.arange(k)):
            w = np.take(w, order, axis=1)  # stays row-major, unlike w[:, order]
        return np.asarray(w.reshape(1, -1, k // cin, cin))

    rows = value.view.numel // k
    layer = Layer(
        **b.facts(node), inputs=(value.use(cin),), rows=rows, channels=out,
        nest=Mvu(rows, out, k // cin, cin),
        tables=_tables(Table(values, b.constants.sources(matrix)), bias_of(b, bias, (1, out))),
    )  # fmt: skip
    split = value.view.split([len(shape) - 1])
    assert split is not None
    atoms = [(size, stride // k * out) for size, stride in split[0]]
    view = View(shape_of(node), merge([*atoms, (out, 1)]))
    return Value(_in_parts(b, node, layer, values), rows, out, view, value.dtype)


def _in_parts(b: Builder, node: fx.Node, layer: Layer, values: Callable[[slice], Array]) -> str:
    """Append a layer, in parts that memory ports could read side by side at the pace; its edge.

    ``values`` gives the weights of some outputs alone: a matrix may be larger than a gigabyte.
    A port reads one beat per cycle. A matrix of more beats than the pace has cycles is parted by
    outputs, and one that is larger than the memory behind a port; into as many parts as there are
    ports at most. Each lies on chip or in memory of its own.
    """
    assert isinstance(layer.nest, Mvu)
    out = layer.channels
    bits = out * layer.nest.taps * layer.nest.channels * bits_of(b.precision)
    wanted = math.ceil(bits / PORT_BITS / b.pace) if b.pace else 1
    least = math.ceil(bits / 8 / b.memory.room)
    counts = [p for p in divisors(out) if p <= b.memory.count]
    count = max((p for p in counts if p <= wanted), default=1)
    if count < least:
        count = next((p for p in counts if p >= least), count)
    if count == 1:
        return b.add(layer)
    size = out // count
    cuts = [slice(k * size, (k + 1) * size) for k in range(count)]
    parts = [b.add(_outputs(layer, values, cut, k)) for k, cut in enumerate(cuts)]
    uses = tuple(Use(part, layer.rows, size, b.precision) for part in parts)
    view = View.of((layer.rows, out), (0, 1))
    return b.put(Concat(layer.rows, (size,) * count), node, uses, view, out).edge


def _outputs(layer: Layer, values: Callable[[slice], Array], cut: slice, number: int) -> Layer:
    """Some of the outputs of a layer in one group."""
    size, tables = cut.stop - cut.start, layer.tables
    weight = Table(lambda: values(cut), tables["weight"].sources)
    bias = tables.get("bias")
    part = bias and bias.apply(lambda h: h[:, cut])
    return dataclasses.replace(
        layer, name=f"{layer.name}_part{number}", channels=size,
        nest=dataclasses.replace(cast("Mvu", layer.nest), rows=size), tables=_tables(weight, part),
    )  # fmt: skip


def last_axis(b: Builder, node: fx.Node, value: Value) -> tuple[Value, NDArray[np.int64]]:
    """The value with its last logical axis innermost in the stream, and that axis's order.

    Reorders to row-major only if the last axis is mixed with others.
    """
    axis = len(value.view.shape) - 1
    value = b.innermost(node, value, (axis,))
    found = value.view.split([axis])
    assert found is not None
    return value, indices(found[1])
