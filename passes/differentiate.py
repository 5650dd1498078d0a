"""Pass ``differentiate``: forward and backward graphs of every stage."""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar, Literal

from pipec.autodiff.differentiate import differentiate
from pipec.autodiff.recompute import POLICIES, Policy
from pipec.compiler.backend import load_backend
from pipec.compiler.pass_base import Pass
from pipec.graph.lower import lower
from pipec.plan.model import Fact, Plan


@dataclass(frozen=True)
class Differentiate(Pass):
    """Gives every stage its F, B, I and W graphs and lists what is saved between them.

    1. Stages are differentiated from the last to the first: a stage is given the gradients that
       later stages yield, and yields those of the values that depend on a trained parameter.
    2. Stages of one structure are differentiated once and share their graphs.
    3. B computes views again instead of having them saved; with ``recompute=all`` everything but
       random numbers, so that F saves little more than what the stage received.
    4. A model without a loss is left as it is; parameters with ``requires_grad=False`` are not
       trained.

    Attributes:
        recompute: What B computes again: ``views`` or ``all``.
        attention: ``kernel``, the fused one of the device that traces, or ``math``, matrix
            products that every device has: for a plan that is made on a CPU and runs on a GPU, and
            for targets that have no such kernel.
    """

    name: ClassVar[str] = "differentiate"
    requires: ClassVar[frozenset[Fact]] = frozenset({Fact.COMM})
    provides: ClassVar[frozenset[Fact]] = frozenset({Fact.SAVED})
    recompute: Policy = "views"
    attention: Literal["kernel", "math"] = "kernel"

    def run(self, plan: Plan) -> Plan:
        """The plan with forward and backward graphs per stage; itself where nothing is trained."""
        if not plan.trains or plan.differentiated:
            return plan
        found = differentiate(
            plan.graph,
            [lower(s.graph).graph for s in plan.stages],
            recompute=POLICIES[self.recompute],
            portable=self.attention == "math" or not load_backend(plan.target).fused_attention,
        )
        stages = tuple(
            dataclasses.replace(stage, training=training)
            for stage, training in zip(plan.stages, found, strict=True)
        )
        return plan.replace(stages=stages)
