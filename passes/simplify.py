"""Pass ``simplify``: drop what computes nothing."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from pipec.compiler.costing import make_cost_table
from pipec.compiler.pass_base import Pass
from pipec.graph.infer import type_of
from pipec.graph.patterns import Match, Rule, rewrite
from pipec.graph.written import ancestors, copy_calls
from pipec.plan.model import Plan

aten = torch.ops.aten


def _argument(self: object) -> object:
    return self


def _changes_nothing(match: Match) -> bool:
    (node,), before = match.results, match.value("self")
    is_output = any(u.op == "output" for u in node.users)
    return not is_output and type_of(before) == type_of(node.meta["val"])


_OPS = (
    aten.clone.default,
    aten.alias.default,
    aten._to_copy.default,
    aten.reshape.default,
    aten.expand.default,
)
_RULES = [Rule(op, _argument, where=_changes_nothing) for op in _OPS]


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
        graph = rewrite(plan.graph, _RULES)
        nodes = graph.module.graph.nodes
        live = ancestors(n for n in nodes if n.op == "output" or n.is_impure())
        if not live.issuperset(graph.calls):
            calls = [n for n in graph.calls if n in live]
            graph = copy_calls(graph, graph.inputs, calls, graph.outputs)
        if graph is plan.graph:
            return plan
        return plan.replace(graph=graph, costs=make_cost_table(plan, graph) if plan.costs else None)
