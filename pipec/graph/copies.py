"""Nodes computed again for other readers: copies under names of their own, beside the originals."""

from collections import ChainMap
from collections.abc import Collection, Mapping

from torch import fx

from pipec.graph.ir import Graph


def with_copies(
    graph: Graph, group: Mapping[str, int], again: Mapping[int, Collection[str]]
) -> tuple[Graph, dict[str, int]]:
    """The graph in which the nodes of a group read copies of their own of some nodes.

    Args:
        graph: What is copied from.
        group: Of every call node.
        again: Group to the nodes of other groups that it computes for itself.

    Returns:
        The graph, without originals that nothing reads any more; and the group of every call.
    """
    new, env, taken = fx.Graph(), dict[str, fx.Node](), set(graph.nodes)
    own: dict[int, dict[str, fx.Node]] = {k: {} for k in {*group.values(), *again}}
    home: dict[str, int] = {}
    for i in graph.inputs:
        env[i.node] = new.placeholder(i.node)
        env[i.node].meta = dict(graph.nodes[i.node].meta)
    for call in graph.calls:
        copies = [(k, f"{call.name}_stage{k}") for k in sorted(again) if call.name in again[k]]
        for k, name in [(group[call.name], call.name), *copies]:
            while name != call.name and name in taken:
                name += "_"  # noqa: PLW2901 - a name that the graph does not have
            node = _copy(new, call, name, ChainMap(own[k], env))
            node.meta, home[name] = dict(call.meta), k
            taken.add(name)
            (env if name == call.name else own[k])[call.name] = node
    new.output(tuple(env[o.node] for o in graph.outputs))
    for node in reversed(list(new.nodes)):
        if node.op == "call_function" and not node.users and node.name in env:
            new.erase_node(node)
            del home[node.name]
    module = fx.GraphModule({}, new, type(graph.module).__name__)
    return graph.replace(module=module), home


def _copy(graph: fx.Graph, call: fx.Node, name: str, read: Mapping[str, fx.Node]) -> fx.Node:
    args, kwargs = fx.node.map_arg((call.args, call.kwargs), lambda n: read[n.name])
    return graph.create_node(call.op, call.target, args, kwargs, name)
