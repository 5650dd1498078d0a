"""Training ops as ops that engines compute: batch statistics, losses, input gradients.

A rule replaces one node by nodes of simpler ATen ops that compute the same; rules are in
`pipec.backends.fpga.training.rules`. Everything else is copied.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from pipec.errors import GraphError
from pipec.graph.ir import Graph, GraphOutput, op_name

Found = fx.Node | tuple[fx.Node | None, ...]
"""What a rule yields: the node's value, or one per item of a tuple; None where nobody reads it."""


class Emit:
    """Appends nodes to a graph on behalf of an old node.

    Args:
        graph: The graph that grows.
        old: The node that is replaced; its origin is passed on.
    """

    def __init__(self, graph: fx.Graph, old: fx.Node) -> None:
        self._graph = graph
        self._old = old

    def __call__(self, op: Callable[..., Any], *args: Any, **kwargs: Any) -> fx.Node:
        """A call of ``op``; its value is computed on fake tensors."""
        node = self._graph.create_node(
            "call_function", op, args, kwargs, name=f"{self._old.name}_{len(self._graph.nodes)}"
        )
        fakes = fx.node.map_arg((args, kwargs), lambda n: n.meta["val"])
        node.meta = {k: v for k, v in self._old.meta.items() if k != "val"}
        node.meta["val"] = op(*fakes[0], **fakes[1])
        return node

    def input(self, name: str, like: fx.Node) -> fx.Node:
        """A new input of the graph, behind the others; its value is like that of a node."""
        first = next((n for n in self._graph.nodes if n.op != "placeholder"), None)
        if first is None:
            node = self._graph.placeholder(name)
        else:
            with self._graph.inserting_before(first):
                node = self._graph.placeholder(name)
        node.meta = {"val": torch.empty_like(like.meta["val"])}
        return node

    def item(self, node: fx.Node, index: int) -> fx.Node:
        """One item of a tuple result."""
        return self(operator.getitem, node, index)


Rule = Callable[[Emit, fx.Node, Sequence[Any]], Found | None]
"""``rule(emit, old node, new arguments)``; None leaves the node as it is."""


def rewritten(graph: Graph, rules: dict[str, Rule]) -> Graph:
    """The graph with rules applied; node names of inputs and of what is copied stay.

    Args:
        graph: A pure graph.
        rules: By op name.
    """
    new, env = fx.Graph(), dict[fx.Node, Any]()
    nodes = graph.module.graph.nodes
    for old in nodes:
        if old.op == "output":
            continue
        if old.target is operator.getitem and isinstance(env[old.args[0]], tuple):
            env[old] = env[old.args[0]][old.args[1]]
            continue
        rule = rules.get(op_name(old)) if old.op == "call_function" else None
        found = None
        if rule is not None:
            found = rule(Emit(new, old), old, fx.node.map_arg(old.args, env.__getitem__))
        env[old] = found if found is not None else new.node_copy(old, env.__getitem__)
    return _with_outputs(graph, new, env)


def _with_outputs(graph: Graph, new: fx.Graph, env: dict[fx.Node, Any]) -> Graph:
    old = graph.nodes
    results = [env[old[o.node]] for o in graph.outputs]
    if not all(isinstance(r, fx.Node) for r in results):
        raise GraphError("a rule does not compute an output of its graph")
    new.output(tuple(results))
    for node in reversed(list(new.nodes)):
        if node.op == "call_function" and not node.users:
            new.erase_node(node)
    outputs = tuple(
        GraphOutput(node.name, o.kind, o.name)
        for node, o in zip(results, graph.outputs, strict=True)
    )
    module = fx.GraphModule({}, new, type(graph.module).__name__)
    return graph.replace(module=module, outputs=outputs)
