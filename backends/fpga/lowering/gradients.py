"""Ops of training graphs as layers: weight gradients, gradients of pooling and of row ops."""

import dataclasses
import math
from typing import cast

from torch import fx

from pipec.backends.fpga.engines.constants import shape_of
from pipec.backends.fpga.engines.expand import OneHot, Spread
from pipec.backends.fpga.engines.matmul import Matmul
from pipec.backends.fpga.engines.network import Builder, UnsupportedError, Value, integers, lowers
from pipec.backends.fpga.engines.outer import Outer
from pipec.backends.fpga.engines.poolgrad import ArgMax, Scatter
from pipec.backends.fpga.engines.swg import Swg
from pipec.backends.fpga.engines.view import View, standard_order
from pipec.backends.fpga.lowering.elementwise import two_streams
from pipec.backends.fpga.lowering.maps import NHWC, Maps, as_maps, as_maps_value, window_of
from pipec.backends.fpga.lowering.norms import element_table, rows_through
from pipec.backends.fpga.lowering.pooling import max_pool_value, max_window
from pipec.backends.fpga.lowering.shapes import constant_stream
from pipec.graph.arguments import bind

Results = tuple[Value | None, ...]

SMALL_MATRIX = 1 << 16
"""Elements up to which a weight gradient is summed on chip in any case."""

_SMOOTH = ("gelu", "sigmoid", "silu", "tanh")
_GRADIENTS = {f"aten.{op}_backward.default": f"{op}_grad" for op in _SMOOTH}
_GRADIENTS["aten.threshold_backward.default"] = "relu_grad"


@lowers(*_GRADIENTS)
def gradient(b: Builder, node: fx.Node) -> Value:
    """``(dy, y)`` elementwise; y is the operand for GELU, exact or by tanh, and for SiLU."""
    op, (dy, y) = _GRADIENTS[str(node.target)], cast("list[fx.Node]", node.args[:2])
    if op == "relu_grad" and node.args[2] != 0:
        raise UnsupportedError(f"the gradient of a threshold at {node.args[2]}")
    if op == "gelu_grad" and bind(node)["approximate"] == "tanh":
        op = "gelu_tanh_grad"
    if not b.is_stream(dy):  # that of a mean, or a sum
        b.values[dy] = constant_stream(b, dy, standard_order(shape_of(dy)))
    return two_streams(b, node, op, dy, y)


@lowers("aten.convolution_backward.default")
def convolution_backward(b: Builder, node: fx.Node) -> Results:
    """``(dy, x, w, bias, stride, padding, dilation, transposed, out_padding, groups, mask)``.

    `backward` leaves the weight gradient.
    """
    groups = cast("int", node.args[9])
    dims = shape_of(cast("fx.Node", node.args[2]))
    if len(dims) != 4:
        raise UnsupportedError(f"the weight gradient of a convolution over {len(dims) - 2} axes")
    dy, x = _maps(b, node, node.args[0]), _maps(b, node, node.args[1])
    stride, padding, dilation = (integers(a, 2) for a in node.args[4:7])
    window = window_of(x, dims[2:], stride, dilation, padding, (dy.h, dy.w))
    n, out, cin, taps = dy.batch * dy.h * dy.w, dims[0] // groups, dims[1], math.prod(dims[2:])
    view = View.of((dims[0], cin, taps), (0, 2, 1)).reshape(dims)
    if groups == 1 and writes_by_rows(n, out, cin * taps):
        return (None, _rows_of_gradient(b, node, dy, x, window, view), None)
    nest, uses = Outer(n, out, taps, cin, groups=groups), (x.value.use(cin), dy.value.use(out))
    before = None if window.trivial else window
    return (None, b.put(nest, node, uses, view, cin, suffix="_weight", window=before), None)


def writes_by_rows(n: int, out: int, cin: int) -> bool:
    """Whether a gradient of ``[out, cin]`` of n vectors is a product that holds its operands.

    That writes the matrix row by row all through a frame. Summed on chip it would be held twice:
    where it is summed, and in the FIFO in front of memory, which takes it while the next one is
    summed.
    """
    return out * cin > SMALL_MATRIX and n * (out + cin) < 2 * out * cin


