"""Normalisations: rows through the NORM engine.

Torch writes a local response normalisation as nine nodes::

    div(x, pow(add(mul(squeeze(avg_pool(pad(reshape(mul(x, x))))), alpha), k), beta))
"""

import math
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, fx
from torch.nn import functional

from pipec.backends.fpga.engines.network import Builder, UnsupportedError, Value, lowers
from pipec.backends.fpga.engines.norm import Norm
from pipec.backends.fpga.engines.parts import Table
from pipec.backends.fpga.engines.view import indices
from pipec.backends.fpga.lowering.dense import constant
from pipec.graph.arguments import bind
from pipec.graph.patterns import Match, Rule

aten = torch.ops.aten


@lowers("aten._native_batch_norm_legit_functional.default")
def batch_norm(b: Builder, node: fx.Node) -> Value:
    """In inference it is `written.batch_norm`, on a board that trains `backward.batch_norm`."""
    raise UnsupportedError("batch normalisation in training mode", "export the model in eval mode")


_OVER_AXIS = {f"aten.{op}.int": op for op in ("softmax", "log_softmax")}
_OVER_AXIS |= {f"aten._{op}.default": op for op in ("softmax", "log_softmax")}


@lowers(*_OVER_AXIS)
def over_axis(b: Builder, node: fx.Node) -> Value:
    """``softmax(x, dim)``: a row op along one axis, brought innermost."""
    value = b.value(node.args[0])
    axis = bind(node)["dim"] % max(len(value.view.shape), 1)
    value = b.innermost(node, value, (axis,))
    return rows_through(b, node, value, (axis,), op=_OVER_AXIS[str(node.target)])


@lowers("aten.layer_norm.default", "aten.native_layer_norm.default", "aten.rms_norm.default")
def layer_norm(b: Builder, node: fx.Node) -> Value:
    """``layer_norm(x, normalized_shape, weight, bias, eps)``; ``rms_norm`` has no bias."""
    rms = "rms_norm" in str(node.target)
    arguments = bind(node)
    value, count = b.value(node.args[0]), len(cast("list[int]", node.args[1]))
    axes = tuple(range(len(value.view.shape)))[-count:]
    value = b.innermost(node, value, axes)
    roles = (("scale", arguments["weight"]), ("shift", arguments.get("bias")))
    tables = {role: element_table(b, node, value, axes, arg) for role, arg in roles}
    op, eps = "rms_norm" if rms else "layer_norm", arguments["eps"]
    return rows_through(
        b, node, value, axes, tables, op=op, eps=1.1920929e-07 if eps is None else float(eps)
    )


def element_table(
    b: Builder, node: fx.Node, value: Value, axes: tuple[int, ...], arg: object
) -> Table | None:
    """A constant of the shape of ``axes``, flat in stream order; None if there is none."""
    if arg is None:
        return None
    found, split = constant(b, arg, "scale"), value.view.split(axes)
    assert split is not None
    order = indices(split[1])
    return b.constants.table(found, (len(order),), (0,)).apply(lambda w: w[order])


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
    flags: dict[str, Any] = {k: table is not None for k, table in (tables or {}).items()}
    nest = Norm(rows, cin, row // cin, op=op, **flags, **fields)
    uses = tuple(v.use(cin) for v in (dy, value) if v is not None)
    return b.put(nest, node, uses, value.view, cin, tables=tables)


def _response(more: Any, pad: Any, pool: Any, back: Any) -> Rule:
    """How torch writes a local response normalisation, over maps with an axis more."""

    def response(
        x: Any, shape: Any, pads: Any, value: Any, kernel: Any, stride: Any, like: Any, alpha: Any,
        k: Any, beta: Any,
    ) -> Any:  # fmt: skip
        wide = pool(pad(more(aten.mul.Tensor(x, x), shape), pads, value), kernel, stride)
        mean = back(aten.squeeze.dim(wide, 1), like)
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
    _response(more, pad, pool, back)
    for more, pool, back in (  # of rows, of maps, of more axes
        (aten.unsqueeze.default, aten.avg_pool2d.default, lambda mean, _: mean),
        (aten.reshape.default, aten.avg_pool3d.default, lambda mean, _: mean),
        (aten.reshape.default, aten.avg_pool3d.default, aten.reshape.default),
    )
    for pad in (
        lambda x, pads, value: aten.pad.default(x, pads, "constant", value),
        aten.constant_pad_nd.default,
    )
]


def response_of(node: fx.Node) -> Match | None:
    """The local response normalisation that ends at a node; None if there is none."""
    return next((m for rule in _RESPONSES for m in rule.matches(node, ())), None)


@torch.library.custom_op("pipec_fpga::response", mutates_args=())
def response(x: Tensor, size: int, alpha: float, k: float, beta: float) -> Tensor:
    """A local response normalisation over channels, axis 1."""
    wide = functional.pad(x.square().movedim(1, -1), ((size - 1) // 2, size // 2))
    mean = wide.unfold(-1, size, 1).mean(-1).movedim(-1, 1)
    return x / (k + alpha * mean) ** beta


@response.register_fake
def _(x: Tensor, size: int, alpha: float, k: float, beta: float) -> Tensor:
    return torch.empty_like(x)


@lowers("pipec_fpga.response.default")
def over_channels(b: Builder, node: fx.Node) -> Value:
    """A NORM layer over the channels of every pixel."""
    numbers: dict[str, Any] = bind(node)
    rows = b.innermost(node, b.value(numbers.pop("x")), (1,))
    return rows_through(b, node, rows, (1,), op="lrn", **numbers)
