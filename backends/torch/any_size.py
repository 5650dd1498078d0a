"""Inference on microbatches of any size of the axes that a plan's stages leave open."""

import torch

from pipec.compiler.sizes import resize_plan
from pipec.graph.axes import Axes
from pipec.graph.ir import InputKind, tensor
from pipec.runtime.executor import Batch
from pipec.runtime.program import Program
from pipec.runtime.result import Result
from pipec.runtime.runner import Runner
from pipec.runtime.shares import Shares

Shape = tuple[tuple[int, ...], ...]
"""Shapes of all inputs, in the order of the graph."""


class AnySize:
    """Runs rounds of a pipeline; its stages are made anew for every new shape of the inputs."""

    def __init__(self, pipeline: Runner, axes: Axes, batch: Batch) -> None:
        self._pipeline, self._axes, self._batch = pipeline, axes, batch
        self.program = first = pipeline.program
        graph = first.plan.graph
        inputs = graph.inputs_of(InputKind.INPUT)
        self._planned = {i.name: tuple(tensor(graph.node(i.node)).shape) for i in inputs}
        self._cache: dict[Shape, tuple[int, Program]] = {tuple(self._planned.values()): (0, first)}

    def round(self) -> Result:
        """Run the schedule once.

        Raises:
            GraphError: A stage does not take the sizes of a microbatch.
        """
        schedule = self._pipeline.program.schedule
        begin = self._pipeline.executors[0].microbatch
        numbers = []
        for k in range(schedule.microbatches):
            number, self.program = self._make(begin + k)
            numbers.append(number)
        return self._pipeline.round(Shares(shapes=numbers))

    def _make(self, microbatch: int) -> tuple[int, Program]:
        sizes = self._axes.sizes_of(self._batch(microbatch))
        shapes = self._axes.shapes(self._planned, sizes)
        key = tuple(map(tuple, shapes.values()))
        if key not in self._cache:
            first = self._pipeline.program
            plan = resize_plan(first.plan, self._axes, shapes)
            program = Program.of(plan, first.schedule)
            numbers = {e.add_shape(program) for e in self._pipeline.executors}
            self._cache[key] = numbers.pop(), program
        return self._cache[key]

    def outputs(self, found: dict[str, torch.Tensor]) -> dict[str, torch.Tensor] | None:
        """The outputs of all ranks, on the first one."""
        return self._pipeline.outputs(found)
