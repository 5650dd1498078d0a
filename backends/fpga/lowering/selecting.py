"""Choices by a comparison, ``where(a > b, x, y)``, as one layer each."""

import math
from functools import partial

from torch import fx

from pipec.backends.fpga.engines.where import OPERATORS, Where
from pipec.backends.fpga.lowering.constants import shape_of
from pipec.backends.fpga.lowering.elementwise import aligned
from pipec.backends.fpga.lowering.network import Builder, Composite, UnsupportedError, Value
from pipec.graph.ir import Graph, OutputKind, op_name

_ISNAN = "aten.isnan.default"
_TESTS = {f"aten.{op}.{form}": op for op in OPERATORS for form in ("Scalar", "Tensor")}
_TESTS[_ISNAN] = "ne"  # it is unlike itself
_CHOICES = {
    f"aten.where.{form}": (0, 1, 2) for form in ("self", "Scalar", "ScalarSelf", "ScalarOther")
}
_CHOICES |= {f"aten.masked_fill.{form}": (1, 2, 0) for form in ("Scalar", "Tensor")}
"""Where the condition stands among the arguments, what is chosen if it holds, what if not."""


def find(graph: Graph) -> dict[fx.Node, Composite]:
    """Every choice by a comparison that nothing else reads."""
    return {
        n: Composite(frozenset([t]), partial(_lower, n, t)) for n in graph.calls if (t := _test(n))
    }


def _test(node: fx.Node) -> fx.Node | None:
    """The comparison by which a node chooses."""
    if op_name(node) not in _CHOICES:
        return None
    test = node.args[_CHOICES[op_name(node)][0]]
    if not isinstance(test, fx.Node) or op_name(test) not in _TESTS:
        return None
    alone = all(op_name(n) in _CHOICES and n.args.count(test) == 1 for n in test.users)
    return test if alone else None


def _lower(node: fx.Node, test: fx.Node, b: Builder) -> Value:
    """One layer of the streams among both sides of the comparison and both choices."""
    trains = b.graph.outputs_of(OutputKind.LOSS, OutputKind.GRADIENT, OutputKind.WEIGHT_GRADIENT)
    chosen = [node.args[k] for k in _CHOICES[op_name(node)][1:]]
    sides = test.args[:2]
    if op_name(test) == _ISNAN:
        sides = (test.args[0], test.args[0])
        if (other := _never_nan(b, node, chosen[1])) is not None:
            return other
    elif b.precision != "float32" and not trains:  # bounds of errors follow slopes, not steps
        raise UnsupportedError("a choice that a rounding may turn", "choose the precision float32")
    streams, numbers = dict[str, Value](), dict[str, float]()
    for role, one in zip("abxy", (*sides, *chosen), strict=True):
        if b.is_stream(one):
            streams[role] = b.value(one)
        else:
            numbers[role] = _number(b, one)
    shape = shape_of(node)
    whole = [v for v in streams.values() if v.view.numel == math.prod(shape)]
    if not whole:
        raise UnsupportedError("all operands broadcast")
    if len({v.dtype for v in streams.values()}) > 1:
        raise UnsupportedError("operands of several types")
    first = whole[0].reshape(shape)
    uses = [aligned(b, node, first, v).use(first.channels) for v in streams.values()]
    rows, op = first.view.numel // first.channels, _TESTS[op_name(test)]
    values = (numbers.get(role, 0.0) for role in "abxy")
    nest = Where(rows, first.channels, 1, op, "".join(streams), *values)
    return b.put(nest, node, tuple(uses), first.view, first.channels)


def _never_nan(b: Builder, node: fx.Node, other: object) -> Value | None:
    """What is chosen of numbers that are never NaN: the stream that stands for all others."""
    if b.precision.startswith(("float", "bfloat")) or not b.is_stream(other):
        return None
    assert isinstance(other, fx.Node)
    return b.value(other) if shape_of(other) == shape_of(node) else None


def _number(b: Builder, one: object) -> float:
    if isinstance(one, fx.Node) and math.prod(shape_of(one)) == 1:
        one = b.constants.value(one).item()
    if not isinstance(one, int | float):
        raise UnsupportedError("a choice with a constant that is no number")
    return float(one)
