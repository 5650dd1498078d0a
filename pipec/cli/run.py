"""``pipec run``: train or infer with the stages that were emitted."""

import json
import os
import tempfile
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
import torch

from pipec.cli.namespaces import allow_namespace_option, import_namespaces
from pipec.cli.ranks import start_ranks
from pipec.errors import PipecError
from pipec.escape import terminal
from pipec.plan.model import Plan
from pipec.plan.store import load_plan
from pipec.plan.trust import check_trusted, code_of
from pipec.runtime.agreement import agree
from pipec.runtime.builders import data_from_spec, optimizer_from_text, scheduler_from_text
from pipec.runtime.checkpoint import Checkpoints
from pipec.runtime.device import local_device
from pipec.runtime.distributed import DistributedPipeline, process_group
from pipec.runtime.executor import Batch, OnNan, Settings
from pipec.runtime.infer import FORMATS, infer, save_tensors
from pipec.runtime.local import LocalPipeline
from pipec.runtime.metrics import JsonLines, Observer, Steady, Step, TensorBoard
from pipec.runtime.recording import collected, record, write_trace
from pipec.runtime.rules import Correction
from pipec.runtime.train import train


@dataclass(frozen=True)
class _Options:
    """The command line of ``pipec run``."""

    directory: Path
    data: str | None
    rounds: int
    optimizer: str
    lr_schedule: str | None
    clip: float | None
    on_nan: OnNan
    seed: int
    local: bool
    device: str
    timeout: float
    save: Path | None
    outputs: Path | None
    metrics: Path | None
    trace: Path | None
    tensorboard: Path | None
    checkpoints: Path | None
    every: int
    compiler: str | None
    t1: int
    t2: float
    model: str | None
    trust: bool
    allow_namespace: tuple[str, ...]
    as_json: bool

    def settings(self) -> Settings:
        """What the runtime is told."""
        return Settings(
            optimizer_from_text(self.optimizer),
            scheduler_from_text(self.lr_schedule) if self.lr_schedule else None,
            clip=self.clip,
            on_nan=self.on_nan,
            seed=self.seed,
            correction=Correction(self.t1, self.t2),
            compiled=_compiler(self.compiler) if self.compiler else None,
        )

    def observers(self) -> list[Observer]:
        """Who is told of every round."""
        found: list[Observer] = [_print_json if self.as_json else _print]
        if self.metrics:
            found.append(Steady(JsonLines(self.metrics), "--metrics", self.tell))
        if self.tensorboard:
            found.append(Steady(TensorBoard(self.tensorboard), "--tensorboard", self.tell))
        return found

    def tell(self, line: str) -> None:
        """Say something about the run, among what is told of its rounds."""
        click.echo(json.dumps({"warning": line}) if self.as_json else f"warning: {terminal(line)}")

    def told(self) -> dict[str, str | None]:
        """Options that all ranks must share, besides what the pipeline itself compares."""
        return {
            "--data": self.data,
            "--rounds": str(self.rounds),
            "--every": str(self.every),
            "--optimizer": self.optimizer,
            "--lr-schedule": str(self.lr_schedule),
            "--checkpoints": str(self.checkpoints),
            "--save": str(self.save),
            "--compile": str(self.compiler),
            "--on-nan": self.on_nan,
        }

    @property
    def patience(self) -> timedelta:
        return timedelta(seconds=self.timeout)


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--data", help="path/file.py:function, microbatch number to inputs by name.")
@click.option(
    "--rounds",
    type=click.IntRange(0),
    default=10,
    show_default=True,
    help="How often to run the schedule.",
)
@click.option(
    "--optimizer", default="sgd:lr=0.01", show_default=True, help="name:option=value,... of torch."
)
@click.option("--lr-schedule", help="name:option=value,... of torch.optim.lr_scheduler.")
@click.option("--clip", type=float, help="Largest norm of all gradients together.")
@click.option(
    "--on-nan",
    type=click.Choice(["stop", "skip", "continue"]),
    default="stop",
    show_default=True,
    help="If gradients are not finite: no update and an error, no update, or nothing.",
)
@click.option("--seed", default=0, show_default=True, help="Of dropout.")
@click.option("--local", is_flag=True, help="All devices in this process, taking turns.")
@click.option("--device", default="auto", show_default=True, help="cpu, cuda, or auto.")
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=300.0,
    show_default=True,
    help="Seconds to wait for a rank.",
)
@click.option(
    "--save",
    type=click.Path(path_type=Path),
    help="Write trained weights: .safetensors, .npz, or .pth for torch.load.",
)
@click.option(
    "--outputs", type=click.Path(path_type=Path), help="Inference: the same kinds of file, by name."
)
@click.option("--metrics", type=click.Path(path_type=Path), help="Append JSON lines to this file.")
@click.option(
    "--trace",
    type=click.Path(path_type=Path),
    help="Write when every action of the last round ran (Perfetto, `pipec report --trace`).",
)
@click.option("--tensorboard", type=click.Path(path_type=Path), help="Directory of event files.")
@click.option(
    "--checkpoints", type=click.Path(path_type=Path), help="Save here, and continue from here."
)
@click.option(
    "--every",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="Rounds between checkpoints.",
)
@click.option(
    "--compile",
    "compiler",
    is_flag=False,
    flag_value="inductor",
    help="torch.compile every graph; with this backend, inductor if none is named.",
)
@click.option("--t1", default=0, help="PipeMare: updates over which the rate of stages grows.")
@click.option("--t2", default=0.0, help="PipeMare: decay D of the weight correction, 0.135.")
@click.option("--model", help="Where the model is now, for its example inputs.")
@click.option("--trust", is_flag=True, help="Let code run that the plan names.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines.")
@allow_namespace_option
def command(**given: Any) -> None:
    """Run the schedule of DIRECTORY on its real engine, one process per device.

    Started by torchrun it is one rank; otherwise it starts torchrun itself. Without --data every
    microbatch is the example input that the model was compiled with. A plan without a loss infers:
    --outputs keeps what it yields, [microbatch, ...] per output.
    """
    options = _Options(**given)
    plan = load_plan(options.directory, allowed=import_namespaces(options.allow_namespace))
    if plan.schedule is None:
        raise PipecError("the plan has no schedule", where=options.directory)
    _check(options, plan)
    if options.local:
        device = local_device(options.device)
        pipeline = LocalPipeline(plan, _batch(options, plan), options.settings(), device=device)
        _finish(options, plan, pipeline)
    elif "RANK" in os.environ:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // plan.schedule.devices))
        with process_group(options.patience, options.device) as rank:
            agree(options.told())
            ranks = DistributedPipeline(
                plan,
                _batch(options, plan),
                options.settings(),
                timeout=options.patience,
                device=options.device,
            )
            _finish(options, plan, ranks, rank)
    else:
        start_ranks(plan.schedule.devices)


