"""A graph made of copies of nodes, which may come from several graphs: nodes are known by name."""

from collections.abc import Iterable, Mapping

from torch import fx

from pipec.graph.ir import Graph, GraphInput, GraphOutput
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


def ancestors(roots: Iterable[fx.Node]) -> set[fx.Node]:
    """The nodes and all that they are computed from."""
    found, stack = set[fx.Node](), list(roots)
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack.extend(node.all_input_nodes)
    return found
