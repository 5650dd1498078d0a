"""``pipec explore``: what is the fastest way to train this model on this cluster?"""

import dataclasses
import json
from dataclasses import replace
from itertools import starmap
from typing import Any

import click
from rich.console import Console

from pipec.api.request import Request
from pipec.cli.console import output, progress, progress_options
from pipec.cli.options import (
    asynchronous_option,
    cluster_of,
    costs_option,
    devices_options,
    load_options,
    model_options,
    target_option,
)
from pipec.cli.targets import TargetCommand, find_target, own_settings
from pipec.compiler.backend import Backend, check_devices, load_backend
from pipec.compiler.declared import Options
from pipec.errors import NoLossError, PipecError
from pipec.explore.beside import judge
from pipec.explore.explore import Exploration
from pipec.explore.search import Search
from pipec.frontends.base import Loaded, LoadOptions
from pipec.frontends.load import load
from pipec.options import format_options, parse_list
from pipec.plan.model import Plan
from pipec.report.found import print_exploration


def run_watched(search: Search, console: Console) -> tuple[Exploration, Plan]:
    """Run a search; how far it is is shown on ``console``."""
    with console.status("predicting") as status:
        return search.run(
            lambda done, total: status.update(
                f"predicting: {done} of {total}" if done < total else "planning"
            )
        )


def _list_options(backend: Backend) -> type[Options]:
    """Those of a target's options that change what is predicted."""
    chosen = [f for f in dataclasses.fields(backend.options) if f.metadata["explored"]]
    return dataclasses.make_dataclass(
        "Explored", [(f.name, f.type, f) for f in chosen], bases=(Options,), frozen=True
    )


@click.command(cls=TargetCommand, target=find_target, declared=_list_options)
@click.argument("model")
@devices_options
@target_option
@click.option(
    "--batch", type=click.IntRange(1), help="Samples of one step; 8 traced batches per device."
)
@click.option("--stages", type=click.IntRange(1), help="Number of stages; any if not given.")
@click.option(
    "--microbatches", type=click.IntRange(1), help="Microbatches of one step; any if not given."
)
@click.option("--schedules", help="Comma-separated names instead of those of the devices' family.")
@asynchronous_option
@costs_option
@click.option(
    "--top",
    type=click.IntRange(1),
    default=12,
    show_default=True,
    help="How many candidates to show.",
)
@click.option(
    "--beside",
    metavar="LAYOUT",
    help="Judge another tool's layout too: Megatron's E|tt|ttL, layers per stage 5,6,7, or the "
    "path of a schedule in torch's CSV.",
)
@click.option("--no-cache", is_flag=True, help="Predict anew even if nothing changed.")
@click.option("--json", "as_json", is_flag=True, help="Print all candidates as JSON.")
@progress_options
@model_options
@click.pass_context
def command(ctx: click.Context, /, **given: Any) -> None:
    """Predict every schedule, depth, replication and microbatch size for MODEL on a cluster.

    A MODEL with a loss is trained; one without is run forward, for the most samples per second. The
    fastest candidate that fits the memory is chosen; plain data parallelism, GPipe and 1F1B are
    among those of training, so it is never slower than these.
    `pipec compile --schedule auto` writes the plan that is chosen here.
    """
    console = progress(given["verbosity"])
    search = _search(given, own_settings(ctx, given), console)
    exploration, plan = run_watched(search, console)
    layout = given["beside"]
    beside = judge(layout, search.maker, exploration, plan) if layout else None
    if given["as_json"]:
        tried = exploration.to_json()
        result = {"candidates": tried, "beside": beside.to_json()} if beside else tried
        click.echo(json.dumps(result, indent=2))
        return
    print_exploration(exploration, output(), given["top"])
    if beside:
        click.echo(str(beside))


def _search(given: dict[str, Any], own: dict[str, Any], console: Console) -> Search:
    cluster, backend = cluster_of(given["devices"], given["cluster"]), load_backend(given["target"])
    check_devices(backend, cluster)
    options = load_options({**given, "training": given["training"] is not False})
    with console.status(f"reading {given['model']}"):
        if given["training"] is None:
            loaded, options = _read_model(given["model"], options, console)
        else:
            loaded = load(given["model"], options)
    request = Request(
        backend, cluster, "auto", settings=own, cached=not given["no_cache"],
        schedules=tuple(starmap(format_options, parse_list(given["schedules"] or "", PipecError))),
        **{n: given[n] for n in ("stages", "microbatches", "batch", "costs", "asynchronous")},
    )  # fmt: skip
    return request.search(loaded, given["model"], options)


def _read_model(model: str, options: LoadOptions, console: Console) -> tuple[Loaded, LoadOptions]:
    """The model that is trained, or that of the forward pass where there is no loss."""
    try:
        return load(model, options), options
    except NoLossError:
        console.print(f"{model} has no loss: its forward pass is explored")
        forward = replace(options, training=False)
        return load(model, forward), forward
