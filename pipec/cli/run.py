"""``pipec run``: train or infer with the stages that were emitted."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from torch import Tensor

from pipec.cli.command import refuse
from pipec.cli.options import allow_namespace_option, import_namespaces
from pipec.cli.targets import TargetCommand, own_settings, target_of_plan
from pipec.compiler.backend import load_backend
from pipec.compiler.job import Job
from pipec.errors import PlanError
from pipec.escape import sanitize
from pipec.frontends.load import bring_modules, check_runnable, reload
from pipec.graph.eager import keys_of_calls
from pipec.graph.ir import InputKind
from pipec.plan.model import Plan
from pipec.plan.store import load_plan
from pipec.runtime.builders import data_from_spec
from pipec.runtime.executor import Batch


@click.command(cls=TargetCommand, target=target_of_plan, declared=lambda b: b.run_options)
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
    "--outputs",
    type=click.Path(path_type=Path),
    help="Inference: write what it yields, to .safetensors, .npz, or .pth for torch.load.",
)
@click.option("--metrics", type=click.Path(path_type=Path), help="Append JSON lines to this file.")
@click.option("--model", help="Where the model is now, for its example inputs.")
@click.option("--trust", is_flag=True, help="Let code run that the plan names or holds.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines.")
@click.option("-q", "--quiet", is_flag=True, help="Print warnings and errors only.")
@allow_namespace_option
@click.pass_context
def command(ctx: click.Context, /, **given: Any) -> None:
    """Run the schedule of DIRECTORY with what was emitted, through the plan's own target.

    The target torch starts one process per device; started by torchrun it is one rank. Others run
    their stages in this process, one after the other: onnxruntime, or a C simulation. Without
    --data every microbatch is the example input that the model was compiled with. A plan without a
    loss infers: --outputs keeps what it yields, [microbatch, ...] per output.
    """
    directory, trust = given["directory"], given["trust"]
    allowed = import_namespaces(given["allow_namespace"])
    plan = load_plan(directory, allowed=allowed)
    backend, calls = load_backend(plan.target), bool(keys_of_calls(plan.graph))
    idle = given["data"] and not calls
    refuse(["model"], "not beside --data: nothing of the model is read", unless=not idle)
    job = Job(
        directory,
        backend.run_options(**own_settings(ctx, given)),
        lambda: _batch(plan, given),
        **{n: given[n] for n in ("data", "rounds", "outputs", "metrics", "as_json", "quiet")},
    )
    job.check(plan)
    if backend.runs_emitted_code or calls:
        check_runnable(directory, plan.graph.source, plan.target, given["model"], trust=trust)
    if calls:
        bring_modules(plan, given["model"], trust=trust)
    backend.run(plan, job)


def _batch(plan: Plan, given: dict[str, Any]) -> Batch:
    if given["data"]:
        return _check_batch(plan, data_from_spec(given["data"]), given["data"])
    source, model, trust = plan.graph.source, given["model"], given["trust"]
    check_runnable(given["directory"], source, plan.target, model, trust=trust)
    inputs = reload(source, spec=model, trust=trust).example_inputs
    return lambda _: inputs


def _check_batch(plan: Plan, batch: Batch, spec: str) -> Batch:
    """The same batches; what is no input of the model is reported, or in training refused."""
    known = [i.name for i in plan.graph.inputs_of(InputKind.INPUT)]

    def check(number: int) -> Mapping[str, Tensor]:
        """A microbatch; a target in one of inference is usual."""
        given = batch(number)
        other = ", ".join(str(name) for name in given if name not in known)
        if other and plan.trains:
            what, where = "the data have what is no input of the model", f"{spec}({number})"
            raise PlanError(what, where=where, got=other, want=", ".join(known))
        if other and number == 0 and os.environ.get("RANK", "0") == "0":
            click.echo(f"note: {spec} gives {sanitize(other)} too, no input of the model", err=True)
        return given

    return check
