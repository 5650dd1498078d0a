"""Normalisations: batch norm as an affine step, rows through the NORM engine."""

from dataclasses import replace
from typing import cast

import numpy as np
from torch import fx

from pipec.backends.fpga.lowering.constants import shape_of
from pipec.backends.fpga.lowering.dense import constant, last_axis
from pipec.backends.fpga.lowering.elementwise import affine, chain_value, composed
from pipec.backends.fpga.lowering.layers import Array, RowNorm, Table
from pipec.backends.fpga.lowering.maps import as_maps, by_channel
from pipec.backends.fpga.lowering.network import (
    Builder,
    UnsupportedError,
    Value,
    argument,
    lowers,
)
from pipec.backends.fpga.lowering.view import View, indices


@lowers("aten._native_batch_norm_legit_no_training.default")
def batch_norm_tuple(b: Builder, node: fx.Node) -> tuple[Value | None, ...]:
    """``(x, weight, bias, mean, var, momentum, eps)``: a tuple whose statistics nobody reads."""
    eps = float(cast("float", node.args[6]))
    return (_batch_norm(b, node, eps), None, None)


@lowers("aten.batch_norm.default")
def batch_norm(b: Builder, node: fx.Node) -> Value:
    """``(x, weight, bias, mean, var, training, momentum, eps, cudnn)``, inference only."""
    if node.args[5]:
        raise UnsupportedError(
            "batch normalisation in training mode", "export the model in eval mode"
        )
    return _batch_norm(b, node, float(cast("float", node.args[7])))


def _batch_norm(b: Builder, node: fx.Node, eps: float) -> Value:
    x = cast("fx.Node", node.args[0])
    if len(shape_of(x)) in (3, 4):
        maps = as_maps(b, node, x)
        value, order = maps.value, maps.channel_order
    elif len(shape_of(x)) == 2:
        value, order = last_axis(b, node, b.value(x))
    else:
        raise UnsupportedError(f"batch normalisation of a rank {len(shape_of(x))} tensor")
    parts = [None if a is None else constant(b, a, "statistics") for a in node.args[1:5]]
    sources = tuple(s for p in parts if p is not None for s in b.constants.sources(p))

    def scale() -> Array:
        gamma = 1.0 if parts[0] is None else b.constants.value(parts[0])
        assert parts[3] is not None
        return np.asarray(gamma / np.sqrt(b.constants.value(parts[3]) + eps))

    def shift() -> Array:
        beta = 0.0 if parts[1] is None else b.constants.value(parts[1])
        assert parts[2] is not None
        return np.asarray(beta - b.constants.value(parts[2]) * scale())

    tables = [by_channel(Table(fn, sources), order) for fn in (scale, shift)]
    rows = (_row(tables[0]), _row(tables[1]))
    if value.edge == b.value(x).edge and value.channels == len(order):
        found = affine(b, node, x, *rows)
    else:
        pixels = replace(value, rows=value.view.numel // len(order), channels=len(order))
        found = chain_value(b, node, pixels, list(composed((), *rows)))
    return replace(found, view=View(shape_of(node), found.view.atoms))


def _row(table: Table) -> Table:
    return Table(lambda: np.asarray(table.values())[None, :], table.sources)


@lowers("aten.softmax.int", "aten._softmax.default")
def softmax(b: Builder, node: fx.Node) -> Value:
    """``softmax(x, dim)``."""
    return over_axis(b, node, "softmax")


@lowers("aten.log_softmax.int", "aten._log_softmax.default")
def log_softmax(b: Builder, node: fx.Node) -> Value:
    """``log_softmax(x, dim)``."""
    return over_axis(b, node, "log_softmax")


def over_axis(b: Builder, node: fx.Node, op: str) -> Value:
    """A row op along one axis, brought innermost."""
    value = b.value(node.args[0])
    rank = len(value.view.shape)
    axis = cast("int", argument(node, 1, "dim")) % max(rank, 1)
    order = (*[d for d in range(rank) if d != axis], axis)
    if value.view.split([axis]) is None:
        want = View.of(value.view.shape, order)
        value = b.reorder(node, value, want, value.view.shape[axis])
    return rows_through(b, node, value, (axis,), op=op)


@lowers("aten.layer_norm.default")
def layer_norm(b: Builder, node: fx.Node) -> Value:
    """``layer_norm(x, normalized_shape, weight, bias, eps)``."""
    eps = float(cast("float", argument(node, 4, "eps", 1e-5)))
    return _normalised(b, node, "layer_norm", (2, 3), eps)


@lowers("aten.rms_norm.default")
def rms_norm(b: Builder, node: fx.Node) -> Value:
    """``rms_norm(x, normalized_shape, weight, eps)``."""
    eps = argument(node, 3, "eps")
    return _normalised(b, node, "rms_norm", (2,), 1.1920929e-07 if eps is None else float(str(eps)))


@lowers("aten.native_layer_norm.default")
def native_layer_norm(b: Builder, node: fx.Node) -> tuple[Value | None, ...]:
    """The same as a tuple whose statistics nobody reads."""
    return (
        _normalised(b, node, "layer_norm", (2, 3), float(cast("float", node.args[4]))),
        None,
        None,
    )


def _normalised(
    b: Builder, node: fx.Node, op: str, positions: tuple[int, ...], eps: float
) -> Value:
    value = b.value(node.args[0])
    rank, count = len(value.view.shape), len(cast("list[int]", node.args[1]))
    axes = tuple(range(rank - count, rank))
    if value.view.split(axes) is None:
        want = View.of(value.view.shape, range(rank))
        value = b.reorder(node, value, want, value.view.shape[-1])
    tables = [element_table(b, node, value, axes, argument(node, p, "weight")) for p in positions]
    scale, shift = (*tables, None)[:2]
    return rows_through(b, node, value, axes, op=op, eps=eps, scale=scale, shift=shift)


def element_table(
    b: Builder, node: fx.Node, value: Value, axes: tuple[int, ...], arg: object
) -> Table | None:
    """A constant of the shape of ``axes``, flat in stream order; None if there is none."""
    if arg is None:
        return None
    found, split = constant(b, arg, "scale"), value.view.split(axes)
    assert split is not None
    order = indices(split[1])
    return by_channel(b.constants.table(found, (len(order),), (0,)), order)


def rows_through(
    b: Builder,
    node: fx.Node,
    value: Value,
    axes: tuple[int, ...],
    *,
    op: str,
    eps: float = 0.0,
    scale: Table | None = None,
    shift: Table | None = None,
    lrn: tuple[int, float, float, float] = (0, 0.0, 0.0, 0.0),
) -> Value:
    """A NORM layer over rows made of ``axes``, which are innermost in the stream."""
    row = 1
    for axis in axes:
        row *= value.view.shape[axis]
    cin = value.channels if row % value.channels == 0 else row
    layer = RowNorm(
        **b.facts(node),
        inputs=(value.use(cin),),
        rows=value.view.numel // cin,
        channels=cin,
        n=value.view.numel // row,
        taps=row // cin,
        cin=cin,
        op=op,
        eps=eps,
        size=lrn[0],
        alpha=lrn[1],
        beta=lrn[2],
        k=lrn[3],
        scale=scale,
        shift=shift,
    )
    view = value.view.reshape(shape_of(node))
    return Value(b.add(layer), layer.rows, layer.channels, view, value.dtype)
