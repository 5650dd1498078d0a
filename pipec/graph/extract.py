"""Cutting a graph: copy some of its nodes into a graph of their own, names kept."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from torch import fx

from pipec.graph.ir import Graph, GraphInput, GraphOutput, InputKind, OutputKind
from pipec.graph.written import copy_calls

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
    (part,) = parts_of(graph, [[n for n in graph.calls if n.name in names]])
    return part.graph(title)


@dataclass(frozen=True)
class Part:
    """Some calls of a graph, and what they make a graph of.

    Attributes:
        whole: The graph.
        inputs: What the part reads.
        calls: What it computes, in order.
        outputs: What it yields.
    """

    whole: Graph
    inputs: Sequence[GraphInput]
    calls: Sequence[fx.Node]
    outputs: Sequence[GraphOutput]

    @property
    def read(self) -> dict[str, fx.Node]:
        """The nodes of what it reads, by name."""
        return {n.name: n for call in self.calls for n in call.all_input_nodes}

    def graph(self, title: str) -> Graph:
        """A graph with its own copies of the calls."""
        own = self.inputs, self.calls, self.outputs
        return copy_calls(self.whole, *own, nodes=self.read, title=title)


def parts_of(graph: Graph, rows: Iterable[Sequence[fx.Node]]) -> list[Part]:
    """What `extract` makes graphs of, for several sets of calls, each in order."""
    known, found = {i.node: i for i in graph.inputs}, []
    for nodes in rows:
        inside = set(nodes)
        read = sorted({r for n in nodes for r in n.all_input_nodes if r not in inside})
        inputs = [known.get(n.name, GraphInput(n.name, InputKind.VALUE, n.name)) for n in read]
        inputs.sort(key=lambda i: _INPUT_ORDER.index(i.kind))
        found.append(Part(graph, inputs, nodes, _outputs(graph, nodes, inside)))
    return found


def _outputs(graph: Graph, nodes: Sequence[fx.Node], inside: set[fx.Node]) -> list[GraphOutput]:
    computed = {n.name for n in nodes}
    found = [o for o in graph.outputs if o.node in computed]
    found.extend(
        GraphOutput(n.name, OutputKind.VALUE, n.name)
        for n in nodes
        if any(user not in inside and user.op != "output" for user in n.users)
    )
    return sorted(found, key=lambda o: _OUTPUT_ORDER.index(o.kind))


def with_outputs(graph: Graph, outputs: Sequence[GraphOutput]) -> Graph:
    """The same graph with other outputs, all of which it computes or reads."""
    return copy_calls(graph, graph.inputs, graph.calls, outputs)
