"""Products of two activations: attention and batched matmul, without reordering where possible."""

import math
from collections.abc import Sequence
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any, cast

from torch import fx

from pipec.backends.fpga.engines.constants import shape_of
from pipec.backends.fpga.engines.matmul import Matmul
from pipec.backends.fpga.engines.network import Builder, UnsupportedError, Value, lowers
from pipec.backends.fpga.engines.view import View, merge, strides_of
from pipec.backends.fpga.lowering.dense import dense
from pipec.backends.fpga.lowering.gradients import matrix_gradient
from pipec.graph.arguments import bind

Piece = tuple[int, int, int]
"""Axis, size, stride in the axis: an axis of the stream (`View.by_axis`)."""


@lowers("aten.matmul.default", "aten.mm.default", "aten.bmm.default")
def matmul(b: Builder, node: fx.Node) -> Value:
    """``x @ y``: with a constant y a linear layer, else a run-time product."""
    x, y = node.args[:2]
    if not b.is_stream(x):
        raise UnsupportedError("a product whose first operand is constant")
    if not b.is_stream(y):
        if len(shape_of(cast("fx.Node", y))) != 2:
            raise UnsupportedError("a batched product with a constant")
        return dense(b, node, x, y, None, transposed=True)
    operands = b.value(x), b.value(y)
    found = None if b.precision == "int8" else matrix_gradient(b, node, *operands)
    return found or product(b, node, *operands, shape_of(node))


@lowers("aten.scaled_dot_product_attention.default")
def attention(b: Builder, node: fx.Node) -> Value:
    """Attention that is not written as product, softmax, product (`written.attention`)."""
    if bind(node)["dropout_p"]:
        raise UnsupportedError("attention with dropout", "export the model in eval mode")
    q, k = (shape_of(cast("fx.Node", a)) for a in node.args[:2])
    if q[:-2] != k[:-2]:
        raise UnsupportedError("attention of unlike batch axes")
    if b.precision == "int8":
        raise UnsupportedError(
            "attention with a mask, as 8-bit integers hold no infinity",
            "choose another --precision",
        )
    raise UnsupportedError(
        "an attention mask of truth values that is computed at run time",
        "give the model what is added to the scores: 0 where they are kept, else -inf",
    )


def product(b: Builder, node: fx.Node, x: Value, y: Value, shape: tuple[int, ...]) -> Value:
    """``x[..., m, k] @ y[..., k, n]``; operands are reordered only if no loop order takes them."""
    if x.view.shape[:-2] != y.view.shape[:-2]:
        raise UnsupportedError("a product that broadcasts over its batch axes")
    plan = _plan_orders(x, y)
    if plan is None:
        x, y = (b.permute(node, v, range(len(v.view.shape))) for v in (x, y))
        plan = _plan_orders(x, y)
        if plan is None:
            raise UnsupportedError("a product of operands in mixed element order")
    k, out = x.view.shape[-1], y.view.shape[-1]
    cin = x.channels if k % x.channels == 0 else k
    found = x.view.split([len(x.view.shape) - 1])
    assert found is not None
    atoms = [(size, stride // k * out) for size, stride in found[0]]
    nest = Matmul(rows=out, taps=k // cin, channels=cin, **plan)
    uses, view = (x.use(cin), y.use(nest.b_sizes[-1])), View(shape, merge([*atoms, (out, 1)]))
    return b.put(nest, node, uses, view, out)


def _plan_orders(x: Value, y: Value) -> dict[str, Any] | None:
    """Loop orders that take both streams as they come (`Matmul`); None if there is none."""
    rank = len(x.view.shape)
    a, c = x.view.by_axis(), y.view.by_axis()
    if a is None or c is None or x.view.split([rank - 1]) is None:
        return None
    a = [p for p in a if p[0] != rank - 1]
    blocks = 1
    while a and c and a[0] == c[0] and a[0][0] < rank - 2 and _loops(a[1:], rank):
        blocks *= a[0][1]
        a, c = a[1:], c[1:]
    roles = {rank - 2: "k", rank - 1: "n"}
    named = [(roles.get(axis, "g"), size) for axis, size, _ in c]
    ordered = _row_major_roles(c, roles, y.view.shape) and _row_major_roles(
        a, {rank - 2: "k"}, x.view.shape
    )
    if not named or not ordered:
        return None
    loops = _loops(a, rank)
    if loops is None:
        return None
    joined = [  # neighbouring axes of one role are one
        (role, math.prod(size for _, size in run)) for role, run in groupby(named, itemgetter(0))
    ]
    sizes = dict(zip(("outer", "groups", "inner"), loops, strict=True))
    roles_of, sizes_of = (tuple(part) for part in zip(*joined, strict=True))
    return {"blocks": blocks, **sizes, "b_sizes": sizes_of, "b_roles": roles_of}


def _loops(pieces: Sequence[Piece], rank: int) -> tuple[int, int, int] | None:
    """(outer rows, groups, inner rows) of the first operand's vectors; None if more mixed."""
    is_group = [axis < rank - 2 for axis, _, _ in pieces]
    changes = sum(p != q for p, q in pairwise(is_group))
    groups = math.prod(size for axis, size, _ in pieces if axis < rank - 2)
    rows = math.prod(size for axis, size, _ in pieces if axis == rank - 2)
    if changes > 1:
        return None
    return (1, groups, rows) if is_group and is_group[0] else (rows, groups, 1)


def _row_major_roles(pieces: Sequence[Piece], roles: dict[int, str], shape: Sequence[int]) -> bool:
    """Whether the pieces of each role come in row-major order."""
    strides = strides_of(shape)
    for role in ("g", "k", "n"):
        steps = [strides[axis] * step for axis, _, step in pieces if roles.get(axis, "g") == role]
        if steps != sorted(steps, reverse=True):
            return False
    return True
