"""``pipec inspect``: what is in an output directory."""

import json
from collections.abc import Sequence
from pathlib import Path

import click

from pipec.cli.console import output
from pipec.cli.namespaces import allow_namespace_option, import_namespaces
from pipec.compiler.backend import lacking, load_backend
from pipec.compiler.capabilities import Cycles
from pipec.compiler.cycles import StageCycles
from pipec.errors import PlanError
from pipec.escape import terminal
from pipec.graph.ir import Graph
from pipec.plan.model import Plan, Stage
from pipec.plan.store import load_plan
from pipec.report.cycles import print_cycles
from pipec.report.plan import graph_text, print_plan
from pipec.report.plan_data import plan_data, stage_data


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--stage", type=int, help="Show this stage alone.")
@click.option("--graph", "with_graph", is_flag=True, help="Show the graph as Python.")
@click.option(
    "--phase",
    type=click.Choice(["F", "B", "I", "W"]),
    help="With --graph or --stage: that training graph of each stage.",
)
@click.option("--heaviest", default=10, show_default=True, help="How many nodes to list.")
@click.option(
    "--cycles", is_flag=True, help="Simulate the stages cycle by cycle, if they have cycles."
)
@click.option("--together", is_flag=True, help="With --cycles: also all stages and their links.")
@allow_namespace_option
def command(
    *,
    directory: Path,
    as_json: bool,
    stage: int | None,
    with_graph: bool,
    phase: str | None,
    heaviest: int,
    cycles: bool,
    together: bool,
    allow_namespace: tuple[str, ...],
) -> None:
    """Show stages, balance, cuts, heaviest nodes and memory of the plan in DIRECTORY."""
    allowed = import_namespaces(allow_namespace)
    plan = load_plan(directory, allowed=allowed, check_weights=False)
    chosen = plan.stages if stage is None else (_stage(plan, stage),)
    if cycles:
        target = load_backend(plan.target)
        if not isinstance(target, Cycles):
            raise lacking(target, Cycles, "--cycles")
        found = target.cycles(plan, directory, together=together)
        some = found if stage is None else [found[stage]]
        _show_cycles(some, as_json=as_json, heaviest=heaviest)
        return
    if as_json:
        data = plan_data(plan, heaviest) if stage is None else stage_data(plan, chosen[0])
        if with_graph:
            data["graphs"] = {str(s.index): graph_text(_graph(s, phase)) for s in chosen}
        click.echo(json.dumps(data, indent=2))
        return
    if stage is None:
        print_plan(plan, output(), heaviest)
    if with_graph or stage is not None:
        for s in chosen:
            click.echo(terminal(graph_text(_graph(s, phase))))


def _show_cycles(found: Sequence[StageCycles], *, as_json: bool, heaviest: int) -> None:
    if as_json:
        click.echo(json.dumps([c.to_json() for c in found], indent=2))
        return
    print_cycles(found, output(), heaviest)


def _graph(stage: Stage, phase: str | None) -> Graph:
    """The stage's own graph, or one of its training graphs, with copies and recomputation."""
    if phase is None:
        return stage.graph
    if stage.training is None:
        raise PlanError("the plan has no training graphs", hint="pipec compile --training")
    found: Graph = getattr(stage.training, phase)
    return found


def _stage(plan: Plan, index: int) -> Stage:
    if not 0 <= index < len(plan.stages):
        raise PlanError("no such stage", got=index, want=f"0 to {len(plan.stages) - 1}")
    return plan.stages[index]