def _check(options: _Options, plan: Plan) -> None:
    """Refuse files that this plan cannot fill, and options without effect, before anything runs."""
    assert plan.schedule is not None
    if (options.t1 or options.t2) and plan.schedule.rule.flush:
        raise PipecError(
            "--t1 and --t2 correct for delay, and a schedule with a flush has none",
            where=options.directory,
            got=f"schedule {plan.schedule.name}",
            want="pipemare",
        )
    for name, path, wanted in (
        ("--save", options.save, True),
        ("--checkpoints", options.checkpoints, True),
        ("--outputs", options.outputs, False),
    ):
        if path is not None and plan.schedule.training is not wanted:
            kind = "a training plan" if plan.schedule.training else "an inference plan"
            raise PipecError(f"{name} is not for {kind}", where=options.directory, got=path)
    for path in (options.save, options.outputs, options.metrics, options.trace):
        if path is not None and (path.is_dir() or not path.resolve().parent.is_dir()):
            raise PipecError("no file can be written here", got=path)
    for path in (options.checkpoints, options.tensorboard):
        if path is not None and path.exists() and not path.is_dir():
            raise PipecError("this is no directory", got=path)
    for path in (options.save, options.outputs):
        if path is not None and path.suffix not in FORMATS:
            raise PipecError("no such format", got=path, want=" ".join(FORMATS))


