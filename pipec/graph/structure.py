"""When two stage graphs are the same graph: a hash over structure, blind to names.

A model of equal layers has few distinct stages; each is emitted, differentiated and folded once.
"""

import hashlib

import torch
from torch import fx

from pipec.graph.comm import NAMES_OF_COMM, is_comm
from pipec.graph.ir import Graph, op_name, tensors


def structural_key(graph: Graph) -> str:
    """Digest of a graph that does not depend on node, weight or channel names.

    Covers the kind, shape, dtype, stride and device of every input, and per node its op and
    arguments, with nodes replaced by their position; and kind and position of every output.
    Channel names of communication nodes are left out.

    Returns:
        Twelve hexadecimal digits (of SHA-256).
    """
    position = {n: k for k, n in enumerate(graph.module.graph.nodes)}
    lines = [f"{i.kind} {_types(n)}" for i, n in zip(graph.inputs, position, strict=False)]
    lines.extend(
        f"{op_name(n)} {_arguments(n, position)} {_types(n)}"
        for n in position
        if n.op == "call_function"
    )
    nodes = graph.nodes
    lines.extend(f"{o.kind} {position[nodes[o.node]]}" for o in graph.outputs)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]


def _types(node: fx.Node) -> str:
    return " ".join(
        f"{t.dtype}{tuple(t.shape)}{t.stride()}{'' if t.device.type == 'cpu' else t.device}"
        for t in tensors(node)
    )


def _arguments(node: fx.Node, position: dict[fx.Node, int]) -> str:
    def text(value: object) -> str:
        """An argument as text, names replaced by positions."""
        if isinstance(value, fx.Node):
            return f"%{position[value]}"
        if isinstance(value, list | tuple):
            return "[" + ",".join(map(text, value)) + "]"
        if isinstance(value, torch.dtype | torch.device | torch.layout | torch.memory_format):
            return str(value)
        return repr(value)

    named = {k: v for k, v in node.kwargs.items() if not (is_comm(node) and k in NAMES_OF_COMM)}
    return text(node.args) + ",".join(f"{k}={text(v)}" for k, v in sorted(named.items()))
