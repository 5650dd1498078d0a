"""Formats that a model names itself: QuantizeLinear and DequantizeLinear, one after the other.

```text
x -> div(scale) -> round -> add(zero) -> clamp(low, high) -> conversions -> sub(zero) -> mul(scale)
```

In 8-bit integers such a chain computes nothing: it says in which format x is written.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from torch import fx

from pipec.backends.fpga.int8 import HIGHEST, LOWEST, Int8
from pipec.backends.fpga.lowering.network import Builder, UnsupportedError, Value
from pipec.graph.ir import Graph, op_name, tensors

_BETWEEN = (
    "aten._to_copy.default", "aten.to.dtype", "aten.sub.Tensor", "aten.add.Tensor",
    "aten.clamp.default", "aten.round.default",
)  # fmt: skip


@dataclass(frozen=True)
class Named:
    """One chain.

    Attributes:
        x: What is written in the format.
        inner: The nodes in between, which need no engine of their own.
        scale: The constant that is divided by and multiplied with.
        zero: The constant that is added, if any.
        low: Least integer; ``high`` the largest.
    """

    x: fx.Node
    inner: frozenset[fx.Node]
    scale: fx.Node
    zero: fx.Node | None
    low: int
    high: int


def find(graph: Graph) -> Mapping[fx.Node, Named]:
    """The last node of every such chain in a graph, with what it says."""
    found = {node: _match(node) for node in graph.calls if op_name(node) == "aten.mul.Tensor"}
    return {node: named for node, named in found.items() if named is not None}


def _match(last: fx.Node) -> Named | None:
    """Follows the chain upwards from a multiplication; None where it is something else."""
    node, scale = last.args[:2]
    inner: list[fx.Node] = []
    while isinstance(node, fx.Node) and op_name(node) in _BETWEEN and len(node.users) == 1:
        inner.append(node)
        node = node.args[0]
    ops = [op_name(n) for n in inner]
    one_each = all(ops.count(op) == 1 for op in ("aten.clamp.default", "aten.round.default"))
    if not isinstance(node, fx.Node) or not one_each or not isinstance(scale, fx.Node):
        return None
    if op_name(node) != "aten.div.Tensor" or node.args[1] is not scale or len(node.users) != 1:
        return None
    limits = cast("tuple[int, int]", inner[ops.index("aten.clamp.default")].args[1:3])
    added = [n.args[1] for n, op in zip(inner, ops, strict=True) if op == "aten.add.Tensor"]
    if len(added) > 1 or limits not in ((0, 255), (LOWEST, HIGHEST)):
        return None
    zero = added[0] if added and isinstance(added[0], fx.Node) else None
    low, high = limits
    x = node.args[0]
    return (
        None
        if not isinstance(x, fx.Node)
        else Named(x, frozenset([*inner, node]), scale, zero, low, high)
    )


def lower_named(b: Builder, node: fx.Node, named: Named) -> Value:
    """The value itself; its edge's format is noted, if the constants have data.

    Raises:
        UnsupportedError: The scale is none number, or the edge has another format already.
    """
    value = b.value(named.x)
    if any(tensors(c)[0].numel() != 1 for c in (named.scale, named.zero) if c is not None):
        raise UnsupportedError("activations with several scales")
    if not b.constants.has_data:
        return value
    zero = 0 if named.zero is None else int(b.constants.value(named.zero).reshape(-1)[0])
    scale = float(b.constants.value(named.scale).reshape(-1)[0])
    form = Int8.of(scale, zero + LOWEST - named.low)
    if b.named.setdefault(value.edge, form) != form:
        raise UnsupportedError("a value in two formats")
    return value
