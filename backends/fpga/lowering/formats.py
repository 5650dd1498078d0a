"""Formats that a model names itself: ``pipec::quantize`` and ``dequantize``, one after the other.

In 8-bit integers the two compute nothing: they say in which format a value is written.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import torch
from torch import fx

from pipec.backends.fpga.int8 import LOWEST, Int8
from pipec.backends.fpga.lowering.network import Builder, UnsupportedError, Value
from pipec.graph.ir import Graph, tensor
from pipec.graph.quantised import DEQUANTIZE, QUANTIZE

_BYTES = (torch.uint8, torch.int8)


@dataclass(frozen=True)
class Named:
    """One such pair.

    Attributes:
        x: What is written in the format.
        inner: The node in between, which needs no engine of its own.
        scale: Of the format.
        zero: Its zero point, if any.
    """

    x: fx.Node
    inner: frozenset[fx.Node]
    scale: fx.Node
    zero: fx.Node | None


def find(graph: Graph) -> Mapping[fx.Node, Named]:
    """The last node of every such pair in a graph, with what it says."""
    pairs = {}
    for last in graph.calls:
        first = last.args[0] if last.target == DEQUANTIZE else None
        if isinstance(first, fx.Node) and first.target == QUANTIZE and _is_whole(first):
            x, scale, zero = cast("tuple[fx.Node, fx.Node, fx.Node | None]", first.args[:3])
            pairs[last] = Named(x, frozenset([first]), scale, zero)
    return pairs


def _is_whole(first: fx.Node) -> bool:
    """Whether all that reads the integers turns them back in their own format."""
    return tensor(first).dtype in _BYTES and all(
        n.target == DEQUANTIZE and n.args[1:3] == first.args[1:3] for n in first.users
    )


def lower_named(b: Builder, node: fx.Node, named: Named) -> Value:
    """The value itself; its edge's format is noted, if the constants have data.

    Raises:
        UnsupportedError: The scale is none number, or the edge has another format already.
    """
    value = b.value(named.x)
    if any(tensor(c).numel() != 1 for c in (named.scale, named.zero) if c is not None):
        raise UnsupportedError("activations with several scales")
    if not b.constants.has_data:
        return value
    zero = 0 if named.zero is None else int(b.constants.value(named.zero).reshape(-1)[0])
    scale = float(b.constants.value(named.scale).reshape(-1)[0])
    (first,) = named.inner
    form = Int8.of(scale, zero + LOWEST - torch.iinfo(tensor(first).dtype).min)
    if b.named.setdefault(value.edge, form) != form:
        raise UnsupportedError("a value in two formats")
    return value
