"""Elementwise ops: chains of steps on one engine, constants as tables, affine steps folded away."""

import dataclasses
import math
from collections.abc import Callable
from typing import cast

import numpy as np
from torch import fx

from pipec.backends.fpga.engines.base import Layer
from pipec.backends.fpga.engines.constants import shape_of
from pipec.backends.fpga.engines.map import Map
from pipec.backends.fpga.engines.matmul import Matmul
from pipec.backends.fpga.engines.mvu import Mvu
from pipec.backends.fpga.engines.network import Builder, UnsupportedError, Value, lowers
from pipec.backends.fpga.engines.parts import UNCLAMPED, Array, Table
from pipec.backends.fpga.engines.route import Concat
from pipec.backends.fpga.engines.steps import UNARY, MapStep, clamp_of, may_join
from pipec.backends.fpga.engines.view import View, indices, strides_of
from pipec.backends.fpga.engines.vvu import Vvu
from pipec.graph.arguments import bind

_UNARY = {f"aten.{op}.default": op for op in UNARY} | {"aten.gelu.default": "gelu"}
_BINARY = {
    **{f"aten.{op}.{form}": op for op in ("add", "sub", "rsub", "mul", "div")
       for form in ("Tensor", "Scalar")},
    **{f"aten.pow.{form}": "pow" for form in ("Tensor_Scalar", "Tensor_Tensor", "Scalar")},
    "aten.maximum.default": "max",
    "aten.minimum.default": "min",
}  # fmt: skip
_SWAPPED = {"sub": "rsub", "rsub": "sub", "div": "rdiv", "pow": "rpow"}
"""The op with its operands the other way round, if it is another one."""
_WITH_NUMBERS = (
    "aten.leaky_relu.default", "aten.elu.default", "aten.softplus.default", "aten.clamp.default",
    "aten.hardtanh.default",
)  # fmt: skip


@lowers(*_UNARY, *_WITH_NUMBERS)
def unary(b: Builder, node: fx.Node) -> Value:
    """An op of one stream, and of numbers."""
    return chain(b, node, node.args[0], _steps(node))


def _steps(node: fx.Node) -> list[MapStep]:
    arguments = bind(node)
    match str(node.target).split(".")[1]:
        case "gelu" if arguments["approximate"] == "tanh":
            return [MapStep("gelu_tanh")]
        case "leaky_relu":
            return [_scalar("leaky_relu", arguments["negative_slope"])]
        case "elu":
            if (arguments["scale"], arguments["input_scale"]) != (1, 1):
                raise UnsupportedError("elu with scales")
            return [_scalar("elu", arguments["alpha"])]
        case "clamp" | "hardtanh":
            _, *limits = arguments.values()
            steps = zip(("max", "min"), limits, strict=True)
            return [_scalar(step, value) for step, value in steps if value is not None]
        case "softplus":
            if (arguments["beta"], arguments["threshold"]) != (1, 20):
                raise UnsupportedError("softplus with another beta than 1, or threshold than 20")
            return [MapStep("softplus")]
    return [MapStep(_UNARY[str(node.target)])]


def _scalar(op: str, value: object) -> MapStep:
    if not isinstance(value, int | float):
        raise UnsupportedError(f"{op} with an operand that is no number")
    return MapStep(op, "scalar", float(value))


@lowers(*_BINARY)
def binary(b: Builder, node: fx.Node) -> Value:
    """An op of two operands: two streams, or a stream and a constant or number."""
    op, (x, y) = _BINARY[str(node.target)], node.args[:2]
    if node.kwargs.get("alpha", 1) != 1 or len(node.args) > 2 or "rounding_mode" in node.kwargs:
        raise UnsupportedError(f"{op} with alpha or a rounding mode")
    if not b.is_stream(x):
        x, y, op = y, x, _SWAPPED.get(op, op)
    if isinstance(y, int | float):
        square = (op, y) == ("pow", 2)
        return chain(b, node, x, [MapStep("square") if square else _scalar(op, y)])
    if not b.is_stream(y):
        return _with_constant(b, node, x, op, cast("fx.Node", y))
    if x is y and op in ("mul", "add"):
        return chain(b, node, x, [MapStep("square") if op == "mul" else _scalar("mul", 2.0)])
    return two_streams(b, node, op, cast("fx.Node", x), cast("fx.Node", y))


