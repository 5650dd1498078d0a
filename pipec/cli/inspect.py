"""``pipec inspect``: what is in an output directory."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from pipec.api.drawing import draw
from pipec.cli.command import Command, refuse
from pipec.cli.console import output
from pipec.cli.options import allow_namespace_option, import_namespaces
from pipec.compiler.backend import lacking, load_backend
from pipec.compiler.capabilities import Cycles
from pipec.errors import PlanError
from pipec.escape import sanitize
from pipec.files import check_output
from pipec.graph.axes import Axes
from pipec.graph.ir import Graph
from pipec.graph.printer import graph_to_python
from pipec.plan.model import Plan, Stage
from pipec.plan.store import load_plan
from pipec.report.found import print_cycles
from pipec.report.plan import print_plan
from pipec.report.plan_data import plan_data, stage_data


@click.command(cls=Command)
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--stage", type=int, help="Show this stage alone.")
@click.option("--graph", "with_graph", is_flag=True, help="Show the graph as Python.")
@click.option(
    "--phase",
    type=click.Choice(["F", "B", "I", "W"]),
    help="With --graph or --stage: that training graph of each stage.",
)
@click.option("--heaviest", type=click.IntRange(0), default=10, show_default=True,
              help="How many nodes to list.")  # fmt: skip
@click.option(
    "--cycles", is_flag=True, help="Simulate the stages cycle by cycle, if they have cycles."
)
@click.option("--together", is_flag=True, help="With --cycles: also all stages and their links.")
@click.option("--svg", type=click.Path(path_type=Path), help="Draw the predicted timeline.")
@click.option("--trace", type=click.Path(path_type=Path),
              help="Write the predicted timeline for Perfetto.")  # fmt: skip
@allow_namespace_option
def command(directory: Path, **given: Any) -> None:
    """Show stages, balance, cuts, heaviest nodes and memory of the plan in DIRECTORY."""
    _check_options(given)
    stage = given["stage"]
    allowed = import_namespaces(given["allow_namespace"])
    plan = load_plan(directory, allowed=allowed, check_weights=False)
    chosen = plan.stages if stage is None else (_stage(plan, stage),)
    target = load_backend(plan.target)
    if given["cycles"] and not isinstance(target, Cycles):
        raise lacking(target, Cycles, "--cycles")
    for path in filter(None, (given["svg"], given["trace"])):
        click.echo(f"wrote {draw(plan, path)}", err=True)
    if given["cycles"]:
        assert isinstance(target, Cycles)
        found = target.cycles(plan, directory, together=given["together"])
        some = found if stage is None else [found[stage]]
        if given["as_json"]:
            click.echo(json.dumps([asdict(c) for c in some], indent=2))
        else:
            print_cycles(some, output(), given["heaviest"])
        return
    drawn = given["with_graph"] or (stage is not None and not given["as_json"])
    texts = {str(s.index): graph_to_python(_graph(s, given["phase"])) for s in chosen if drawn}
    if given["as_json"]:
        click.echo(json.dumps(_data(plan, directory, given, texts), indent=2))
        return
    if stage is None:
        print_plan(plan, output(), given["heaviest"])
        confirmed = map(_tell_confirmed, _list_confirmed(plan, directory))
        for line in (*Axes.read(directory, plan.graph).lines(), *confirmed):
            click.echo(sanitize(line))
    for text in texts.values():
        click.echo(sanitize(text))


def _check_options(given: dict[str, Any]) -> None:
    """Refuse what would have no effect, and files that cannot be written."""
    stage, cycles = given["stage"], given["cycles"]
    shown = given["with_graph"] or stage is not None
    graphs = ("with_graph", "phase")
    refuse(["together"], "only with --cycles", unless=cycles)
    refuse(graphs, "not beside --cycles, which shows no graphs", unless=not cycles)
    lists = stage is None or cycles
    refuse(["heaviest"], "not beside --stage, which lists no nodes", unless=lists)
    refuse(["phase"], "only with --graph or --stage", unless=shown)
    check_output(given["svg"], ".svg")
    check_output(given["trace"], ".json")


def _data(
    plan: Plan, directory: Path, given: dict[str, Any], graphs: dict[str, str]
) -> dict[str, Any]:
    stage = given["stage"]
    if stage is None:
        data = plan_data(plan, given["heaviest"])
        if confirmed := _list_confirmed(plan, directory):
            data["vitis"] = confirmed
    else:
        data = stage_data(plan, _stage(plan, stage))
    if axes := Axes.read(directory, plan.graph):
        data["axes"] = asdict(axes)
    return {**data, "graphs": graphs} if given["with_graph"] else data


def _list_confirmed(plan: Plan, directory: Path) -> list[dict[str, Any]]:
    """Which engines a vendor's tool has confirmed, if what was emitted has engines."""
    backend = load_backend(plan.target)
    rows = []
    for stage in backend.engines(plan, directory, ()) if isinstance(backend, Cycles) else ():
        found = [e for e in stage["engines"] if "vitis" in e]
        slower = [e["name"] for e in found if (e["vitis"]["ii"] or 0) > e["ii"]]
        counts = {"engines": len(stage["engines"]), "reported": len(found)}
        rows.append({"stage": stage["name"], **counts, "slower": slower})
    return rows


def _tell_confirmed(stage: dict[str, Any]) -> str:
    count = f"{stage['reported'] or 'none'} of {stage['engines']} engines"
    slower = "; slower than declared: " + ", ".join(stage["slower"]) if stage["slower"] else ""
    return f"{stage['stage']}: Vitis HLS has reported {count}{slower}"


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
