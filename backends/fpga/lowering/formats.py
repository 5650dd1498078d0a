"""Formats that a model names itself: ``pipec::quantize`` and ``dequantize``, one after the other.

In 8-bit integers the two compute nothing: they say in which format a value is written.
"""

from functools import partial
from typing import cast

import torch
from torch import fx

from pipec.backends.fpga.engines.steps import MapStep
from pipec.backends.fpga.int8 import LOWEST, Int8
from pipec.backends.fpga.lowering.network import Builder, Composite, UnsupportedError, Value
from pipec.graph.ir import Graph, tensor
from pipec.graph.quantised import DEQUANTIZE, QUANTIZE

_BYTES = (torch.uint8, torch.int8)


def find(graph: Graph) -> dict[fx.Node, Composite]:
    """The last node of every such pair in a graph, whose value is what is written."""
    pairs = {}
    for last in graph.calls:
        first = last.args[0] if last.target == DEQUANTIZE else None
        if isinstance(first, fx.Node) and first.target == QUANTIZE and _is_whole(first):
            pairs[last] = Composite(frozenset([first]), partial(_lower, first))
    return pairs


def _is_whole(first: fx.Node) -> bool:
    """Whether all that reads the integers turns them back in their own format."""
    return tensor(first).dtype in _BYTES and all(
        n.target == DEQUANTIZE and n.args[1:3] == first.args[1:3] for n in first.users
    )


def _lower(first: fx.Node, b: Builder) -> Value:
    """The value itself; its edge's format is noted, if the constants have data.

    Raises:
        UnsupportedError: The scale is none number.
    """
    value, form = b.value(cast("fx.Node", first.args[0])), _form(first, b)
    if form is None:
        return value
    if b.named.setdefault(value.edge, form) != form:
        value = rounded(b, first, value, form)
    return value


def _form(first: fx.Node, b: Builder) -> Int8 | None:
    """The format that a node writes; None while its constants have no data.

    Raises:
        UnsupportedError: The scale is none number.
    """
    constants = cast("tuple[fx.Node, fx.Node | None]", first.args[1:3])
    if any(tensor(c).numel() != 1 for c in constants if c is not None):
        raise UnsupportedError("activations with several scales")
    if not b.constants.has_data:
        return None
    scale, zero = (0 if c is None else b.constants.value(c).reshape(-1)[0] for c in constants)
    lowest = torch.iinfo(tensor(first).dtype).min
    return Int8.of(float(scale), int(zero) + LOWEST - lowest)


def format_after(node: fx.Node, b: Builder) -> Int8 | None:
    """The format in which the model writes what a node yields; None if it does not say."""
    users = list(node.users)
    if b.precision != "int8" or len(users) != 1 or users[0].target != QUANTIZE:
        return None
    return _form(users[0], b) if _is_whole(users[0]) else None


def rounded(b: Builder, node: fx.Node, value: Value, form: Int8, suffix: str = "") -> Value:
    """The value in another format, as an engine writes it."""
    found = b.put_map(node, value, [MapStep("mul", "scalar", 1.0)], suffix=suffix)
    b.named[found.edge] = form
    return found
