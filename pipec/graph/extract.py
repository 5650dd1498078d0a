"""Cutting a graph: copy some of its nodes into a graph of their own, names kept."""

from collections.abc import Collection, Sequence

from torch import fx

from pipec.graph.ir import Graph, GraphInput, GraphOutput, InputKind, OutputKind
from pipec.graph.written import written

_INPUT_ORDER = list(InputKind)
_OUTPUT_ORDER = [OutputKind.BUFFER_UPDATE, OutputKind.LOSS, OutputKind.OUTPUT, OutputKind.VALUE]


def extract(graph: Graph, names: Collection[str], title: str) -> Graph:
    """The part of ``graph`` that computes the nodes in ``names``.

    Inputs are what these nodes read and do not compute, sorted by kind (parameters, buffers,
    constants, inputs, values) and then by their order in the whole graph. Outputs are the model's
    outputs and buffer updates among them and then every value that a node outside reads.
    A model output that is a placeholder of the whole graph belongs to no part.

    Args:
        graph: The whole graph.
        names: Nodes to copy; placeholders may not be among them.
        title: Class name of the new graph module.

    Returns:
        A graph with its own copy of the nodes; `meta` dictionaries are copied, values shared.
    """
    mine = [n for n in graph.calls if n.name in names]
    inside = set(mine)
    inputs = _inputs(graph, mine, inside)
    outputs = _outputs(graph, mine, inside)
    return written(graph, inputs, mine, outputs, title=title)


def _inputs(graph: Graph, mine: list[fx.Node], inside: set[fx.Node]) -> list[GraphInput]:
    known = {i.node: i for i in graph.inputs}
    read = {r for n in mine for r in n.all_input_nodes if r not in inside}
    rank = {n: k for k, n in enumerate(graph.module.graph.nodes)}
    found = [
        known.get(n.name, GraphInput(n.name, InputKind.VALUE, n.name))
        for n in sorted(read, key=rank.__getitem__)
    ]
    return sorted(found, key=lambda i: _INPUT_ORDER.index(i.kind))


def _outputs(graph: Graph, mine: list[fx.Node], inside: set[fx.Node]) -> list[GraphOutput]:
    computed = {n.name for n in mine}
    found = [o for o in graph.outputs if o.node in computed]
    found.extend(
        GraphOutput(n.name, OutputKind.VALUE, n.name)
        for n in mine
        if any(user not in inside and user.op != "output" for user in n.users)
    )
    return sorted(found, key=lambda o: _OUTPUT_ORDER.index(o.kind))


def with_outputs(graph: Graph, outputs: Sequence[GraphOutput]) -> Graph:
    """The same graph with other outputs, all of which it computes or reads."""
    return written(graph, graph.inputs, graph.calls, outputs)