def _finish(
    options: _Options, plan: Plan, pipeline: LocalPipeline | DistributedPipeline, rank: int = 0
) -> None:
    observers = options.observers() if rank == 0 else []
    if options.trace:
        record(pipeline)
    _go(options, plan, pipeline, observers)
    if options.trace:
        rows = collected(pipeline)
        if rows is not None:
            write_trace(pipeline.program.schedule, rows, options.trace)
            if not options.as_json:
                click.echo(f"wrote {options.trace}")


def _go(
    options: _Options,
    plan: Plan,
    pipeline: LocalPipeline | DistributedPipeline,
    observers: list[Observer],
) -> None:
    """Train, or infer, and write what came of it."""
    if not plan.trains:
        outputs = infer(pipeline, options.rounds, observers)
        if outputs is not None and options.outputs is not None:
            save_tensors(outputs, options.outputs)
            _wrote(options, options.outputs, outputs)
        return
    saved = None
    if options.checkpoints:
        place, patience = options.checkpoints, options.patience
        saved = Checkpoints(place, pipeline.executors, timeout=patience, tell=options.tell)
    train(pipeline, options.rounds, observers, checkpoints=saved, every=options.every)
    if options.save or (saved and saved.failed):
        weights = pipeline.state_dict()
        if weights is not None:
            _keep(options, dict(_untied(plan, weights)))


def _keep(options: _Options, weights: dict[str, torch.Tensor]) -> None:
    """Write trained weights where they were wanted; where they are safe if that fails.

    Raises:
        PipecError: They are somewhere else, and where.
    """
    name, failure = "weights.safetensors", PipecError("the last checkpoint could not be written")
    if options.save:
        name = options.save.name
        try:
            save_tensors(weights, options.save)
        except PipecError as error:
            failure = error
        else:
            _wrote(options, options.save, weights)
            return
    safe = Path(tempfile.mkdtemp(prefix="pipec-")) / name
    save_tensors(weights, safe)
    hint = f"the trained weights are in {safe}"
    raise PipecError(failure.what, where=failure.where, got=failure.got, hint=hint)


def _wrote(options: _Options, path: Path, tensors: dict[str, torch.Tensor]) -> None:
    if options.as_json:
        types = {n: [str(t.dtype).removeprefix("torch."), *t.shape] for n, t in tensors.items()}
        click.echo(json.dumps({"wrote": str(path), "tensors": types}))
    else:
        click.echo(f"wrote {path}")


def _untied(plan: Plan, weights: dict[str, torch.Tensor]) -> list[tuple[str, torch.Tensor]]:
    """Each tensor once: the other names of shared weights are left out."""
    aliases = {a for names in plan.graph.tied.values() for a in names}
    return [(n, w) for n, w in weights.items() if n not in aliases]


def _batch(options: _Options, plan: Plan) -> Batch:
    if options.data:
        return data_from_spec(options.data)
    from pipec.frontends.reload import reload

    code = code_of(plan.graph.source, options.model)
    check_trusted(options.directory, code, trust=options.trust)
    inputs = reload(plan.graph.source, spec=options.model, trust=options.trust).example_inputs
    return lambda _: inputs


def _print(step: Step) -> None:
    click.echo(str(step))


def _print_json(step: Step) -> None:
    click.echo(step.to_json())


def _compiler(backend: str) -> Any:
    known = torch.compiler.list_backends(exclude_tags=None)
    if backend not in known:
        raise PipecError("no such compiler", got=backend, want=", ".join(sorted(known)))
    return lambda graph: torch.compile(graph, backend=backend, dynamic=False)
