"""What other stages read instead of a value: copies of its nodes, or what is made of a message."""

from collections import ChainMap
from collections.abc import Callable, Collection, Mapping
from typing import Any

from torch import fx

from pipec.graph.draft import Draft
from pipec.graph.ir import Graph, Origin, origin
from pipec.graph.torch_private import graph_module

PACK, UNPACK = "pack", "unpack"
"""Ops of the origins of nodes between a value and what stands for it in other stages: the latter is
of ``UNPACK`` and names the value; what is computed on the way is of ``PACK``."""


def with_copies(
    graph: Graph, group: Mapping[str, int], again: Mapping[int, Collection[str]]
) -> tuple[Graph, dict[str, int]]:
    """The graph in which the nodes of a group read copies of their own of some nodes.

    ``group`` has the group of every call node, ``again`` the nodes of other groups that a group
    computes for itself.

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
    module = graph_module(new, type(graph.module).__name__)
    return graph.replace(module=module), home


def _copy(graph: fx.Graph, call: fx.Node, name: str, read: Mapping[str, fx.Node]) -> fx.Node:
    args, kwargs = fx.node.map_arg((call.args, call.kwargs), lambda n: read[n.name])
    return graph.create_node(call.op, call.target, args, kwargs, name)


def with_packed(
    graph: Graph,
    group: Mapping[str, int],
    wanted: Callable[[fx.Node], bool],
    pack: Callable[..., object],
    unpack: Callable[..., object],
) -> tuple[Graph, dict[str, int]]:
    """The graph in which other groups read values as they are after packing and unpacking.

    ```text
    value ─► its own group                 value ─┬► its own group
          └► another group                        └► pack ─► unpack ─► another group
    ```

    Args:
        graph: What is copied.
        group: Group of every call node.
        wanted: Which of the values that other groups read.
        pack: From the value to what is sent, one tensor or a tuple; runs in the value's group.
        unpack: From what was sent to a tensor of the value's type; runs in each reader's group.

    Returns:
        The graph, and the group of every call.

    Raises:
        GraphError: What is unpacked is of another type; or a function calls something that is no
            op, or that does not take its arguments.
    """
    draft, home = Draft(graph), dict(group)

    def write(function: Callable[..., object], value: fx.Node, where: int, *args: fx.Node) -> Any:
        count, old = len(draft.written), draft.of[value]
        found = draft.write(function, behind, old, *args)
        for n in draft.written[count:]:
            home[n.name], n.meta["origin"] = where, Origin(value.name, PACK)
        return found

    for value in graph.calls:
        readers: dict[int, list[fx.Node]] = {}
        for n in value.users:
            if home.get(n.name, home[value.name]) != home[value.name]:
                readers.setdefault(home[n.name], []).append(draft.of[n])
        if not readers or not wanted(value):
            continue
        behind = draft.of[value].next
        sent = write(pack, value, home[value.name], draft.of[value])
        for stage in sorted(readers):
            got = write(unpack, value, stage, *(sent if isinstance(sent, tuple) else (sent,)))
            draft.substitute(draft.of[value], got, readers[stage])
            got.meta["origin"] = Origin(value.name, UNPACK)
    return draft.finish(), home


def find_unpacked(graph: Graph) -> dict[str, str]:
    """Nodes that stand for values in other stages, with these values."""
    return {n.name: origin(n).name for n in graph.calls if origin(n).op == UNPACK}
