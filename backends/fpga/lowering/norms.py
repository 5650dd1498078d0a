"""Normalisations: rows through the NORM engine.

Torch writes a local response normalisation as nine nodes::

    div(x, pow(add(mul(squeeze(avg_pool(pad(reshape(mul(x, x))))), alpha), k), beta))
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
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
    lowers,
)
from pipec.backends.fpga.lowering.view import indices
from pipec.graph.ir import Graph
from pipec.graph.patterns import Match, Rule
from pipec.graph.written import ancestors

aten = torch.ops.aten


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


def _response(more: Any, pad: Any, pool: Any) -> Rule:
    """How torch writes a local response normalisation, over maps with an axis more."""

    def response(
        x: Any, shape: Any, pads: Any, value: Any, kernel: Any, stride: Any, alpha: Any, k: Any,
        beta: Any,
    ) -> Any:  # fmt: skip
        wide = pool(pad(more(aten.mul.Tensor(x, x), shape), pads, value), kernel, stride)
        mean = aten.squeeze.dim(wide, 1)
        power = aten.pow.Tensor_Scalar(aten.add.Tensor(aten.mul.Tensor(mean, alpha), k), beta)
        return aten.div.Tensor(x, power)

    return Rule(response, response, where=_over_channels)


def _over_channels(match: Match) -> bool:
    """Whether it runs over channels alone, with zeros that keep their number."""
    (size, *others), (*sides, before, after) = match.bound["kernel"], match.bound["pads"]
    plain = set(others) == {1} == set(match.bound["stride"]) and not any(sides)
    same = (before, after) == ((size - 1) // 2, size // 2)
    numbers = (match.bound[name] for name in ("alpha", "k", "beta"))
    real = all(isinstance(n, int | float) for n in numbers)
    return plain and same and real and not match.bound["value"]


_RESPONSES = [
    _response(more, pad, pool)
    for more, pool in (
        (aten.unsqueeze.default, aten.avg_pool2d.default),
        (aten.reshape.default, aten.avg_pool3d.default),
    )
    for pad in (
        lambda x, pads, value: aten.pad.default(x, pads, "constant", value),
        aten.constant_pad_nd.default,
    )
]


def find(graph: Graph) -> dict[fx.Node, Composite]:
    """The last node of every local response normalisation in a graph, as a NORM over channels."""
    divisions = (n for n in graph.calls if n.target is aten.div.Tensor)
    found = (m for n in divisions for rule in _RESPONSES for m in rule.matches(n, ()))
    return {m.results[0]: _over_rows(**m.bound, last=m.results[0]) for m in found}


def _over_rows(
    x: fx.Node, kernel: Sequence[int], alpha: float, k: float, beta: float, last: fx.Node, **_: Any
) -> Composite:
    numbers: Any = {"size": kernel[0], "alpha": float(alpha), "k": float(k), "beta": float(beta)}

    def lower(b: Builder) -> Value:
        """A NORM layer over the channels of every pixel."""
        rows = b.innermost(last, b.value(x), (1,))
        return rows_through(b, last, rows, (1,), op="lrn", **numbers)

    before = ancestors([last]) - ancestors([x])
    return Composite(frozenset(before - {last}), lower)
