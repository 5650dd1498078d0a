"""Normalisations: batch norm as an affine step, rows through the NORM engine."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np
from torch import fx

from pipec.backends.fpga.engines.norm import Norm
from pipec.backends.fpga.engines.parts import Array, Table
from pipec.backends.fpga.lowering.constants import shape_of
from pipec.backends.fpga.lowering.dense import constant, last_axis
from pipec.backends.fpga.lowering.elementwise import affine, chain_value, composed
from pipec.backends.fpga.lowering.maps import as_maps
from pipec.backends.fpga.lowering.network import Builder, UnsupportedError, Value, argument, lowers
from pipec.backends.fpga.lowering.view import View, indices


@lowers("aten._native_batch_norm_legit_no_training.default", "aten.batch_norm.default")
def batch_norm(b: Builder, node: fx.Node) -> Value:
    """``(x, weight, bias, mean, var[, training], momentum, eps)``, inference only."""
    native = "native" in str(node.target)
    if not native and node.args[5]:
        raise UnsupportedError(
            "batch normalisation in training mode", "export the model in eval mode"
        )
    eps = float(cast("float", node.args[6 if native else 7]))
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

    rows = [Table(fn, sources).through(lambda v: v[None, order]) for fn in (scale, shift)]
    if value.edge == b.value(x).edge and value.channels == len(order):
        found = affine(b, node, x, *rows)
    else:
        pixels = replace(value, rows=value.view.numel // len(order), channels=len(order))
        found = chain_value(b, node, pixels, list(composed((), *rows)))
    return replace(found, view=View(shape_of(node), found.view.atoms))


_OVER_AXIS = {
    "aten.softmax.int": "softmax",
    "aten._softmax.default": "softmax",
    "aten.log_softmax.int": "log_softmax",
    "aten._log_softmax.default": "log_softmax",
}


@lowers(*_OVER_AXIS)
def over_axis(b: Builder, node: fx.Node) -> Value:
    """``softmax(x, dim)``: a row op along one axis, brought innermost."""
    value = b.value(node.args[0])
    axis = cast("int", argument(node, 1, "dim")) % max(len(value.view.shape), 1)
    value = b.innermost(node, value, (axis,))
    return rows_through(b, node, value, (axis,), op=_OVER_AXIS[str(node.target)])


@lowers("aten.layer_norm.default", "aten.native_layer_norm.default", "aten.rms_norm.default")
def layer_norm(b: Builder, node: fx.Node) -> Value:
    """``layer_norm(x, normalized_shape, weight, bias, eps)``; ``rms_norm`` has no bias."""
    rms = "rms_norm" in str(node.target)
    eps = argument(node, 3 if rms else 4, "eps", None if rms else 1e-5)
    value, count = b.value(node.args[0]), len(cast("list[int]", node.args[1]))
    axes = tuple(range(len(value.view.shape)))[-count:]
    value = b.innermost(node, value, axes)
    roles = {2: "scale"} if rms else {2: "scale", 3: "shift"}
    tables = {
        role: element_table(b, node, value, axes, argument(node, place, "weight"))
        for place, role in roles.items()
    }
    op, eps = "rms_norm" if rms else "layer_norm", 1.1920929e-07 if eps is None else float(str(eps))
    return rows_through(b, node, value, axes, tables, op=op, eps=eps)


def element_table(
    b: Builder, node: fx.Node, value: Value, axes: tuple[int, ...], arg: object
) -> Table | None:
    """A constant of the shape of ``axes``, flat in stream order; None if there is none."""
    if arg is None:
        return None
    found, split = constant(b, arg, "scale"), value.view.split(axes)
    assert split is not None
    order = indices(split[1])
    return b.constants.table(found, (len(order),), (0,)).through(lambda w: w[order])


_PASSES = {"softmax": 3, "log_softmax": 3, "layer_norm": 3, "rms_norm": 2, "lrn": 2}
"""Passes over a row, reading and writing included."""


def rows_through(
    b: Builder,
    node: fx.Node,
    value: Value,
    axes: tuple[int, ...],
    tables: Mapping[str, Table | None] | None = None,
    *,
    op: str,
    **fields: Any,
) -> Value:
    """A NORM layer over rows made of ``axes``, which are innermost in the stream."""
    row, cin = row_of(value, axes)
    rows = value.view.numel // row
    given = {role: table is not None for role, table in (tables or {}).items()}
    nest = Norm(rows, cin, row // cin, op=op, passes=_PASSES[op], **given, **fields)
    return b.put(nest, node, (value.use(cin),), value.view, cin, tables=tables)


def row_of(value: Value, axes: tuple[int, ...]) -> tuple[int, int]:
    """Elements of a row made of ``axes``, and of one of its positions."""
    row = math.prod(value.view.shape[axis] for axis in axes)
    return row, value.channels if row % value.channels == 0 else row
