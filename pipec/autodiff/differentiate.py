"""Differentiating all stages of a model: last stage first, each distinct stage once."""

from collections.abc import Sequence
from weakref import WeakKeyDictionary

from torch import fx

from pipec.autodiff.joint import Joint, trace_joint
from pipec.autodiff.model import Training, share_training
from pipec.autodiff.needs import needs_grad
from pipec.autodiff.recompute import Recompute, views
from pipec.autodiff.split import split_joint
from pipec.errors import GraphError
from pipec.graph.ir import Graph, InputKind, OutputKind, origin
from pipec.graph.rules import Role, verify
from pipec.graph.structure import structural_key

MOST = 20_000
"""Nodes of joint graphs that are kept of one model: some 50 MB."""
_At = tuple[int, ...]
_known = WeakKeyDictionary[fx.GraphModule, dict[object, fx.Graph]]()


def differentiate(
    model: Graph, stages: Sequence[Graph], *, recompute: Recompute = views, portable: bool = False
) -> list[Training]:
    """The training graphs of every stage.

    ``recompute`` says which forward nodes B computes again; if ``portable``, no kernel is used that
    only the device that traces has.

    Going from the last stage to the first, a stage is given the gradient of the loss, if it
    computes it, and of those values of which a later stage yields a gradient. So every gradient
    that is sent is wanted, and every one that is wanted is sent.

    Returns:
        One entry per stage; stages of one structure share graph modules.

    Raises:
        GraphError: The model has no loss, or nothing in it can be trained.
    """
    if not model.outputs_of(OutputKind.LOSS):
        hint = "read the model in training mode and name a loss"
        raise GraphError("the model has no loss", where="differentiate", hint=hint)
    needs = needs_grad(model)
    done: dict[object, tuple[Graph, Training]] = {}
    demanded: set[str] = set()
    found: list[Training] = []
    for stage in reversed(stages):
        key = (structural_key(stage), *_ends(stage, needs, demanded))
        if key not in done:
            training = split_joint(_traced(model, stage, *key, portable=portable), recompute)
            for kind, graph in training.graphs.items():
                verify(graph, f"{kind} of a stage", Role(kind))
            done[key] = (stage, training)
        original, training = done[key]
        if original is not stage:
            training = share_training(training, original, stage)
        demanded |= set(training.gradients_out())
        found.insert(0, training)
    if not any(t.trained for t in found):
        hint = "look for detach(), no_grad() and requires_grad=False"
        raise GraphError("the loss depends on no parameter", where="differentiate", hint=hint)
    return found


def _ends(stage: Graph, needs: frozenset[str], demanded: set[str]) -> tuple[_At, _At]:
    """Positions of the inputs whose gradient is wanted, and of outputs whose gradient arrives."""
    wanted = tuple(
        k
        for k, i in enumerate(stage.inputs)
        if (i.kind is InputKind.VALUE and i.name in needs)
        or (i.kind is InputKind.PARAMETER and i.node in needs)
    )
    gradients = tuple(
        k
        for k, o in enumerate(stage.outputs)
        if o.node in needs
        and (o.kind is OutputKind.LOSS or (o.kind is OutputKind.VALUE and o.name in demanded))
    )
    return wanted, gradients


def _traced(
    model: Graph, stage: Graph, key: str, wanted: _At, gradients: _At, *, portable: bool
) -> Joint:
    """`trace_joint`, once for plans of one model that cut out the same stage, names and all."""
    known = _known.setdefault(model.module, {})
    calls = tuple((n.name, n.target, origin(n)) for n in stage.calls)
    same = key, calls, stage.inputs, stage.outputs, wanted, gradients, portable
    graph = known.pop(same, None) or trace_joint(stage, wanted, gradients, portable=portable).graph
    known[same] = graph  # what was used last is kept longest
    while len(known) > 1 and sum(len(g.nodes) for g in known.values()) > MOST:
        del known[next(iter(known))]
    return Joint(graph, stage, gradients, wanted)
