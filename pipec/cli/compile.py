"""``pipec compile``: a model in, balanced and checked stage artifacts out."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from pipec.api.request import Request
from pipec.cli.console import output, progress, progress_options
from pipec.cli.explore import run_watched
from pipec.cli.options import (
    asynchronous_option,
    cluster_of,
    complete_passes,
    complete_schedules,
    costs_option,
    devices_options,
    load_options,
    model_options,
    target_option,
)
from pipec.cli.targets import TargetCommand, find_target, own_settings
from pipec.cluster.cluster import Cluster, parse_cluster
from pipec.compiler.backend import Backend, check_devices, load_backend
from pipec.compiler.capabilities import Remarks
from pipec.compiler.driver import emit
from pipec.compiler.output import check_target
from pipec.compiler.pass_base import Pass
from pipec.frontends.load import load
from pipec.graph.axes import Axes
from pipec.graph.ir import OutputKind
from pipec.plan.model import Plan
from pipec.plan.text import plan_to_python
from pipec.report.plan import print_plan
from pipec.report.plan_data import plan_data


@click.command(cls=TargetCommand, target=find_target, declared=lambda b: b.options)
@click.argument("model")
@target_option
@devices_options
@click.option(
    "--stages", type=click.IntRange(1), help="Number of stages; as many as devices by default."
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Directory to write.")
@click.option("--force", is_flag=True, help="Replace the output directory if pipec wrote it.")
@costs_option
@click.option(
    "--schedule",
    default="fastest",
    shell_complete=complete_schedules,
    show_default=True,
    help="A schedule; fastest: of those with a flush, one stage per device; auto: what `pipec "
    "explore` finds, over stages, replicas, microbatches, recompute and offload too.",
)
@click.option(
    "--microbatches", type=click.IntRange(1), help="Microbatches of one step; 8, with auto any."
)
@click.option(
    "--recompute",
    multiple=True,
    metavar="PATTERN",
    help="Compute again in the backward what these modules save: model.layers.*.mlp.",
)
@click.option(
    "--offload",
    multiple=True,
    metavar="PATTERN",
    help="Let what these modules save wait in host memory.",
)
@click.option(
    "--offload-optimizer",
    is_flag=True,
    help="Let the optimizer's state wait in host memory between steps.",
)
@click.option("--batch", type=click.IntRange(1), help="With auto: samples of one step.")
@asynchronous_option
@click.option("--no-cache", is_flag=True, help="With auto: explore anew even if nothing changed.")
@click.option(
    "--passes",
    shell_complete=complete_passes,
    help="Pass pipeline instead of the default; see `pipec passes`.",
)
@click.option("--print-between-passes", is_flag=True, help="Print the graph after every pass.")
@click.option("--time-passes", is_flag=True, help="Print the seconds of every pass.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan's summary as JSON.")
@progress_options
@model_options
@click.pass_context
def command(ctx: click.Context, /, **given: Any) -> None:
    """Compile MODEL: a .onnx, a .pt2, path/file.py:factory or package.module:factory.

    Without -o the plan is made, checked and shown, and nothing is written; without devices it is
    for two of the target's kind.
    """
    console, out = progress(given["verbosity"]), given["output"]
    if given["force"] and out is None:
        raise click.UsageError("--force goes with -o")
    settings = own_settings(ctx, given)
    backend = load_backend(given["target"])
    request = Request(
        backend, _cluster(backend, given, console), settings=settings,
        cached=not given["no_cache"], asynchronous=given["asynchronous"],
        **{n: given[n] for n in ("schedule", "stages", "microbatches", "batch", "passes", "costs",
                                 "recompute", "offload", "offload_optimizer")},
    )  # fmt: skip
    plan = _compile(request, given, console)
    if out is not None:
        with console.status(f"writing {out}"):
            emit(plan, out, force=given["force"])
    if given["as_json"]:
        click.echo(json.dumps(plan_data(plan), indent=2))
    else:
        print_plan(plan, output())
    if out is not None:
        remarks = backend.remarks(plan, out) if isinstance(backend, Remarks) else ()
        for remark in (*Axes.read(out, plan.graph).lines(), *remarks):
            console.print(remark, highlight=False, soft_wrap=True)
        console.print(f"wrote {out}; check it: pipec verify {out}", soft_wrap=True)


def _compile(request: Request, given: dict[str, Any], console: Console) -> Plan:
    request.pipeline()  # a mistake in it is reported before the model is read
    if given["output"] is not None:
        check_target(given["output"], force=given["force"])
    options = replace(load_options(given), **request.backend.reads)
    with console.status(f"reading {given['model']}"):
        loaded = load(given["model"], options)
    trains = bool(loaded.graph.outputs_of(OutputKind.LOSS))
    if trains and given["training"] is None and not given["loss"]:
        console.print("for training, as the factory returns a loss; --inference: forward alone")
    if trains and request.explores:
        return request.plan(
            loaded, given["model"], options, search=lambda search: run_watched(search, console)[1]
        )
    with console.status("compiling") as status:

        def observe(done: Pass, before: Plan, plan: Plan, seconds: float) -> None:
            del before
            status.update(f"compiling: {done.name} done")
            if given["time_passes"]:
                console.print(f"{seconds:8.3f} s  {done}")
            if given["print_between_passes"]:
                console.print(f"after {done}")
                console.print(plan_to_python(plan), highlight=False, soft_wrap=True, markup=False)

        return request.plan(loaded, given["model"], options, observe=observe)


def _cluster(backend: Backend, given: dict[str, Any], console: Console) -> Cluster:
    """The devices that are named, or those that the backend assumes."""
    if given["devices"] is None and given["cluster"] is None:
        count, _, kind = backend.devices.partition("x")
        assumed = f"{given['stages'] or count}x{kind}"
        console.print(f"for {assumed}, as neither --devices nor --cluster is given")
        return parse_cluster(assumed)
    cluster = cluster_of(given["devices"], given["cluster"])
    check_devices(backend, cluster)
    return cluster
