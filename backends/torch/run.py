"""Running a plan with torch: a process per device, or all devices in this one taking turns."""

import os
import tempfile
import threading
from contextlib import ExitStack
from dataclasses import dataclass, fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
import torch

from pipec.backends.torch.open_axes import read_axes
from pipec.compiler.declared import Options, option
from pipec.compiler.endless import endless
from pipec.compiler.job import Job
from pipec.compiler.sizes import resize_plan
from pipec.errors import PipecError
from pipec.files import check_output
from pipec.graph.axes import Axes
from pipec.graph.eager import eager_parts
from pipec.graph.ir import InputKind
from pipec.plan.model import Plan
from pipec.runtime.agreement import agree
from pipec.runtime.builders import optimizer_from_text, scheduler_from_text
from pipec.runtime.checkpoint import Checkpoints
from pipec.runtime.device import local_device
from pipec.runtime.distributed import pipeline_of, process_group
from pipec.runtime.executor import Batch, OnNan, Settings
from pipec.runtime.metrics import Observer, Steady, TensorBoard
from pipec.runtime.program import Program
from pipec.runtime.ranks import start_ranks
from pipec.runtime.recording import collect_rows, record, write_trace
from pipec.runtime.result import Result
from pipec.runtime.rules import Correction
from pipec.runtime.runner import Runner
from pipec.runtime.shares import Shares
from pipec.runtime.train import check_tensors, save_tensors, train
from pipec.schedule.schedule import Schedule

_NO_FLUSH = "--schedule pipedream, for example, has none"
_TRAINING = ("optimizer", "lr_schedule", "clip", "on_nan", "spike", "loss_scale", "save",
             "checkpoints")  # fmt: skip


Shape = tuple[tuple[int, ...], ...]
"""Shapes of all inputs, in the order of the graph."""


class AnySize:
    """Runs rounds of a pipeline; its stages are made anew for every new shape of the inputs."""

    def __init__(self, pipeline: Runner, axes: Axes, batch: Batch) -> None:
        self._pipeline, self._axes, self._batch = pipeline, axes, batch
        self.program = first = pipeline.program
        inputs = first.plan.graph.tensors_of(InputKind.INPUT)
        self._planned = {n: tuple(t.shape) for n, t in inputs.items()}
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


@dataclass(frozen=True)
class RunOptions(Options):
    """Options of `pipec run` for a plan for torch."""

    optimizer: str = option("sgd:lr=0.01", "name:option=value,... of torch.")
    lr_schedule: str | None = option(None, "name:option=value,... of torch.optim.lr_scheduler.")
    clip: float | None = option(None, "Largest norm of all gradients together.")
    on_nan: OnNan = option(
        "stop", "If gradients are not finite: no update and an error, no update, or nothing."
    )
    spike: float | None = option(
        None, "Judge a gradient norm over so many times the median of the last 64 as not finite."
    )
    loss_scale: float | None = option(
        None, "For float16: first scale on the loss, such as 65536; it adapts as torch's does."
    )
    drain: bool = option(
        False, "Without a flush: finish every round's microbatches before the next round."
    )
    seed: int = option(0, "Of dropout.")
    local: bool = option(False, "All devices in this process, taking turns.")
    device: str = option("auto", "cpu, cuda, or auto.")
    timeout: float = option(
        300.0,
        "Seconds in which a rank that does not answer is named, and the run ends.",
        least=0.001,
    )
    save: Path | None = option(
        None, "Write trained weights: .safetensors, .npz, or .pth for torch.load."
    )
    trace: Path | None = option(
        None, "Write when every action of the last round ran (Perfetto, `pipec report --trace`)."
    )
    tensorboard: Path | None = option(None, "Directory of event files.")
    checkpoints: Path | None = option(None, "Save here, and continue from here.")
    every: int = option(100, "Rounds between checkpoints.", least=1)
    compile: str | None = option(
        None,
        "torch.compile every graph; with this backend, inductor if none is named.",
        bare="inductor",
    )
    t1: int = option(0, "PipeMare: updates over which the rate of stages grows.")
    t2: float = option(0.0, "PipeMare: decay D of the weight correction, 0.135.")

    def settings(self) -> Settings:
        """The settings of the runtime."""
        return Settings(
            optimizer_from_text(self.optimizer),
            scheduler_from_text(self.lr_schedule) if self.lr_schedule else None,
            clip=self.clip,
            on_nan=self.on_nan,
            spike=self.spike,
            loss_scale=self.loss_scale,
            seed=self.seed,
            correction=Correction(self.t1, self.t2),
            compiled=_compiler(self.compile) if self.compile else None,
        )

    def check(self, plan: Plan, directory: Path) -> None:
        """Refuse files that this plan cannot fill, and options without effect.

        Raises:
            PipecError: Naming the option.
        """
        schedule = plan.order
        if (self.t1 or self.t2) and schedule.rule.flush:
            raise PipecError(
                "--t1 and --t2 correct for delay, and a schedule with a flush has none",
                where=directory,
                got=f"schedule {schedule.name}",
                want="pipemare",
            )
        if self.drain and (schedule.rule.flush or not schedule.training):
            got = f"schedule {schedule.name}"
            raise PipecError(
                "--drain is for schedules without a flush", where=directory, got=got, hint=_NO_FLUSH
            )
        for f in fields(self):
            idle = f.name in _TRAINING and not schedule.training
            if idle and getattr(self, f.name) != f.default:
                raise PipecError(
                    f"--{f.name.replace('_', '-')} is not for an inference plan",
                    where=directory,
                    got=getattr(self, f.name),
                    hint="compile the model with a loss: --training",
                )
        if parts := eager_parts(plan.graph):
            self._check_eager(schedule, next(iter(parts.values())))
        if self.every != RunOptions.every and self.checkpoints is None:
            raise PipecError(
                "--every is for --checkpoints",
                got=self.every,
                hint="name a --checkpoints directory",
            )
        if self.timeout > threading.TIMEOUT_MAX:
            want = f"at most {threading.TIMEOUT_MAX:g} seconds"
            raise PipecError("no system waits so long", got=f"--timeout {self.timeout}", want=want)
        check_tensors(self.save)
        check_output(self.trace, ".json")
        for path in (self.checkpoints, self.tensorboard):
            if path is not None and path.exists() and not path.is_dir():
                hint = "name a directory, it is made if it is not there"
                raise PipecError("this is no directory", got=path, hint=hint)

    def _check_eager(self, schedule: Schedule, part: str) -> None:
        """Refuse what a part that runs eagerly cannot have."""
        if self.compile:
            what = "--compile does not reach into a part that runs eagerly"
            raise PipecError(what, where=part, hint="torch.compile it in the model")
        if self.checkpoints and not self.drain and not schedule.rule.flush:
            raise PipecError(
                "what autograd keeps of microbatches under way cannot be saved",
                where=f"{part}, which runs eagerly",
                hint="--drain",
            )


