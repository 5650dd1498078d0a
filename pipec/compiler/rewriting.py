"""Passes that are made of rules: rewrite until no rule finds anything."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from pipec.compiler.backend import load_backend
from pipec.compiler.capabilities import model_of
from pipec.compiler.pass_base import Pass
from pipec.compiler.tolerance import REWRITTEN
from pipec.cost.count import count
from pipec.cost.table import CostTable
from pipec.errors import PassError
from pipec.graph.ir import Graph
from pipec.graph.patterns import Match, Rule, matches, replace
from pipec.plan.model import Plan

__all__ = ["Match", "RewritePass", "Rule", "rewrite"]

_MOST_PER_CALL = 10
"""Rules that replace more than this, per node of the graph, are taken to go on for ever."""


def rewrite(graph: Graph, rules: Sequence[Rule]) -> Graph:
    """Apply rules, in their order, until none of them matches; the same object if none ever did.

    Raises:
        PassError: The rules never come to an end.
        GraphError: A replacement is of another type than what it replaces, or is no graph of ops.
    """
    left, changed = _MOST_PER_CALL * len(graph.calls), True
    while changed:
        changed = False
        for rule in rules:
            found = matches(graph, rule)
            if len(found) > left:
                raise PassError(
                    "the rules come to no end",
                    where=str(rule),
                    got=f"a match after {_MOST_PER_CALL} replacements per node of the graph",
                    hint="a replacement must not contain its own pattern",
                )
            left -= len(found)
            if found:
                graph, changed = replace(graph, rule, found), True
    return graph


@dataclass(frozen=True)
class RewritePass(Pass):
    """A pass that is nothing but rules; a subclass says ``name`` and ``rules``.

    It runs before the model is cut. New nodes are costed by the backend's model, the others keep
    the costs that they have.
    """

    rules: ClassVar[tuple[Rule, ...]]

    def run(self, plan: Plan) -> Plan:
        """The plan with the rewritten graph.

        Raises:
            PassError: The plan is cut, and there is something to rewrite.
        """
        graph = rewrite(plan.graph, self.rules)
        if graph is plan.graph:
            return plan
        if plan.stages:
            raise PassError(
                f"pass {self.name} would change a model that is cut",
                hint="put it before partition",
            )
        options = {**plan.options, REWRITTEN: self.name}
        return plan.replace(graph=graph, costs=_costs(plan, graph), options=options)


def _costs(plan: Plan, graph: Graph) -> CostTable | None:
    """Costs of the rewritten graph; None where the plan had none."""
    if plan.costs is None:
        return None
    model, counted = model_of(load_backend(plan.target), plan.cluster), count(graph)
    before, had = plan.graph.nodes, plan.costs.nodes
    kept = {
        n.name
        for n in graph.calls
        if had.get(n.name) == counted[n.name] and before[n.name].target == n.target
    }
    seconds = {}
    for device in {d.kind: d for d in plan.cluster.devices}.values():
        row = plan.costs.seconds[device.kind]
        seconds[device.kind] = {
            n.name: row[n.name] if n.name in kept else model.seconds(n, counted[n.name], device)
            for n in graph.calls
        }
    backward = {
        kind: {n: row[n] if n in kept else seconds[kind][n] * counted[n].backward for n in counted}
        for kind, row in plan.costs.backward.items()
    }
    return CostTable(counted, seconds, plan.costs.method, backward=backward)
