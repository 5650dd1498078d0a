"""What devices of a plan add up: gradients of replicas, of weights that several stages read, norms.

```text
REDUCE_GRAD    gradients of a stage          its replicas            where it stands in the row
STEP           of a shared weight            the stages that read    behind the rows of all of them
STEP           the square of the norm        all, if clipped         behind the rows of all of them
```
"""

from collections.abc import Iterator, Sequence

from pipec.graph.ir import InputKind, nbytes
from pipec.plan.model import Plan, Stage
from pipec.schedule.schedule import Placement, Schedule

Devices = tuple[int, ...]
_NORM_BYTES = 8


def trained_bytes(stage: Stage) -> int:
    """Bytes of the parameters of a differentiated stage that get a gradient."""
    assert stage.training is not None
    nodes, trained = stage.graph.nodes, set(stage.training.trained)
    parameters = stage.graph.inputs_of(InputKind.PARAMETER)
    return sum(nbytes(nodes[i.node]) for i in parameters if i.name in trained)


def summed_bytes(plan: Plan) -> set[int]:
    """Bytes of everything that devices of a plan add up."""
    if not plan.differentiated or plan.placement is None:
        return set()
    place = plan.placement
    replicated = {
        trained_bytes(stage)
        for stage, devices in zip(plan.stages, place.backward, strict=False)
        if len(devices) > 1
    }
    return replicated | {size for size, _ in _shared(plan, place)}


def joint_devices(plan: Plan, schedule: Schedule, *, clipped: bool) -> tuple[Devices, ...]:
    """Sets of devices that add something up before they step.

    Args:
        plan: What runs.
        schedule: How; without a flush there are none.
        clipped: Whether all devices find the norm of all gradients.
    """
    place = schedule.placement
    if not schedule.rule.flush or not (place.backward and plan.differentiated):
        return ()
    if clipped:
        return (_homes(place, range(len(place.backward))),)
    groups: list[set[int]] = []
    for _, stages in _shared(plan, place):
        group = set(_homes(place, stages))
        overlapping = [g for g in groups if g & group]
        groups = [g for g in groups if not g & group] + [group.union(*overlapping)]
    return tuple(sorted(tuple(sorted(g)) for g in groups))


def reductions(plan: Plan, schedule: Schedule) -> tuple[float, ...]:
    """Seconds of a REDUCE_GRAD, per stage."""
    place = schedule.placement
    if not (place.backward and plan.differentiated):
        return ()
    pairs = zip(place.backward, plan.stages, strict=False)
    return tuple(_all_reduce(plan, devices, trained_bytes(stage)) for devices, stage in pairs)


def before_steps(plan: Plan, schedule: Schedule, *, clipped: bool) -> list[float]:
    """Seconds of what devices add up before they step, per stage: at the first that each steps."""
    place, found = schedule.placement, [0.0] * schedule.stages
    if not (place.backward and plan.differentiated):
        return found
    added = list(_shared(plan, place))
    if clipped:
        added.append((_NORM_BYTES, list(range(len(place.backward)))))
    for size, stages in added:
        devices = _homes(place, stages)
        first = {min(s for s in stages if d in place.backward[s]) for d in devices}
        for stage in first:
            found[stage] += _all_reduce(plan, devices, size)
    return found


def _shared(plan: Plan, place: Placement) -> Iterator[tuple[int, list[int]]]:
    """Weights that several stages train: bytes and stages."""
    sizes = {i.name: nbytes(s.graph.nodes[i.node]) for s in plan.stages for i in s.graph.inputs}
    for name, readers in plan.tied().items():
        if any(_trains(plan.stages[s], name) for s in readers):
            yield sizes[name], [s for s in readers if s < len(place.backward)]


def _trains(stage: Stage, weight: str) -> bool:
    return stage.training is not None and weight in stage.training.trained


def _homes(place: Placement, stages: Sequence[int]) -> Devices:
    return tuple(sorted({d for s in stages for d in place.backward[s]}))


def _all_reduce(plan: Plan, devices: Devices, nbytes: float) -> float:
    """By what was measured between two devices of the first one's kind, else over their links."""
    if len(devices) < 2:
        return 0.0
    measured = plan.costs and plan.costs.messages.get(plan.cluster.devices[devices[0]].kind)
    seconds = measured.all_reduce(nbytes, len(devices)) if measured else None
    return plan.cluster.all_reduce(devices, nbytes) if seconds is None else seconds
