"""``pipec explore``: what is the fastest way to train this model on this cluster?"""

import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress

from pipec.cli.options import assignments, model_options, shapes
from pipec.cluster.cluster import Cluster, parse_cluster
from pipec.cluster.file import load_cluster
from pipec.compiler.pass_manager import parse_pipeline, run_passes
from pipec.cost.file import load_costs
from pipec.explore.cache import content_key, recall, remember
from pipec.explore.candidate import candidates
from pipec.explore.explore import Exploration, explore
from pipec.explore.workload import Workload, make_workload
from pipec.frontends.base import LoadOptions
from pipec.frontends.load import load
from pipec.plan.model import Plan
from pipec.report.exploration import print_exploration


@click.command()
@click.argument("model")
@click.option("--devices", help="Such as 4xvcu118 or 8xh100.")
@click.option("--cluster", type=click.Path(path_type=Path), help="Cluster file (TOML).")
@click.option("--batch", type=int, help="Samples of one step; 8 per device and traced batch.")
@click.option("--schedules", help="Comma-separated names instead of those of the devices' family.")
@click.option("--costs", type=click.Path(path_type=Path), help="Measured costs (pipec profile).")
@click.option("--top", default=12, show_default=True, help="How many candidates to show.")
@click.option("--no-cache", is_flag=True, help="Predict anew even if nothing changed.")
@click.option("--json", "as_json", is_flag=True, help="Print all candidates as JSON.")
@model_options
def command(**given: Any) -> None:
    """Predict every schedule, depth, replication and microbatch size for training MODEL.

    MODEL must have a loss. The fastest candidate that fits the memory is chosen; plain data
    parallelism, GPipe and 1F1B are among the candidates, so it is never slower than these.
    """
    console = Console(stderr=True)
    cluster = _cluster(given["devices"], given["cluster"])
    workload = _workload(given, cluster, console)
    batch = given["batch"] or 8 * cluster.size * workload.traced_batch
    exploration = _explore(workload, batch, given, console)
    if given["as_json"]:
        click.echo(json.dumps(exploration.to_json(), indent=2))
    else:
        print_exploration(exploration, Console(), given["top"])


def _cluster(devices: str | None, file: Path | None) -> Cluster:
    if (devices is None) == (file is None):
        raise click.UsageError("name the devices with --devices or --cluster, one of them")
    return load_cluster(file) if file else parse_cluster(devices or "")


def _workload(given: dict[str, Any], cluster: Cluster, console: Console) -> Workload:
    options = LoadOptions(
        shapes(given["shape"]),
        assignments(given["bind"], "--bind"),
        training=True,
        trust=given["trust"],
        seed=given["seed"],
    )
    with console.status(f"reading {given['model']}"):
        graph = load(given["model"], options).graph
        costs = load_costs(given["costs"], graph) if given["costs"] else None
        plan = Plan(graph, cluster, costs=costs)
        plan = run_passes(parse_pipeline("simplify,annotate-cost"), plan)
    assert plan.costs is not None
    return make_workload(plan.graph, plan.costs, cluster)


def _explore(
    workload: Workload, batch: int, given: dict[str, Any], console: Console
) -> Exploration:
    names = given["schedules"].split(",") if given["schedules"] else None
    tried = list(candidates(workload.cluster, batch, names))
    key = content_key(workload, tried, batch)
    found = None if given["no_cache"] else recall(key)
    if found is None:
        with Progress(console=console, transient=True) as bar:
            task = bar.add_task("predicting", total=len(tried))
            found = explore(workload, tried, batch, progress=lambda n: bar.advance(task, n))
        remember(key, found)
    return found
