"""The options of `pipec run` for every target, and the engine of stages that run in a chain."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click
import torch
from torch import Tensor

from pipec.compiler.declared import Options
from pipec.errors import BackendError, PipecError
from pipec.escape import sanitize
from pipec.files import check_output
from pipec.graph.axes import Axes
from pipec.graph.ir import InputKind, OutputKind
from pipec.graph.lower import lower
from pipec.plan.model import Plan
from pipec.runtime.executor import Batch
from pipec.runtime.metrics import JsonLines, Observer, Steady, Step
from pipec.runtime.program import Program
from pipec.runtime.result import Result
from pipec.runtime.stage import check_input
from pipec.runtime.tensors import TensorType
from pipec.runtime.train import Rounds, check_tensors, infer, save_tensors
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
        fed = {i.name: inputs[i.name] for i in low.inputs_of(InputKind.INPUT)}
        with user_code(f"stage {stage.index} failed", error=BackendError):
            results = {**arrived, **run({**fed, **arrived})}
        wanted = [o.name for o in low.outputs]
        if lacking := [name for name in wanted if not isinstance(results.get(name), Tensor)]:
            raise BackendError(
                "a stage does not yield what it should",
                where=f"stage {stage.index}",
                got=", ".join(results) or "nothing",
                want=f"tensors: {', '.join(lacking)}",
            )
        for t in low.sends:
            boxes[t.channel] = results[t.value]
        for o in low.outputs:
            passed_on = o.kind is OutputKind.VALUE and o.name in arrived
            if not passed_on:
                yield o.name, o.kind, stage.index, results[o.name]


@dataclass(frozen=True)
class Job:
    """The options of `pipec run`.

    Attributes:
        directory: The plan.
        options: What the target's own options are, of its `run_options`.
        batch: Reads the model, or the user's data, and gives the inputs of microbatches.
        data: Where these come from, as the user wrote it.
        rounds: Number of runs of the schedule.
        outputs: File for what an inference yields.
        metrics: File to append JSON lines to.
        as_json: Whether to print JSON lines.
        quiet: Whether to print warnings alone.
    """

    directory: Path
    options: Options
    batch: Callable[[], Batch]
    data: str | None = None
    rounds: int = 10
    outputs: Path | None = None
    metrics: Path | None = None
    as_json: bool = False
    quiet: bool = False

    def check(self, plan: Plan) -> None:
        """Refuse files that this plan cannot fill, before anything runs.

        Raises:
            PipecError: There is no schedule, or a path cannot be written.
        """
        if plan.schedule is None:
            raise PipecError("the plan has no schedule", where=self.directory)
        if self.outputs is not None and plan.trains:
            raise PipecError(
                "--outputs is not for a training plan",
                where=self.directory,
                got=self.outputs,
                hint="--save keeps trained weights; --inference compiles the forward pass alone",
            )
        check_tensors(self.outputs)
        check_output(self.metrics)
        if self.metrics and self.metrics.is_file() and not _is_json_lines(self.metrics):
            raise PipecError(
                "the file holds something else than JSON lines",
                got=self.metrics,
                hint="name another one, lines are appended to it",
            )

    def observers(self) -> list[Observer]:
        """The observers of every round."""
        found: list[Observer] = [] if self.quiet else [self._print]
        if self.metrics:
            found.append(Steady(JsonLines(self.metrics), "--metrics", self.tell))
        return found

    def infer(self, pipeline: Rounds, observers: Sequence[Observer]) -> None:
        """Run all rounds forward, and write what came of it."""
        outputs = infer(pipeline, self.rounds, observers)
        if outputs is not None and self.outputs is not None:
            save_tensors(outputs, self.outputs)
            self.report_file(self.outputs, outputs)

    def report_file(self, path: Path, tensors: dict[str, torch.Tensor]) -> None:
        """Report a file of tensors."""
        if self.quiet:
            return
        if self.as_json:
            types = {n: [str(t.dtype).removeprefix("torch."), *t.shape] for n, t in tensors.items()}
            click.echo(json.dumps({"wrote": str(path), "tensors": types}))
        else:
            click.echo(f"wrote {path}")

    def tell(self, line: str) -> None:
        """Print a warning about the run, between the lines about its rounds."""
        click.echo(json.dumps({"warning": line}) if self.as_json else f"warning: {sanitize(line)}")

    def _print(self, step: Step) -> None:
        click.echo(step.to_json() if self.as_json else str(step))


def _is_json_lines(path: Path) -> bool:
    """Whether a file is empty, or its first byte opens an object."""
    with path.open("rb") as file:
        return file.read(1) in (b"", b"{")


class Chain:
    """Emitted stages as a pipeline that infers: one microbatch after the other.

    Raises:
        BackendError: The model updates buffers, which the stages of a chain do not keep.
    """

    def __init__(
        self, plan: Plan, stages: Sequence[StageFunction], batch: Batch, axes: Axes
    ) -> None:
        kept = plan.graph.outputs_of(OutputKind.BUFFER_UPDATE)
        if kept:
            raise BackendError(
                f"the stages of the target {plan.target} do not keep what they update",
                got=", ".join(o.name for o in kept[:5]),
            )
        self.program = Program.of(plan)
        self._stages, self._batch, self._first = stages, batch, 0
        self._axes, given = axes, plan.graph.tensors_of(InputKind.INPUT)
        self._types = {n: TensorType.of(t) for n, t in given.items()}

    def round(self) -> Result:
        """Run the schedule's microbatches once."""
        result, count = Result(), self.program.schedule.microbatches
        for k in range(count):
            inputs = self._batch(self._first + k)
            planned = {name: wanted.shape for name, wanted in self._types.items()}
            shapes = self._axes.shapes(planned, self._axes.sizes_of(inputs))
            for name, wanted in self._types.items():
                resized = replace(wanted, shape=tuple(shapes[name]))
                check_input(name, resized, inputs, self._first + k)
            begin = time.perf_counter()
            for name, kind, _, value in run_chain(self.program.plan, self._stages, inputs):
                if kind is OutputKind.OUTPUT:
                    result.outputs[k, name] = value
            result.busy += time.perf_counter() - begin
        self._first += count
        return result

    def outputs(self, found: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """What was found, all of it being here."""
        return found
