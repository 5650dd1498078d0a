"""Emitted training stages run as a pipeline, in the order of the plan's schedule.

```text
stage 0:  F0  F1  B0  F2  B1  B2      each device's order, its first microbatches;
stage 1:      F0  B0  F1  B1  F2  B2  an action runs once what it needs is there
```
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from pipec.backends.fpga.training.run import TrainedRunner
from pipec.compiler.verify_training import add
from pipec.errors import PlanError
from pipec.runtime.program import Program
from pipec.schedule.action import ActionKind
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
        self._orders = _orders(program.schedule, microbatches)
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
            PlanError: Another number of microbatches, or orders that wait for each other.
        """
        if len(batches) != self._microbatches:
            raise PlanError(
                "another number of microbatches than an update has",
                got=len(batches),
                want=self._microbatches,
            )
        values: list[Tensors] = [dict(b) for b in batches]
        gradients: list[Tensors] = [{} for _ in batches]
        queues, done = [list(order) for order in self._orders], set[Work]()
        while any(queues):
            ready = [q for q in queues if q and self._ready(q[0], done)]
            if not ready:
                raise PlanError("the schedule's orders wait for each other")
            for queue in ready:
                work = queue.pop(0)
                self._do(work, values[work[2]], gradients[work[2]])
                done.add(work)
        self._first += len(batches)
        return values

    def update(self) -> Tensors:
        """Every stage's update; the new parameters by name."""
        found: Tensors = {}
        for runner in self._runners:
            found |= runner.update()
        return found

    def _ready(self, work: Work, done: set[Work]) -> bool:
        stage, kind, microbatch = work
        if kind is ActionKind.F:
            return stage == 0 or (stage - 1, kind, microbatch) in done
        last = stage == len(self._runners) - 1
        behind = last or (stage + 1, kind, microbatch) in done
        return behind and (stage, ActionKind.F, microbatch) in done

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


def _orders(schedule: Schedule, microbatches: int) -> list[list[Work]]:
    """The compute of every device, of the first microbatches."""
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