def _rows_of_gradient(
    b: Builder, node: fx.Node, dy: Maps, x: Maps, window: Swg, view: View
) -> Value:
    """``dW[m] = sum over v of dy[v, m] x[v]``, all v of a row m at a time."""
    n, taps = dy.batch * dy.h * dy.w, window.kh * window.kw
    turned = b.reorder(node, dy.value, View.of(dy.value.view.shape, (1, 0, 2, 3)), n)
    read, columns = x.value, taps * x.channels
    if not window.trivial:
        rows = View.of((n * taps, x.channels), (0, 1))
        read = b.put(window, node, (read.use(x.channels),), rows, x.channels, suffix="_windows")
    sizes = (n, taps, x.channels)
    nest = Matmul(1, dy.channels, 1, 1, columns, 1, n, b_sizes=sizes, b_roles=("k", "n", "n"))
    operands, matrix = (turned.use(n), read.use(x.channels)), (dy.channels, columns)
    found = b.put(nest, node, operands, View.of(matrix, (0, 1)), columns, suffix="_weight")
    return dataclasses.replace(found, view=view, rows=view.numel // x.channels, channels=x.channels)


def _maps(b: Builder, node: fx.Node, arg: object) -> Maps:
    """The argument as maps with channels in their logical order."""
    maps = as_maps(b, node, arg)
    if (maps.channel_order == range(maps.channels)).all():
        return maps
    return as_maps_value(b, node, b.permute(node, maps.value, NHWC))


def matrix_gradient(b: Builder, node: fx.Node, dy: Value, x: Value) -> Value | None:
    """``dy @ x`` of ``[out, n] @ [n, in]`` where n is outermost in both streams; else None.

    None too where a product of both operands takes less room (`writes_by_rows`).
    """
    if len(dy.view.shape) != 2 or len(x.view.shape) != 2:
        return None
    (out, n), cin = dy.view.shape, x.view.shape[1]
    rows, columns = View.of((out, n), (1, 0)), View.of((n, cin), (0, 1))
    kept = (dy.view.atoms, x.view.atoms) == (rows.atoms, columns.atoms)
    if not kept or writes_by_rows(n, out, cin):
        return None
    uses, view = (x.use(cin), dy.use(out)), View.of((out, cin), (0, 1))
    return b.put(Outer(n, out, 1, cin), node, uses, view, cin, suffix="_weight")


@lowers("pipec_fpga.apart.default")
def spread(b: Builder, node: fx.Node) -> Value:
    """``(x, stride, size)``."""
    maps, shape = _maps(b, node, node.args[0]), shape_of(node)
    (h, w), (sh, sw) = shape[2:], integers(node.args[1], 2)
    nest = Spread(maps.batch, h, w, maps.channels, 1, sh, sw)
    return b.put(nest, node, (maps.value.use(maps.channels),), View.of(shape, NHWC), shape[1])


@lowers("aten.max_pool2d_with_indices.default")
def max_pool_with_indices(b: Builder, node: fx.Node) -> Results:
    """Maxima, and their places if somebody reads them."""
    found = max_pool_value(b, node)
    if not any(u.args[1] == 1 for u in node.users):
        return (found, None)
    maps, window = max_window(b, node)
    if maps.padding.value != 0:
        raise UnsupportedError("places of maxima in padded maps")
    nest = ArgMax(**dataclasses.asdict(window))
    places = b.put(
        nest, node, (maps.value.use(maps.channels),), found.view, found.channels,
        suffix="_index", dtype="int32", window=window,
    )  # fmt: skip
    return (found, places)


@lowers("aten.max_pool2d_with_indices_backward.default")
def max_pool_backward(b: Builder, node: fx.Node) -> Value:
    """``(dy, x, kernel, stride, padding, dilation, ceil_mode, indices)``."""
    dy, at = _maps(b, node, node.args[0]), _maps(b, node, node.args[7])
    kernel, padding, dilation = (integers(node.args[k], 2) for k in (2, 4, 5))
    stride = integers(node.args[3] or kernel, 2)
    if dilation != (1, 1):
        raise UnsupportedError(f"the gradient of a max pooling with dilation {dilation}")
    n, c, h, w = shape = shape_of(node)
    (kh, kw), (sh, sw), (pt, pl) = kernel, stride, padding
    nest = Scatter(n, h, w, c, 1, kh, kw, sh, sw, pt=pt, pl=pl, oh=dy.h, ow=dy.w)
    uses = (dy.value.use(dy.channels), at.value.use(at.channels))
    return b.put(nest, node, uses, View.of(shape, NHWC), c)


@lowers("pipec_fpga.one_hot.default")
def one_hot(b: Builder, node: fx.Node) -> Value:
    """``(classes, count, ignored)``, in floating point."""
    value, shape = b.value(node.args[0]), shape_of(node)
    if len(shape) != 2:
        raise UnsupportedError(f"one-hot rows of a rank {len(shape) - 1} tensor")
    nest = OneHot(*shape, ignored=bind(node)["ignored"])
    return b.put(nest, node, (value.use(1),), View.of(shape, (0, 1)), shape[1], dtype=b.precision)


_ROW_GRADIENTS = {
    "aten._softmax_backward_data.default": "softmax_gradient",
    "aten._log_softmax_backward_data.default": "log_softmax_gradient",
    "pipec_fpga.layer_norm_input_grad.default": "layer_norm_gradient",
}


@lowers(*_ROW_GRADIENTS)
def row_gradient(b: Builder, node: fx.Node) -> Value:
    """``(dy, y, dim, dtype)``; of a layer normalisation ``(dy, x, shape, weight, eps)``."""
    op, y, over = _ROW_GRADIENTS[str(node.target)], b.value(node.args[1]), node.args[2]
    axes = tuple(range(len(y.view.shape)))
    axes = (axes[over],) if isinstance(over, int) else axes[-len(integers(over, 1)) :]
    y = b.innermost(node, y, axes)
    dy = b.reorder(node, b.value(node.args[0]), y.view, y.channels)
    if "softmax" in op:
        return rows_through(b, node, y, axes, dy=dy, op=op)
    tables = {"scale": element_table(b, node, y, axes, node.args[3])}
    return rows_through(b, node, y, axes, tables, dy, op=op, eps=cast("float", node.args[4]))
