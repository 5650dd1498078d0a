"""Differentiating all stages of a model: last stage first, each distinct stage once."""

from collections.abc import Callable, Sequence
from functools import partial

from pipec.autodiff.joint import Joint, trace_joint
from pipec.autodiff.model import Training, share_training
from pipec.autodiff.needs import needs_grad
from pipec.autodiff.recompute import Recompute, views
from pipec.autodiff.split import split_joint
from pipec.errors import GraphError
from pipec.graph.ir import Graph, InputKind, OutputKind
from pipec.graph.rules import Role, verify
from pipec.graph.structure import structural_key


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
        raise GraphError(
            "the model has no loss",
            where="differentiate",
            hint="read the model in training mode and name a loss",
        )
    needs = needs_grad(model)
    done: dict[object, tuple[Graph, Training]] = {}
    demanded: set[str] = set()
    found: list[Training] = []
    trace = partial(trace_joint, portable=portable)
    for stage in reversed(stages):
        training = _one(stage, needs, demanded, recompute, done, trace)
        demanded |= set(training.gradients_out())
        found.insert(0, training)
    if not any(t.trained for t in found):
        raise GraphError(
            "the loss depends on no parameter",
            where="differentiate",
            hint="look for detach(), no_grad() and requires_grad=False",
        )
    return found


def _one(
    stage: Graph,
    needs: frozenset[str],
    demanded: set[str],
    recompute: Recompute,
    done: dict[object, tuple[Graph, Training]],
    trace: Callable[[Graph, tuple[int, ...], tuple[int, ...]], Joint],
) -> Training:
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
    key = (structural_key(stage), wanted, gradients)
    if key not in done:
        training = split_joint(trace(stage, wanted, gradients), recompute)
        for kind, graph in training.graphs.items():
            verify(graph, f"{kind} of a stage", Role(kind))
        done[key] = (stage, training)
    original, training = done[key]
    return training if original is stage else share_training(training, original, stage)
