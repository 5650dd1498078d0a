"""``pipec run``: train or infer with the stages that were emitted."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import torch
from safetensors.torch import save_file

from pipec.cli.namespaces import allow_namespace_option, import_namespaces
from pipec.errors import PipecError
from pipec.plan.model import Plan
from pipec.plan.store import load_plan
from pipec.runtime.builders import data_from_spec, optimizer_from_text
from pipec.runtime.checkpoint import Checkpoints
from pipec.runtime.distributed import DistributedPipeline, process_group
from pipec.runtime.executor import Batch, Settings
from pipec.runtime.local import LocalPipeline
from pipec.runtime.metrics import JsonLines, Observer, Step, TensorBoard
from pipec.runtime.rules import Correction
from pipec.runtime.train import train


@dataclass(frozen=True)
class _Options:
    """The command line of ``pipec run``."""

    directory: Path
    data: str | None
    rounds: int
    optimizer: str
    clip: float | None
    seed: int
    local: bool
    save: Path | None
    metrics: Path | None
    tensorboard: Path | None
    checkpoints: Path | None
    every: int
    compile_graphs: bool
    t1: int
    t2: float
    model: str | None
    trust: bool
    allow_namespace: tuple[str, ...]

    def settings(self) -> Settings:
        compiled: Any = torch.compile if self.compile_graphs else None
        return Settings(
            optimizer_from_text(self.optimizer),
            clip=self.clip,
            seed=self.seed,
            correction=Correction(self.t1, self.t2),
            compiled=compiled,
        )

    def observers(self) -> list[Observer]:
        found: list[Observer] = [_print]
        if self.metrics:
            found.append(JsonLines(self.metrics))
        if self.tensorboard:
            found.append(TensorBoard(self.tensorboard))
        return found


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--data", help="path/file.py:function, microbatch number to inputs by name.")
@click.option("--rounds", default=10, show_default=True, help="How often to run the schedule.")
@click.option(
    "--optimizer", default="sgd:lr=0.01", show_default=True, help="name:option=value,... of torch."
)
@click.option("--clip", type=float, help="Largest norm of all gradients together.")
@click.option("--seed", default=0, show_default=True, help="Of dropout.")
@click.option("--local", is_flag=True, help="All devices in this process, taking turns.")
@click.option("--save", type=click.Path(path_type=Path), help="Trained weights (.safetensors).")
@click.option("--metrics", type=click.Path(path_type=Path), help="Append JSON lines to this file.")
@click.option("--tensorboard", type=click.Path(path_type=Path), help="Directory of event files.")
@click.option(
    "--checkpoints", type=click.Path(path_type=Path), help="Save here, and continue from here."
)
@click.option("--every", default=100, show_default=True, help="Rounds between checkpoints.")
@click.option("--compile", "compile_graphs", is_flag=True, help="torch.compile every graph.")
@click.option("--t1", default=0, help="PipeMare: updates over which the rate of stages grows.")
@click.option("--t2", default=0.0, help="PipeMare: decay D of the weight correction, 0.135.")
@click.option("--model", help="Where the model is now, for its example inputs.")
@click.option("--trust", is_flag=True, help="Allow formats that run code on load (.pt2).")
@allow_namespace_option
def command(**given: Any) -> None:
    """Run the schedule of DIRECTORY on its real engine, one process per device.

    Started by torchrun it is one rank; otherwise it starts torchrun itself. Without --data every
    microbatch is the example input that the model was compiled with.
    """
    options = _Options(**given)
    plan = load_plan(options.directory, allowed=import_namespaces(options.allow_namespace))
    if plan.schedule is None:
        raise PipecError("the plan has no schedule", where=options.directory)
    if options.local:
        _finish(options, plan, LocalPipeline(plan, _batch(options, plan), options.settings()))
    elif "RANK" in os.environ:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // plan.schedule.devices))
        with process_group() as rank:
            pipeline = DistributedPipeline(plan, _batch(options, plan), options.settings())
            _finish(options, plan, pipeline, rank)
    else:
        _start_ranks(plan.schedule.devices)


def _finish(
    options: _Options, plan: Plan, pipeline: LocalPipeline | DistributedPipeline, rank: int = 0
) -> None:
    saved = Checkpoints(options.checkpoints, pipeline.executors) if options.checkpoints else None
    observers = options.observers() if rank == 0 else []
    train(pipeline, options.rounds, observers, checkpoints=saved, every=options.every)
    if options.save and plan.trains:
        weights = pipeline.state_dict()
        if weights is not None:
            save_file({n: w.contiguous() for n, w in _untied(plan, weights)}, options.save)
            click.echo(f"wrote {options.save}")


def _untied(plan: Plan, weights: dict[str, torch.Tensor]) -> list[tuple[str, torch.Tensor]]:
    """Each tensor once: the other names of shared weights are left out."""
    aliases = {a for names in plan.graph.tied.values() for a in names}
    return [(n, w) for n, w in weights.items() if n not in aliases]


def _batch(options: _Options, plan: Plan) -> Batch:
    if options.data:
        return data_from_spec(options.data)
    from pipec.frontends.reload import reload

    inputs = reload(plan.graph.source, spec=options.model, trust=options.trust).example_inputs
    return lambda _: inputs


def _print(step: Step) -> None:
    click.echo(str(step))


def _start_ranks(devices: int) -> None:
    """Become torchrun: this command again, once per device."""
    args = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    args += ["--nproc-per-node", str(devices), "--no-python", sys.argv[0], *sys.argv[1:]]
    sys.stdout.flush()
    execute: Callable[[str, list[str]], None] = os.execv
    execute(sys.executable, args)
