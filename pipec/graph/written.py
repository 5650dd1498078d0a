"""A graph made of copies of nodes, which may come from several graphs: nodes are known by name."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import fx

from pipec.graph.ir import Graph, GraphInput, GraphOutput, InputKind, OutputKind
from pipec.graph.torch_private import graph_module


def copy_calls(
    like: Graph,
    inputs: Iterable[GraphInput],
    calls: Iterable[fx.Node],
    outputs: Iterable[GraphOutput],
    *,
    nodes: Mapping[str, fx.Node] | None = None,
    title: str = "",
) -> Graph:
    """A graph that computes copies of ``calls``; metadata are copied, values shared.

    Args:
        like: Gives source, namespaces, and the weights that are read with their other names.
        inputs: Placeholders of the new graph, in order.
        calls: What it computes, each behind what it reads.
        outputs: What it yields, each an input or a call.
        nodes: Where the metadata of inputs come from; the nodes of ``like`` if absent.
        title: Class name of the module; that of ``like`` if empty.
    """
    new, env = fx.Graph(), dict[str, fx.Node]()
    known = like.nodes if nodes is None else nodes
    inputs, outputs = tuple(inputs), tuple(outputs)
    for i in inputs:
        env[i.node] = new.placeholder(i.node)
        env[i.node].meta = dict(known[i.node].meta)
    for call in calls:
        env[call.name] = new.node_copy(call, lambda n: env[n.name])
    new.output(tuple(env[o.node] for o in outputs))
    read = [i.name for i in inputs if i.kind.is_weight]
    return like.replace(
        module=graph_module(new, title or type(like.module).__name__),
        inputs=inputs,
        outputs=outputs,
        weights={name: like.weights[name] for name in read if name in like.weights},
        tied={name: like.tied[name] for name in read if name in like.tied},
    )


def ancestors(
    roots: Iterable[fx.Node], through: Callable[[fx.Node], bool] = lambda _: True
) -> set[fx.Node]:
    """The nodes and all that they are computed from, up to those that ``through`` is false of."""
    found, stack = set[fx.Node](), list(roots)
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack.extend(node.all_input_nodes if through(node) else ())
    return found


_INPUT_ORDER = list(InputKind)
_OUTPUT_ORDER = [OutputKind.BUFFER_UPDATE, OutputKind.LOSS, OutputKind.OUTPUT, OutputKind.VALUE]


def extract(graph: Graph, names: Collection[str], title: str) -> Graph:
    """The part of ``graph`` that computes the nodes in ``names``, calls all of them.

    Inputs are what these nodes read and do not compute, sorted by kind (parameters, buffers,
    constants, inputs, values) and then by their order in the whole graph. Outputs are the model's
    outputs and buffer updates among them and then every value that a node outside reads.
    A model output that is a placeholder of the whole graph belongs to no part.

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
