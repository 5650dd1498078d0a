"""Normalisations: rows through the NORM engine.

Torch writes a local response normalisation as ten nodes, reshapes in between::

    div(x, pow(add(mul(avg_pool(pad(mul(x, x))), alpha), k), beta))
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard, cast

from torch import fx

from pipec.backends.fpga.engines.norm import Norm
from pipec.backends.fpga.engines.parts import Table
from pipec.backends.fpga.lowering.dense import constant
from pipec.backends.fpga.lowering.network import (
    Builder,
    Composite,
    UnsupportedError,
    Value,
    argument,
    integers,
    lowers,
)
from pipec.backends.fpga.lowering.view import indices
from pipec.graph.ir import Graph, op_name


@lowers("aten._native_batch_norm_legit_functional.default")
def batch_norm(b: Builder, node: fx.Node) -> Value:
    """In inference it is `written.batch_norm`, on a board that trains `rules.batch_norm`."""
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


_SHAPE_ONLY = ("aten.reshape.default", "aten.squeeze.dim", "aten.unsqueeze.default")
_POOLS = ("aten.avg_pool2d.default", "aten.avg_pool3d.default")


def find(graph: Graph) -> dict[fx.Node, Composite]:
    """The last node of every local response normalisation in a graph, as a NORM over channels."""
    found = {node: _match(node) for node in graph.calls if op_name(node) == "aten.div.Tensor"}
    return {node: one for node, one in found.items() if one is not None}


def _match(node: fx.Node) -> Composite | None:
    """Follows the chain of nodes upwards from a division; None where it is something else."""
    x, power = node.args[:2]
    pool, numbers, inner = power, list[float](), list[fx.Node]()
    for op in ("aten.pow.Tensor_Scalar", "aten.add.Tensor", "aten.mul.Tensor"):
        if not _is(pool, op) or not isinstance(pool.args[1], int | float):
            return None
        numbers.append(float(pool.args[1]))
        inner.append(pool)
        pool = pool.args[0]
    inner += (above := list(_through_shapes(pool)))
    pool = above[-1].args[0] if above else pool
    if not _is(pool, *_POOLS):
        return None
    pad = pool.args[0]
    if not _is(pad, "aten.pad.default", "aten.constant_pad_nd.default"):
        return None
    inner += [pool, pad, *(above := list(_through_shapes(pad.args[0])))]
    square = above[-1].args[0] if above else pad.args[0]
    if not _is(square, "aten.mul.Tensor") or square.args[:2] != (x, x):
        return None
    inner.append(square)
    size = integers(pool.args[1], 1)[0]
    if not _is_window(pool, pad, size) or not _alone(inner, node):
        return None
    beta, k, alpha = numbers

    def lower(b: Builder) -> Value:
        """A NORM layer over the channels of every pixel."""
        rows = b.innermost(node, b.value(x), (1,))
        return rows_through(b, node, rows, (1,), op="lrn", size=size, alpha=alpha, beta=beta, k=k)

    return Composite(frozenset(inner), lower)


def _is(node: object, *ops: str) -> TypeGuard[fx.Node]:
    return isinstance(node, fx.Node) and op_name(node) in ops


def _through_shapes(node: object) -> Iterator[fx.Node]:
    while _is(node, *_SHAPE_ONLY):
        yield node
        node = node.args[0]


def _is_window(pool: fx.Node, pad: fx.Node, size: int) -> bool:
    """Whether the pooling runs over channels alone, with zeros that keep their number."""
    kernel, pads = list(integers(pool.args[1], 1)), list(cast("list[int]", pad.args[1]))
    stride = integers(pool.args[2], 1) if len(pool.args) > 2 else kernel
    before, after = (size - 1) // 2, size // 2
    others = pads[:-2]
    value = pad.args[3] if len(pad.args) > 3 else pad.kwargs.get("value")
    return (
        set(kernel[1:]) == {1}
        and set(stride) == {1}
        and pads[-2:] == [before, after]
        and not any(others)
        and not value
        and len(pool.args) <= 3
    )


def _alone(inner: list[fx.Node], last: fx.Node) -> bool:
    """Whether nobody else reads what the chain computes."""
    chain = {*inner, last}
    return all(user in chain for node in inner for user in node.users)
