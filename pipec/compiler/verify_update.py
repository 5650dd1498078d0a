"""Emitted training stages over several microbatches and two updates, against autograd and SGD.

```text
stage 0:  F0  F1  B0  F2  B1  B2  update     in the schedule's order, its first microbatches
stage 1:      F0  B0  F1  B1  F2  B2  update
```

Two updates with the same gradients show the momentum too.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from pipec.compiler.backend import TrainingRunner
from pipec.compiler.comparison import Comparison
from pipec.compiler.verify_training import add, compared, gradients_of
from pipec.errors import PlanError
from pipec.graph.ir import Graph
from pipec.plan.model import Plan
from pipec.runtime.program import Program, StageProgram
from pipec.schedule.action import ActionKind
from pipec.schedule.schedule import Schedule

Tensors = dict[str, Tensor]

UPDATES = 2
"""Updates that are compared."""


def compare_emitted(
    plan: Plan,
    source: Graph,
    batches: Sequence[Mapping[str, Tensor]],
    tolerance: float,
    seed: int,
    runners: Sequence[TrainingRunner],
) -> list[Comparison]:
    """Run emitted stages and compare summed gradients and updated parameters.

    Args:
        plan: A plan with a training schedule.
        source: The whole model with weights, traced from its source.
        batches: The model's inputs and targets by name, one set per microbatch.
        tolerance: Largest relative error.
        seed: Of random ops.
        runners: The stages as their backend loaded them.

    Returns:
        For every trained parameter one comparison of kind ``gradient`` and one of kind
        ``parameter`` per update (of parameters that only one stage trains).
    """
    program = Program.of(plan)
    pipeline = _Pipeline(program.stages, runners, batches)
    pipeline.run(_orders(program.schedule, len(batches)))
    found: Tensors = {}
    for runner in runners:
        add(found, runner.gradients())
    stage_of = {n: s.index for s in reversed(program.stages) for n in _trained(s)}
    want: Tensors = {}
    for batch in batches:
        add(want, gradients_of(source, batch, set(found), seed))
    comparisons = compared(found, want, stage_of, tolerance)
    for stage, runner in zip(program.stages, runners, strict=True):
        own = [n for n in _trained(stage) if n not in program.tied]
        expected = _updated(source, {n: want[n] for n in own}, runner.settings)
        for step in expected:
            new = runner.update()
            kind = "parameter"
            comparisons += compared({n: new[n] for n in own}, step, stage_of, tolerance, kind)
    return comparisons


def _trained(stage: StageProgram) -> tuple[str, ...]:
    return stage.training.trained if stage.training is not None else ()


def _updated(source: Graph, sums: Tensors, settings: Mapping[str, float]) -> list[Tensors]:
    """The parameters after each update, by torch.optim.SGD."""
    held = {n: torch.nn.Parameter(source.weights[n].detach().clone()) for n in sums}
    if not held:
        return []
    optimizer = torch.optim.SGD(
        held.values(),
        lr=settings["rate"],
        momentum=settings["momentum"],
        weight_decay=settings["decay"],
    )
    found = []
    for _ in range(UPDATES):
        for name, parameter in held.items():
            parameter.grad = settings["scale"] * sums[name]
        optimizer.step()
        found.append({n: p.detach().clone() for n, p in held.items()})
    return found


def _orders(schedule: Schedule, microbatches: int) -> list[list[tuple[int, ActionKind, int]]]:
    """Per device the stages, kinds and microbatches of its compute, of the first microbatches."""
    return [
        [
            (a.stage, a.kind, a.microbatch)
            for a in row
            if a.microbatch is not None
            and a.microbatch < microbatches
            and a.kind in (ActionKind.F, ActionKind.B)
        ]
        for row in schedule.rows()
    ]


class _Pipeline:
    """Stages that run what their devices' orders say, as soon as what they need is there."""

    def __init__(
        self,
        stages: Sequence[StageProgram],
        runners: Sequence[TrainingRunner],
        batches: Sequence[Mapping[str, Tensor]],
    ) -> None:
        self.stages = stages
        self.runners = runners
        self.batches = batches
        self.values: list[Tensors] = [dict(b) for b in batches]
        self.gradients: list[Tensors] = [{} for _ in batches]
        self.done: set[tuple[int, ActionKind, int]] = set()

    def run(self, orders: list[list[tuple[int, ActionKind, int]]]) -> None:
        """Run everything.

        Raises:
            PlanError: The orders wait for each other.
        """
        for runner in self.runners:
            runner.begin(len(self.batches))
        queues = [list(order) for order in orders]
        while any(queues):
            ready = [q for q in queues if q and self._ready(*q[0])]
            if not ready:
                raise PlanError("the schedule's orders wait for each other")
            for queue in ready:
                self._do(*queue.pop(0))

    def _ready(self, stage: int, kind: ActionKind, microbatch: int) -> bool:
        if kind is ActionKind.F:
            return stage == 0 or (stage - 1, kind, microbatch) in self.done
        last = stage == len(self.stages) - 1
        behind = last or (stage + 1, kind, microbatch) in self.done
        return behind and (stage, ActionKind.F, microbatch) in self.done

    def _do(self, stage: int, kind: ActionKind, microbatch: int) -> None:
        program, runner = self.stages[stage], self.runners[stage]
        if kind is ActionKind.F:
            values = self.values[microbatch]
            values |= runner.forward(microbatch, values)
        else:
            assert program.training is not None
            back = self.gradients[microbatch]
            if program.loss is not None:
                back[program.loss] = torch.ones((), dtype=program.loss_dtype)
            given = {n: back[n] for n in program.training.gradients_in()}
            add(back, runner.backward(microbatch, given))
        self.done.add((stage, kind, microbatch))
