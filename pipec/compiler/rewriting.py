"""Passes that are made of rules: rewrite until no rule finds anything."""

from dataclasses import dataclass
from typing import ClassVar

from pipec.compiler.comparison import REWRITTEN
from pipec.compiler.costing import make_cost_table
from pipec.compiler.pass_base import Pass
from pipec.errors import PassError
from pipec.graph.patterns import Match, Rule, rewrite
from pipec.plan.model import Plan

__all__ = ["Match", "RewritePass", "Rule", "rewrite"]


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
                f"pass {self.name} would change a model that is cut", hint="put it before partition"
            )
        options = {**plan.options, REWRITTEN: self.name}
        costs = make_cost_table(plan, graph) if plan.costs else None
        return plan.replace(graph=graph, costs=costs, options=options)
