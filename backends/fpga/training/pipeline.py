"""Emitted training stages run as a pipeline, in the order of the plan's schedule.

```text
stage 0:  F0  F1  B0  F2  B1  B2      each device's order, its first microbatches; an action runs
stage 1:      F0  B0  F1  B1  F2  B2  behind what it waits for (`pipec.schedule.dependencies`)
```
"""

from collections.abc import Mapping, Sequence
from graphlib import TopologicalSorter

import torch
from torch import Tensor

from pipec.backends.fpga.training.run import TrainedRunner
from pipec.compiler.verify_training import add
from pipec.errors import PlanError
from pipec.runtime.program import Program
from pipec.schedule.action import ActionKind
from pipec.schedule.dependencies import dependencies
from pipec.schedule.lanes import lanes, previous_in_lane
from pipec.schedule.schedule import Schedule

Tensors = dict[str, Tensor]
Work = tuple[int, ActionKind, int]
"""Stage, F or B, microbatch."""


class EmittedPipeline:
    """The stages of a plan, in C simulation.

    Args:
        program: Of a plan with a training schedule.
        runners: The stages as they were loaded; they start anew.
        microbatches: Of an update; at most the schedule's.
        keep_saved: Whether to keep what F saved.

    Attributes:
        saved: What F of a stage saved in a microbatch, by both, where that is kept.
    """

    def __init__(
        self,
        program: Program,
        runners: Sequence[TrainedRunner],
        microbatches: int,
        *,
        keep_saved: bool = False,
    ) -> None:
        self._program = program
        self._runners = runners
        self._order = _order(program.schedule, microbatches)
        self._microbatches = microbatches
        self._first = 0
        self._keep_saved = keep_saved
        self.saved: dict[tuple[int, int], Tensors] = {}
        for runner in runners:
            runner.begin(microbatches)

    def run(self, batches: Sequence[Mapping[str, Tensor]]) -> list[Tensors]:
        """F and B of the microbatches of one update; the gradients are added up in the stages.

        Args:
            batches: The model's inputs and targets by name, one set per microbatch.

        Returns:
            Per microbatch the inputs and all that the stages yielded, by name.

        Raises:
            PlanError: Another number of microbatches.
        """
        if len(batches) != self._microbatches:
            raise PlanError(
                "another number of microbatches than an update has",
                got=len(batches),
                want=self._microbatches,
            )
        values: list[Tensors] = [dict(b) for b in batches]
        gradients: list[Tensors] = [{} for _ in batches]
        for work in self._order:
            self._do(work, values[work[2]], gradients[work[2]])
        self._first += len(batches)
        return values

    def update(self) -> Tensors:
        """Every stage's update; the new parameters by name."""
        found: Tensors = {}
        for runner in self._runners:
            found |= runner.update()
        return found

    def _do(self, work: Work, values: Tensors, gradients: Tensors) -> None:
        stage, kind, microbatch = work
        program, runner = self._program.stages[stage], self._runners[stage]
        number = self._first + microbatch
        if kind is ActionKind.F:
            values |= runner.forward(number, values)
            if self._keep_saved:
                self.saved[stage, microbatch] = runner.saved(number)
            return
        assert program.training is not None
        if program.loss is not None:
            gradients[program.loss] = torch.ones((), dtype=program.loss_dtype)
        given = {n: gradients[n] for n in program.training.gradients_in()}
        add(gradients, runner.backward(number, given))


def _order(schedule: Schedule, microbatches: int) -> list[Work]:
    """F and B of the first microbatches, each behind what it waits for."""
    waits, before = dependencies(schedule), previous_in_lane(lanes(schedule))
    count = len(schedule)
    behind = {k: [w for w in (*waits.of(k), int(before[k])) if w < count] for k in range(count)}
    actions = (schedule[k] for k in TopologicalSorter(behind).static_order())
    return [
        (a.stage, a.kind, a.microbatch)
        for a in actions
        if a.kind in (ActionKind.F, ActionKind.B)
        and a.microbatch is not None
        and a.microbatch < microbatches
    ]
