"""Whether a plan is one of the model that it is compared with."""

from collections import Counter
from collections.abc import Sequence

from torch import nn
from torch.nn.parameter import UninitializedParameter

from pipec.compiler.comparison import REWRITTEN
from pipec.errors import PlanError
from pipec.graph.ir import Graph, InputKind, OutputKind
from pipec.plan.model import Plan

DECLARED = (OutputKind.OUTPUT, OutputKind.LOSS)
"""What the model as written returns."""


def check_same_model(plan: Plan, graph: Graph) -> None:
    """See whether a plan was made of this graph; passes may have folded weights into others.

    Raises:
        PlanError: Inputs, outputs, or weights that both have, differ.
    """
    both = plan.graph.weights.keys() & graph.weights.keys()

    def signature(g: Graph) -> list[str]:
        """Names and shapes of inputs and weights that both have, names and kinds of outputs."""
        nodes = g.nodes
        compared = [i for i in g.inputs if i.name in both or not i.kind.is_weight]
        inputs = [f"{i.name} {list(nodes[i.node].meta['val'].shape)}" for i in compared]
        return [*sorted(inputs), *(f"{o.kind.name.lower()} {o.name}" for o in g.outputs)]

    got, want = signature(graph), signature(plan.graph)
    if got != want:
        raise PlanError(
            "the plan was made of another model",
            where=graph.source.location,
            got=", ".join(x for x in got if x not in want) or "the same in another order",
            want=f"{', '.join(x for x in want if x not in got) or 'no more than this'}, as in "
            f"{plan.graph.source.location}",
        )


def check_parameters(plan: Plan, model: nn.Module) -> None:
    """See that a module has the parameters of a plan, in their shapes; a loss may have its own.

    Raises:
        PlanError: One is missing, or of another shape.
    """
    if REWRITTEN in plan.options:
        return
    named = model.named_parameters(remove_duplicate=False)
    have = {n: list(p.shape) for n, p in named if not isinstance(p, UninitializedParameter)}
    want = {n: list(t.shape) for n, t in plan.graph.tensors_of(InputKind.PARAMETER).items()}
    lost = {n: s for n, s in want.items() if n not in have and not n.startswith("loss.")}
    if other := lost | {n: s for n, s in want.items() if have.get(n, s) != s}:
        raise PlanError(
            "the plan was made of another model",
            where=type(model).__name__,
            got=", ".join(f"{n} {have.get(n, 'is missing')}" for n in other),
            want=", ".join(f"{n} {s}" for n, s in other.items()),
        )


def check_outputs(plan: Plan, declared: Sequence[str]) -> None:
    """See that the stages yield what the model as written does, each output by one stage.

    Args:
        plan: The plan.
        declared: Names of the outputs of the model as written, in its order, as its own engine
            (eager torch, onnxruntime) gave them.

    Raises:
        PlanError: An output is missing, yielded twice, or not the model's; or the order is another.
    """
    known = [o.name for o in plan.graph.outputs_of(*DECLARED)]
    homes = Counter(o.name for s in plan.stages for o in s.graph.outputs_of(*DECLARED))
    wrong = [n for n in {*declared, *homes} if homes[n] != declared.count(n)]
    if known != list(declared) or wrong:
        yielded = ", ".join(f"{n} by {c} stages" if c > 1 else n for n, c in homes.items())
        raise PlanError(
            "the stages do not yield the outputs of the model as written",
            where=plan.graph.source.location,
            got=yielded or "none",
            want=", ".join(declared),
        )
