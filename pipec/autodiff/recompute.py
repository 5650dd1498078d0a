"""What B computes again instead of having F save it: a predicate over forward nodes."""

import operator
from collections.abc import Callable
from typing import Literal

import torch
from torch import fx

from pipec.graph.arguments import bind
from pipec.graph.eager import EAGER
from pipec.graph.torch_private import OpOverload, is_view

Policy = Literal["views", "all"]
Recompute = Callable[[fx.Node], bool]
"""Whether B computes a forward node again (then its inputs are saved instead)."""


def views(node: fx.Node) -> bool:
    """Recompute what shares memory with its input: it costs nothing and saves the input once."""
    if node.target is operator.getitem:
        return views(node.all_input_nodes[0])
    return isinstance(node.target, OpOverload) and is_view(node.target)


def list_holders(node: fx.Node) -> tuple[str, ...]:
    """Names of the nodes in whose memory a value lies as it would be sent, its own first."""
    names = [node.name]
    while node.op == "call_function" and views(node):
        value = node.meta["val"]  # a tuple is not sent, its parts are
        if isinstance(value, torch.Tensor) and not value.is_contiguous():
            break  # it would be copied
        node = node.all_input_nodes[0]
        names.append(node.name)
    return tuple(names)


def everything(node: fx.Node) -> bool:
    """Recompute all but tapes, and random numbers: a second draw would give another mask."""
    if node.target is EAGER:
        return False
    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        return everything(node.all_input_nodes[0])
    return not is_random(node)


def is_random(node: fx.Node) -> bool:
    """Whether the node draws random numbers."""
    return draws_of(node) > 0


def draws_of(node: fx.Node) -> int:
    """How often a node draws: as many random ops are in its place where it is decomposed.

    Attention and recurrent layers draw only where they drop, these between any two layers.
    """
    op = node.target
    if not isinstance(op, OpOverload) or torch.Tag.nondeterministic_seeded not in op.tags:
        return 0
    args = bind(node)
    if args.get("dropout_p") == 0.0 or not args.get("train", True) or args.get("draws") is False:
        return 0
    if "num_layers" in args:
        return int(args["num_layers"]) - 1 if args["dropout"] else 0
    return 1


POLICIES: dict[str, Recompute] = {"views": views, "all": everything}
"""Policy name to predicate."""