def run(plan: Plan, job: Job, options: RunOptions) -> None:
    """Run the schedule; started by torchrun this is one rank, otherwise it starts them itself.

    Raises:
        PipecError: An option has no effect on this plan, or a rank failed.
    """
    options.check(plan, job.directory)
    if not options.local and "RANK" not in os.environ:
        start_ranks(plan.order.devices)
        return
    patience, settings = timedelta(seconds=options.timeout), options.settings()
    with ExitStack() as stack:
        if not options.local:
            torch.set_num_threads(max(1, (os.cpu_count() or 1) // plan.order.devices))
            stack.enter_context(process_group(patience, options.device))
            common = {f.name.replace("_", "-"): getattr(options, f.name) for f in fields(options)}
            common |= {"data": job.data, "rounds": job.rounds}  # the pipeline compares the others
            agree({f"--{name}": str(value) for name, value in common.items()})
        order = plan.schedule if options.drain else endless(plan)
        device = local_device(options.device) if options.local else options.device
        pipeline = pipeline_of(
            plan, job.batch(), settings, schedule=order, timeout=patience, device=device
        )
        _finish(plan, job, options, pipeline)


def _finish(plan: Plan, job: Job, options: RunOptions, pipeline: Runner) -> None:
    first = options.local or os.environ["RANK"] == "0"
    observers = job.observers() if first else []
    if options.tensorboard and first:
        board = TensorBoard(options.tensorboard)
        observers.append(Steady(board, "--tensorboard", job.tell))
    if options.trace:
        record(pipeline)
    if plan.trains:
        _train(plan, job, options, pipeline, observers)
    else:
        axes = read_axes(plan, job.directory)
        job.infer(AnySize(pipeline, axes, job.batch()) if axes.open else pipeline, observers)
    rows = collect_rows(pipeline) if options.trace else None
    if rows is not None and not any(map(len, rows.values())):
        job.tell("--trace writes nothing: no round was run")
    elif options.trace and rows is not None:
        write_trace(pipeline.program.schedule, rows, options.trace)
        if not (job.as_json or job.quiet):
            click.echo(f"wrote {options.trace}")


def _train(
    plan: Plan, job: Job, options: RunOptions, pipeline: Runner, observers: list[Observer]
) -> None:
    saved = None
    if options.checkpoints:
        patience = timedelta(seconds=options.timeout)
        saved = Checkpoints(
            options.checkpoints, pipeline.executors, timeout=patience, tell=job.tell
        )
    train(pipeline, job.rounds, observers, checkpoints=saved, every=options.every)
    weights = pipeline.state_dict() if options.save or (saved and saved.failed) else None
    if weights is not None:
        aliases = {a for names in plan.graph.tied.values() for a in names}
        _keep(job, options.save, {n: w for n, w in weights.items() if n not in aliases})


def _keep(job: Job, wanted: Path | None, weights: dict[str, torch.Tensor]) -> None:
    """Write trained weights where they were wanted; where they are safe if that fails.

    Raises:
        PipecError: They are somewhere else, and where.
    """
    failure = PipecError("the last checkpoint could not be written")
    if wanted:
        try:
            save_tensors(weights, wanted)
        except PipecError as error:
            failure = error
        else:
            job.report_file(wanted, weights)
            return
    safe = Path(tempfile.mkdtemp(prefix="pipec-")) / "weights.safetensors"  # holds any numbers
    hint = f"the trained weights are in {safe}"
    try:
        save_tensors(weights, safe)
    except PipecError:
        safe.parent.rmdir()
        hint = f"the trained weights are lost: there is no room in {safe.parent.parent} either"
    raise PipecError(failure.what, where=failure.where, got=failure.got, hint=hint)


def _compiler(backend: str) -> Any:
    known = torch.compiler.list_backends(exclude_tags=None)
    if backend not in known:
        raise PipecError("no such compiler", got=backend, want=", ".join(sorted(known)))
    return lambda graph: torch.compile(graph, backend=backend, dynamic=False)
