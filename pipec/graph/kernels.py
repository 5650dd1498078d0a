"""Memory that kernels take for themselves, by op and what it is called with."""

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import fx

from pipec.graph.ir import tensors
from pipec.graph.torch_private import OpOverload, tree_leaves


def layout(value: object) -> object:
    """What decides what a kernel needs, of an operand: a tensor's dtype, shape and strides."""
    if isinstance(value, torch.Tensor):
        return f"{value.dtype}"[6:] + f"{[*value.shape]}{(*value.stride(),)}"
    return value


def kernel_key(op: object, arguments: Iterable[object]) -> str:
    """What decides how much memory the kernel of an op takes, in words.

    Args:
        op: An ATen op.
        arguments: What it is called with, in order: tensors, and all else, such as which of its
            results a backward is to compute.

    Example:
        >>> kernel_key("sum", [torch.ones(2, 3), 1, True])
        'sum float32[2, 3](3, 1) 1 True'
    """
    return " ".join(map(str, [op, *map(layout, arguments)]))


def kernel_bytes(nodes: Iterable[fx.Node], kernels: Mapping[str, int]) -> dict[str, int]:
    """The most bytes that each node allocates while it runs, of those whose kernels are known."""
    ops = {key.split(" ")[0] for key in kernels}
    keys = {
        n.name: kernel_key(n.target, arguments(n))
        for n in nodes
        if isinstance(n.target, OpOverload) and f"{n.target}" in ops
    }
    return {name: kernels[key] for name, key in keys.items() if key in kernels}


def arguments(node: fx.Node) -> Iterator[object]:
    """What it is called with, tensors in place of the nodes that yield them."""
    for leaf in tree_leaves((node.args, node.kwargs)):
        yield from tensors(leaf) if isinstance(leaf, fx.Node) else [leaf]
