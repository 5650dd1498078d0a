"""What B computes again instead of having F save it: a predicate over forward nodes."""

import operator
from collections.abc import Callable
from typing import Literal

import torch
from torch import fx

from pipec.graph.arguments import given
from pipec.graph.torch_private import OpOverload, is_view

Policy = Literal["views", "all"]
Recompute = Callable[[fx.Node], bool]
"""Whether B computes a forward node again (then its inputs are saved instead)."""


def views(node: fx.Node) -> bool:
    """Recompute what shares memory with its input: it costs nothing and saves the input once."""
    return isinstance(node.target, OpOverload) and is_view(node.target)


def everything(node: fx.Node) -> bool:
    """Recompute all but random numbers: a second draw would give another mask."""
    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        return everything(node.all_input_nodes[0])
    return not is_random(node)


def is_random(node: fx.Node) -> bool:
    """Whether the node draws random numbers; an attention kernel does only where it drops."""
    op = node.target
    if not isinstance(op, OpOverload) or torch.Tag.nondeterministic_seeded not in op.tags:
        return False
    return given(node).get("dropout_p") != 0.0


POLICIES: dict[str, Recompute] = {"views": views, "all": everything}
"""Policy name to predicate."""
