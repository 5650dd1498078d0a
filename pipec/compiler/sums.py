"""What devices of a plan add up: gradients of replicas, and of weights that several stages read."""

from collections.abc import Iterator

from pipec.graph.ir import InputKind, nbytes
from pipec.plan.model import Plan, Stage
from pipec.schedule.schedule import Placement


def trained_bytes(stage: Stage) -> int:
    """Bytes of the parameters of a differentiated stage that get a gradient."""
    assert stage.training is not None
    nodes, trained = stage.graph.nodes, set(stage.training.trained)
    parameters = stage.graph.inputs_of(InputKind.PARAMETER)
    return sum(nbytes(nodes[i.node]) for i in parameters if i.name in trained)


def shared_weights(plan: Plan, place: Placement) -> Iterator[tuple[int, list[int], list[int]]]:
    """Weights that several stages train: bytes, stages, and the devices that add up.

    Args:
        plan: Differentiated.
        place: Where its stages run.
    """
    sizes = {i.name: nbytes(s.graph.nodes[i.node]) for s in plan.stages for i in s.graph.inputs}
    for name, readers in plan.tied().items():
        stages = [s for s in readers if _trains(plan.stages[s], name)]
        if len(stages) > 1:
            devices = {d for s in stages for d in place.backward[s]}
            yield sizes[name], stages, sorted(devices)


def _trains(stage: Stage, weight: str) -> bool:
    return stage.training is not None and weight in stage.training.trained


def summed_bytes(plan: Plan) -> set[int]:
    """Bytes of everything that devices of a plan add up."""
    if not plan.differentiated or plan.placement is None:
        return set()
    shared = {size for size, _, _ in shared_weights(plan, plan.placement)}
    replicated = {
        trained_bytes(stage)
        for stage, devices in zip(plan.stages, plan.placement.backward, strict=False)
        if len(devices) > 1
    }
    return shared | replicated
