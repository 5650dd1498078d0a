"""Checking a plan: the graphs first, then how the parts belong together."""

from pipec.errors import PlanError
from pipec.graph.finding import refuse
from pipec.graph.rules import Checker, Role
from pipec.plan.model import Plan
from pipec.plan.rules import decisions, stages, training
from pipec.plan.rules.parts import Parts, PlanRule

RULES: dict[str, PlanRule] = {**stages.RULES, **training.RULES, **decisions.RULES}
"""Rule name to what finds its violations; the first holds before the others are asked, which find
stages by their numbers."""


def verify(plan: Plan, *, before: Plan | None = None) -> None:
    """Check the plan and every graph in it.

    Nothing is taken on trust because it is the object that it was: a pass may have changed it in
    place. What is asked of a type is looked up once for equal calls (`pipec.graph.infer`).

    Args:
        plan: The plan to check.
        before: What it was before the pass, whose rules held: a schedule that is the same object
            is not played again, and the costs of the same graph are not counted again.

    Raises:
        GraphError: A graph breaks a rule of the IR.
        PlanError: The parts do not belong together; all findings are listed.
    """
    checker = Checker()
    checker.check(plan.graph, Role.MODEL, "the model")
    for stage in plan.stages:
        checker.check(stage.graph, Role.STAGE, f"stage {stage.index}")
        if stage.training is not None:
            for kind, graph in stage.training.graphs.items():
                checker.check(graph, Role(kind), f"{kind} of stage {stage.index}")
    parts = Parts(plan, before)
    first, *others = RULES.items()
    for rules in ([first], others):
        found = [(name, finding) for name, rule in rules for finding in rule(parts)]
        refuse(PlanError, "plan", found, "the plan")
