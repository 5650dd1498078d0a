"""Normalisations: rows through the NORM engine."""

import math
from collections.abc import Mapping
from typing import Any, cast

from torch import fx

from pipec.backends.fpga.engines.norm import Norm
from pipec.backends.fpga.engines.parts import Table
from pipec.backends.fpga.lowering.dense import constant
from pipec.backends.fpga.lowering.network import Builder, UnsupportedError, Value, argument, lowers
from pipec.backends.fpga.lowering.view import indices


@lowers("aten.batch_norm.default")
def batch_norm(b: Builder, node: fx.Node) -> Value:
    """In inference it is written as numbers for each channel (`written.batch_norm`)."""
    raise UnsupportedError("batch normalisation in training mode", "export the model in eval mode")


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


def rows_through(
    b: Builder,
    node: fx.Node,
    value: Value,
    axes: tuple[int, ...],
    tables: Mapping[str, Table | None] | None = None,
    dy: Value | None = None,
    *,
    op: str,
    **fields: Any,
) -> Value:
    """A NORM layer over rows made of ``axes``, which are innermost in the stream.

    That of a gradient reads ``dy`` in the same order too.
    """
    row = math.prod(value.view.shape[axis] for axis in axes)
    rows, cin = value.view.numel // row, value.channels if row % value.channels == 0 else row
    given: dict[str, Any] = {k: table is not None for k, table in (tables or {}).items()}
    nest = Norm(rows, cin, row // cin, op=op, **given, **fields)
    uses = tuple(v.use(cin) for v in (dy, value) if v is not None)
    return b.put(nest, node, uses, value.view, cin, tables=tables)
