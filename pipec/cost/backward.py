"""What a node's backward takes in units of its forward, by what has to be computed.

| node | forward | backward |
|---|---|---|
| product (matrix product, convolution, LSTM) | one | one for each operand that needs a gradient |
| attention | two | five: the scores again, and four gradients |
| gather, such as an embedding | rows | these, and a gradient as large as the table |
| anything else | one pass over its data | one pass |
"""

from torch import fx

from pipec.cost.flops import FlopCounter
from pipec.graph.ir import Graph, InputKind, nbytes, tensors

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
    if table in wanted:
        return 1.0 + nbytes(table) / max(1, 2 * nbytes(node))
    return 1.0


def _floating(node: fx.Node) -> bool:
    return any(t.is_floating_point() for t in tensors(node))
