"""Counting what a node computes and moves, from its annotated shapes.

What its backward takes, in units of its forward, follows from what has to be computed:

| node | forward | backward |
|---|---|---|
| product (matrix product, convolution, LSTM) | one | one for each operand that needs a gradient |
| attention | two | five: the scores again, and four gradients |
| gather, such as an embedding | rows | these, and a gradient as large as the table |
| anything else | one pass over its data | one pass |
"""

import operator
from math import prod

import torch
from torch import Tensor, fx

from pipec.cost.flops import FlopCounter
from pipec.cost.table import NodeCost
from pipec.graph.ir import Graph, InputKind, nbytes, tensors
from pipec.graph.torch_private import OpOverload, is_view

_aten = torch.ops.aten
_GATHERS = frozenset(
    {_aten.embedding.default, _aten.index.Tensor, _aten.index_select.default, _aten.gather.default}
)
"""Ops that read no more of their table than they yield."""


def count(graph: Graph) -> dict[str, NodeCost]:
    """Cost of every call node by name.

    Views move nothing; a reshape that has to copy does. Broadcast dimensions are read once.
    """
    counter, found = FlopCounter(), dict[str, NodeCost]()
    needing = needing_gradients(graph)
    owners = {i.node for i in graph.inputs if i.kind.is_weight}
    weights: set[fx.Node] = {
        n for n in graph.module.graph.nodes if n.op == "placeholder" and n.name in owners
    }
    for node in graph.calls:
        moves = moves_data(node)
        if not moves and node.all_input_nodes and node.all_input_nodes[0] in weights:
            weights.add(node)  # a view of a weight is that weight
        table = node.all_input_nodes[0] if node.target in _GATHERS else None
        ratio = backward_ratio(node, needing, counter, table)
        found[node.name] = _node_cost(node, weights, counter.flops(node), ratio, moves=moves)
    return found


def moves_data(node: fx.Node) -> bool:
    """Whether running the node reads and writes memory, and does not only relabel it."""
    if node.target is operator.getitem or not isinstance(node.target, OpOverload):
        return False
    if node.target is _aten.reshape.default:
        return not _is_viewable(node.all_input_nodes[0].meta["val"], node.meta["val"].shape)
    return not is_view(node.target)


def _node_cost(
    node: fx.Node, weights: set[fx.Node], flops: float, backward: float, *, moves: bool
) -> NodeCost:
    size = nbytes(node)
    reads = {n: sum(map(_count_touched, tensors(n))) for n in node.all_input_nodes} if moves else {}
    if node.target in _GATHERS and reads:
        table = next(iter(reads))
        reads[table] = min(reads[table], size)
    return NodeCost(
        flops=flops,
        bytes_read=sum(reads.values()),
        bytes_written=size if moves else 0,
        parameter_bytes=sum(b for n, b in reads.items() if n in weights),
        output_bytes=size,
        backward=backward,
    )


def _count_touched(t: Tensor) -> int:
    """Bytes of the distinct elements of a tensor: a broadcast dimension has one."""
    lengths = (n for n, s in zip(t.shape, t.stride(), strict=True) if s != 0 or n == 0)
    return prod(lengths, start=t.element_size())


def _is_viewable(t: Tensor, shape: torch.Size) -> bool:
    """Whether a tensor can be seen in another shape without a copy."""
    if t.is_contiguous():
        return True
    try:
        torch.empty_strided(t.shape, t.stride(), device="meta").view(shape)
    except RuntimeError:  # what `view` raises for incompatible strides
        return False
    return True


_ATTENTION = 2.5


def needing_gradients(graph: Graph) -> frozenset[fx.Node]:
    """Trained parameters and the nodes that depend on them, of those with floating values.

    A stricter rule, which takes a run of the graph, is `pipec.autodiff.needs.needs_grad`.
    """
    nodes = graph.nodes
    found = {nodes[i.node] for i in graph.inputs_of(InputKind.PARAMETER)}
    found = {n for n in found if _floating(n)}
    for node in graph.calls:
        if _floating(node) and not found.isdisjoint(node.all_input_nodes):
            found.add(node)
    return frozenset(found)


def backward_ratio(
    node: fx.Node, needing: frozenset[fx.Node], counter: FlopCounter, table: fx.Node | None
) -> float:
    """Backward seconds of one node in units of its forward seconds.

    Args:
        node: A call.
        needing: What needs gradients; see `needing_gradients`.
        counter: Knows products.
        table: What a gather reads rows of.
    """
    if node not in needing:
        return 0.0
    wanted: list[fx.Node] = []
    fx.map_arg((node.args, node.kwargs), lambda n: wanted.append(n) if n in needing else None)
    if "scaled_dot_product" in str(node.target):
        return _ATTENTION
    if counter.is_product(node):
        operands = [n for n in wanted if any(t.ndim > 1 for t in tensors(n))]  # no bias
        return float(max(1, min(2, len(operands))))
    return 1.0 + nbytes(table) / max(1, 2 * nbytes(node)) if table in wanted else 1.0


def _floating(node: fx.Node) -> bool:
    return any(t.is_floating_point() for t in tensors(node))
