"""Pass ``simplify``: drop what computes nothing."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import fx

from pipec.compiler.pass_base import Pass
from pipec.graph.ir import Graph, tensors
from pipec.plan.model import Plan

_COPIES = {
    torch.ops.aten.clone.default,
    torch.ops.aten.alias.default,
    torch.ops.aten._to_copy.default,
}
_SHAPES = {torch.ops.aten.reshape.default, torch.ops.aten.expand.default}


@dataclass(frozen=True)
class Simplify(Pass):
    """Removes nodes that change no value and nodes that nobody reads.

    1. A ``clone``, ``alias`` or ``_to_copy`` whose result has shape, dtype and strides of its
       argument is replaced by the argument: the graph is functional, so nothing can tell.
    2. So is a ``reshape`` or ``expand`` to the shape that the argument has.
    3. A call without readers that is no output is removed.
    """

    name: ClassVar[str] = "simplify"

    def run(self, plan: Plan) -> Plan:
        doomed = {n.name for n in plan.graph.calls if _changes_nothing(n)}
        graph = _without(plan.graph, doomed)
        return plan if graph is None else plan.replace(graph=graph)


def _changes_nothing(node: fx.Node) -> bool:
    if node.target not in _COPIES | _SHAPES or any(u.op == "output" for u in node.users):
        return False
    before, after = tensors(node.all_input_nodes[0]), tensors(node)
    return [_layout(t) for t in before] == [_layout(t) for t in after]


def _layout(t: torch.Tensor) -> tuple[object, ...]:
    return (*t.shape, t.dtype, *t.stride())


def _without(graph: Graph, doomed: set[str]) -> Graph | None:
    """The graph without the nodes in ``doomed`` and without dead calls; None if nothing goes."""
    copy, env = fx.Graph(), dict[fx.Node, fx.Node]()
    for n in graph.module.graph.nodes:
        if n.name in doomed:
            env[n] = env[n.all_input_nodes[0]]
        else:
            env[n] = copy.node_copy(n, env.__getitem__)
    dead = [n for n in reversed(copy.nodes) if n.op == "call_function"]
    removed = len(doomed)
    for n in dead:
        if not n.users and not n.is_impure():
            copy.erase_node(n)
            removed += 1
    if not removed:
        return None
    return graph.replace(module=fx.GraphModule({}, copy, type(graph.module).__name__))