def _with_constant(b: Builder, node: fx.Node, x: object, op: str, y: fx.Node) -> Value:
    value = b.value(x)
    if math.prod(shape_of(node)) != value.view.numel:
        raise UnsupportedError("a constant that broadcasts its operand to a larger shape")
    table, period = operand(b, value.view.reshape(shape_of(node)), value, y)
    if period == 1 and op in _AFFINE:
        scale, shift = _AFFINE[op](table)
        return affine(b, node, x, scale, shift)
    return chain(b, node, x, [MapStep(op, "table", table=table, period=period)])


_AFFINE: dict[str, Callable[[Table], tuple[Table | None, Table | None]]] = {
    "mul": lambda t: (t, None),
    "div": lambda t: (t.apply(lambda y: 1.0 / y), None),
    "add": lambda t: (None, t),
    "sub": lambda t: (None, t.apply(np.negative)),
}


def operand(b: Builder, view: View, value: Value, node: fx.Node) -> tuple[Table, int]:
    """A constant operand in stream order, ``[period][channels]``, and its shortest period in rows.

    Its shape broadcasts to that of the result, under which the other operand has this view.
    """
    pieces = view.by_axis()
    if pieces is None:
        raise UnsupportedError("the element order of its input is mixed")
    small = (1,) * (len(view.shape) - len(shape_of(node))) + shape_of(node)
    varying = [small[axis] > 1 for axis, _, _ in pieces]
    first = varying.index(True) if True in varying else len(pieces)
    used = pieces[first:]
    elements = math.prod(size for _, size, _ in used)
    period = max(1, elements // value.channels)
    if value.channels % elements and elements % value.channels:
        raise UnsupportedError("a constant whose period does not fall together with rows")
    strides = strides_of(small)
    atoms = [(n, strides[axis] * step if small[axis] > 1 else 0) for axis, n, step in used]

    def values() -> Array:
        """The constant as ``[period][channels]``."""
        flat = b.constants.value(node).reshape(-1)[indices(atoms)]
        return np.resize(flat, (period, value.channels))

    return Table(values, b.constants.sources(node)), period


def affine(b: Builder, node: fx.Node, x: object, scale: Table | None, shift: Table | None) -> Value:
    """``x * scale + shift`` per channel (tables ``[1][channels]`` in stream order).

    Folded into the weights of a convolution or linear layer that nothing else reads, or into the
    affine steps before it; else two steps of a MAP.
    """
    value, before = b.value(x), b.sole_layer(x)
    if before is not None and isinstance(nest := before.nest, Mvu | Vvu):
        lead = (nest.groups, nest.rows) if isinstance(nest, Mvu) else (nest.channels,)
        if before.clamp == UNCLAMPED and math.prod(lead) == value.channels:
            b.layers[before.name] = _absorb(before, lead, scale, shift)
            return value.reshape(shape_of(node))
    elif before is not None and _joins(b, before, value, compose_steps(before.steps, scale, shift)):
        return value.reshape(shape_of(node))
    return chain(b, node, x, list(compose_steps((), scale, shift)))


def _absorb(layer: Layer, lead: tuple[int, ...], scale: Table | None, shift: Table | None) -> Layer:
    weight, bias = layer.tables["weight"], layer.tables.get("bias")
    if scale is not None:

        def scale_rows(w: Array, s: Array) -> Array:
            return np.asarray(w * s.reshape(lead + (1,) * (w.ndim - len(lead))))

        weight = weight.apply(scale_rows, scale)
        bias = bias and bias.apply(scale_rows, scale)
    if shift is not None:
        flat = shift.apply(lambda h: h.reshape(lead))
        bias = flat if bias is None else bias.apply(np.add, flat)
    return layer.with_tables(weight=weight, **({} if bias is None else {"bias": bias}))


def compose_steps(
    steps: tuple[MapStep, ...], scale: Table | None, shift: Table | None
) -> tuple[MapStep, ...]:
    """Steps, then ``* scale + shift``, merged with a trailing ``*`` or ``+`` of one row."""
    rest, factor, offset = list(steps), None, None
    if rest and _row_table(rest[-1], "add"):
        offset = rest.pop().table
    if rest and _row_table(rest[-1], "mul"):
        factor = rest.pop().table
    if scale is not None:
        factor = scale if factor is None else factor.apply(np.multiply, scale)
        offset = offset and offset.apply(np.multiply, scale)
    if shift is not None:
        offset = shift if offset is None else offset.apply(np.add, shift)
    if factor is not None:
        rest.append(MapStep("mul", "table", table=factor))
    if offset is not None:
        rest.append(MapStep("add", "table", table=offset))
    return tuple(rest)


def _row_table(step: MapStep, op: str) -> bool:
    return step.op == op and step.operand == "table" and step.period == 1


def _joins(b: Builder, before: Layer, value: Value, steps: tuple[MapStep, ...]) -> bool:
    """Whether the layer that writes a value may do other steps than its own; it does then."""
    may = isinstance(before.nest, Map) and before.channels == value.channels
    if may and (b.precision != "int8" or may_join(before.steps, steps)):
        b.layers[before.name] = dataclasses.replace(before, steps=steps)
        return True
    return False


def chain(b: Builder, node: fx.Node, x: object, steps: list[MapStep]) -> Value:
    """Apply steps to a stream; they join the MAP before if nothing else reads that.

    8-bit integers: only where they stay integers; clamps join a product before.
    """
    value, before = b.value(x), b.sole_layer(x)
    plain = [(s.op, s.operand) for s in steps] == [("mul", "scalar")] and steps[0].value != 0
    if before is not None and isinstance(before.nest, Matmul) and plain:
        nest = dataclasses.replace(before.nest, scale=before.nest.scale * steps[0].value)
        b.layers[before.name] = dataclasses.replace(before, nest=nest)
        return value.reshape(shape_of(node))
    if before is not None and _joins(b, before, value, (*before.steps, *steps)):
        return value.reshape(shape_of(node))
    if b.precision == "int8" and (products := _products(b, before)):
        limits = clamp_of(steps)
        if limits is not None:
            for one in products:
                low, high = (min(max(v, limits[0]), limits[1]) for v in one.clamp)
                b.layers[one.name] = dataclasses.replace(one, clamp=(low, high))
            return value.reshape(shape_of(node))
    return b.put_map(node, value, steps).reshape(shape_of(node))


def _products(b: Builder, layer: Layer | None) -> list[Layer]:
    """The layer if it multiplies with constants, or the parts of one that it joins."""
    if layer is None:
        return []
    if isinstance(layer.nest, Concat):
        parts = [b.layers[use.edge] for use in layer.inputs if use.edge in b.layers]
        found = [p for p in parts if isinstance(p.nest, Mvu) and p.node == layer.node]
        return found if len(found) == len(layer.inputs) else []
    return [layer] if isinstance(layer.nest, Mvu | Vvu) else []


def two_streams(b: Builder, node: fx.Node, op: str, x: fx.Node, y: fx.Node) -> Value:
    """``x op y`` of two streams, the smaller one broadcast."""
    first, second = b.value(x), b.value(y)
    if second.view.numel > first.view.numel:
        first, second, op = second, first, _SWAPPED.get(op, op)
    first, (_, other) = b.align(node, [first, second])
    return b.put_map(node, first, [MapStep(op, "stream")], other)
