"""Passes that are made of rules: rewrite until no rule finds anything."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from pipec.compiler.costing import cost_table
from pipec.compiler.pass_base import Pass
from pipec.compiler.tolerance import REWRITTEN
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
        costs = cost_table(plan, graph) if plan.costs else None
        return plan.replace(graph=graph, costs=costs, options=options)
