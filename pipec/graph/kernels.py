"""Memory that kernels take for themselves, by op and layouts of what it reads."""

from collections.abc import Iterable, Mapping

import torch
from torch import fx

from pipec.graph.ir import tensors
from pipec.graph.torch_private import OpOverload


def layout(value: object) -> object:
    """What decides what a kernel needs, of an operand: a tensor's dtype, shape and strides."""
    if isinstance(value, torch.Tensor):
        return f"{value.dtype}"[6:] + f"{[*value.shape]}{(*value.stride(),)}"
    return value


def kernel_key(op: object, operands: Iterable[torch.Tensor]) -> str:
    """What decides how much memory the kernel of an op takes, in words.

    Args:
        op: An ATen op.
        operands: Its tensors in order.

    Example:
        >>> kernel_key("mm", [torch.ones(2, 3), torch.ones(3, 2)])
        'mm float32[2, 3](3, 1) float32[3, 2](2, 1)'
    """
    return " ".join(map(str, [op, *map(layout, operands)]))


def kernel_bytes(nodes: Iterable[fx.Node], kernels: Mapping[str, int]) -> dict[str, int]:
    """The most bytes that each node allocates while it runs, of those whose kernels are known.

    Args:
        nodes: Nodes of a graph.
        kernels: `kernel_key` to bytes.
    """
    ops = {key.split(" ")[0] for key in kernels}
    keys = {
        n.name: kernel_key(n.target, (t for read in _reads(n) for t in tensors(read)))
        for n in nodes
        if isinstance(n.target, OpOverload) and f"{n.target}" in ops
    }
    return {name: kernels[key] for name, key in keys.items() if key in kernels}


def _reads(node: fx.Node) -> list[fx.Node]:
    """What it reads, as often as it reads it."""
    found: list[fx.Node] = []
    fx.map_arg((node.args, node.kwargs), found.append)
    return found
