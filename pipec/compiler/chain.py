"""Emitted stages one after the other: each sees its inputs and what its channels bring."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from torch import Tensor

from pipec.errors import BackendError
from pipec.graph.ir import InputKind, OutputKind
from pipec.graph.lower import lower
from pipec.plan.model import Plan
from pipec.user_module import user_code

StageFunction = Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
"""One emitted stage as a function: names of its inputs and outputs (user inputs by their name,
values by the node of the whole model) to tensors."""


def run_chain(
    plan: Plan,
    runners: Sequence[StageFunction],
    inputs: Mapping[str, Tensor],
    progress: Callable[[str], None] = lambda _: None,
) -> Iterator[tuple[str, OutputKind, int, Tensor]]:
    """(name, kind, stage, tensor) of everything that the stages send or yield.

    Raises:
        BackendError: A stage does not yield what it should.
    """
    boxes: dict[str, Tensor] = {}
    for stage, run in zip(plan.stages, runners, strict=True):
        progress(f"running stage {stage.index} of {len(plan.stages)}")
        low = lower(stage.graph)
        arrived = {t.value: boxes.pop(t.channel) for t in low.receives}
        fed = {i.name: inputs[i.name] for i in low.graph.inputs_of(InputKind.INPUT)}
        with user_code(f"stage {stage.index} failed", error=BackendError):
            results = {**arrived, **run({**fed, **arrived})}
        wanted = [o.name for o in low.graph.outputs]
        if lacking := [name for name in wanted if not isinstance(results.get(name), Tensor)]:
            raise BackendError(
                "a stage does not yield what it should",
                where=f"stage {stage.index}",
                got=", ".join(results) or "nothing",
                want=f"tensors: {', '.join(lacking)}",
            )
        for t in low.sends:
            boxes[t.channel] = results[t.value]
        for o in low.graph.outputs:
            passed_on = o.kind is OutputKind.VALUE and o.name in arrived
            if not passed_on:
                yield o.name, o.kind, stage.index, results[o.name]
