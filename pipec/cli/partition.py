"""``pipec partition``: cut a cost graph optimally, with proof.

Heavy libraries are imported where they are used: a small graph is cut in less time than they load.
"""

import json
import os
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import click

from pipec.errors import PartitionError

if TYPE_CHECKING:
    from pipec.partition.costgraph import CostGraph
    from pipec.partition.devices import Device, Link
    from pipec.partition.formats.workload import Workload
    from pipec.partition.replicas.plan import ReplicatedStage
    from pipec.partition.result import CutResult


@click.command("partition")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--devices", type=int, help="Accelerators; by default as the file says.")
@click.option("--cpus", type=int, help="CPUs, which pay no communication; as the file says.")
@click.option("--memory", type=float, help="Bytes per accelerator; as the file says.")
@click.option("--chunks", type=int, default=1, show_default=True, help="Chunks per device.")
@click.option("--planner", type=click.Choice(["contiguous", "pipedream"]), default="contiguous")
@click.option("--workers", type=int, multiple=True, help="pipedream: per level, innermost first.")
@click.option("--fewest", is_flag=True, help="pipedream: no more workers than the time needs.")
@click.option(
    "--bandwidth", type=float, multiple=True, help="Bytes/s per level or boundary [default: 1e9]."
)
@click.option("--latency", type=float, default=0.0, show_default=True, help="Seconds.")
@click.option("--overlap", is_flag=True, help="Transfers hide behind compute (profiles only).")
@click.option(
    "--time-limit",
    type=float,
    default=20.0,
    show_default=True,
    help="Seconds of processor time for the proof.",
)
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
def command(
    file: Path,
    devices: int | None,
    cpus: int | None,
    memory: float | None,
    chunks: int,
    planner: str,
    workers: tuple[int, ...],
    fewest: bool,
    bandwidth: tuple[float, ...],
    latency: float,
    overlap: bool,
    time_limit: float,
    as_json: bool,
) -> None:
    """Cuts a cost graph so that the slowest stage is as fast as possible.

    FILE is a dnn-partitioning JSON workload, a PipeDream profile (graph.txt), or a directory that
    `pipec compile` wrote (its own devices and links are used). The answer comes
    with a lower bound that no cut can beat; where they meet, the cut is optimal. With
    --planner pipedream, stages may be replicated over one or more levels of links.
    """
    began = perf_counter()
    # the matrices are small: threads would cost more than they give
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if chunks < 1 or not time_limit >= 0:
        raise PartitionError(
            "--chunks must be at least 1 and --time-limit at least 0",
            got=f"--chunks {chunks}, --time-limit {time_limit:g}",
        )
    workload = _read(file)
    given = {
        "--chunks": chunks > 1,
        "--workers": workers,
        "--fewest": fewest,
        "--cpus": cpus is not None,
        "--bandwidth": bandwidth,
        "--latency": latency,
        "--overlap": overlap,
    }
    _refuse_unused({name for name, value in given.items() if value}, workload, planner)
    if planner == "pipedream":
        _replicated(workload, workers or (devices or 0,), bandwidth, memory, fewest, as_json)
        return
    if chunks > 1:
        targets = _devices(workload, devices, cpus or 0, memory)
        cut = _in_chunks(workload, targets, chunks, time_limit)
    else:
        targets = _devices(workload, devices, cpus, memory)
        links = _links(workload, len(targets), bandwidth, latency)
        cut = _contiguous(workload, targets, links, overlap, time_limit)
    seconds = perf_counter() - began
    if as_json:
        click.echo(json.dumps(_facts(workload.graph, targets, cut, seconds)))
    else:
        _table(workload.graph, targets, cut, seconds)


def _read(file: Path) -> "Workload":
    if file.name == "plan.json" or (file / "plan.json").exists():
        from pipec.cli.plan_workload import plan_workload

        return plan_workload(file)
    from pipec.partition.formats.workload import read_workload

    return read_workload(file)


def _refuse_unused(given: set[str], workload: "Workload", planner: str) -> None:
    """An option that would have no effect is a misunderstanding.

    Raises:
        PartitionError: Naming the options, and why they mean nothing here.
    """
    replicated = {"--cpus", "--chunks", "--latency", "--overlap"}
    cases = (
        (planner != "pipedream", {"--workers", "--fewest"}, "--planner pipedream"),
        (planner == "pipedream", replicated, "--planner contiguous"),
        (workload.priced, {"--bandwidth", "--latency", "--overlap"}, "values in bytes"),
    )
    for applies, without_effect, wanted in cases:
        if applies and (unused := given & without_effect):
            raise PartitionError(
                "an option has no effect here", got=", ".join(sorted(unused)), want=wanted
            )


def _links(
    workload: "Workload", devices: int, bandwidth: tuple[float, ...], latency: float
) -> "Link | list[Link] | None":
    """What joins neighbours; None where transfers are priced in seconds."""
    from pipec.partition.devices import Link

    if workload.priced:
        return None
    if len(bandwidth) > 1:
        raise PartitionError(
            "one bandwidth joins all neighbours",
            got="--bandwidth " + " --bandwidth ".join(f"{rate:g}" for rate in bandwidth),
            want="--bandwidth once; several are the levels of --planner pipedream",
        )
    if workload.links and not bandwidth:
        return list(workload.links[: devices - 1])
    return Link(bandwidth[0] if bandwidth else 1e9, latency)


def _replicated(
    workload: "Workload",
    workers: tuple[int, ...],
    bandwidth: tuple[float, ...],
    memory: float | None,
    fewest: bool,
    as_json: bool,
) -> None:
    """PipeDream's planner."""
    from pipec.partition.replicas.plan import plan_replicated
    from pipec.partition.replicas.recurrence import Level

    if workload.priced:
        raise PartitionError(
            "the pipedream planner needs sizes in bytes",
            got="a workload with transfer seconds",
            want="a PipeDream profile",
        )
    rates = bandwidth or (1e9,) * len(workers)
    if len(rates) != len(workers):
        raise PartitionError(
            "every level needs its number of workers and its bandwidth",
            got=f"{len(workers)} --workers, {len(rates)} --bandwidth",
        )
    levels = [Level(count, rate) for count, rate in zip(workers, rates, strict=True)]
    began = perf_counter()
    limit = float("inf") if memory is None else memory
    plan = plan_replicated(workload.graph, levels, memory_bytes=limit, fewest=fewest)
    seconds = perf_counter() - began
    facts = {
        "problem": "replicated stages",
        "configuration": plan.configuration,
        "max_load": plan.seconds,
        "workers": plan.workers,
        "contiguous": True,
        "exact": plan.exact,
        "seconds": seconds,
        "stages": [asdict(stage) for stage in plan.stages],
    }
    if as_json:
        click.echo(json.dumps(facts))
        return
    click.echo(f"problem        {facts['problem']} on {' x '.join(map(str, workers))} workers")
    click.echo(f"configuration  {plan.configuration}")
    _stage_lines(workload.graph, plan.stages, 0)
    click.echo(f"slowest        {plan.seconds:.6g} s per minibatch")
    click.echo(f"workers used   {plan.workers}")
    click.echo(f"optimal over   {'all cuts' if plan.exact else 'the cuts of two orders'}")
    click.echo(f"time           {seconds:.4f} s")


def _stage_lines(graph: "CostGraph", stages: "tuple[ReplicatedStage, ...]", depth: int) -> None:
    for number, stage in enumerate(stages):
        indent = "  " * (depth + 1)
        names = f"{graph.names[stage.nodes[0]]} .. {graph.names[stage.nodes[-1]]}"
        click.echo(
            f"{indent}stage {number}: {stage.first}-{stage.last} x {stage.replicas}, "
            f"{stage.seconds:.6g} s, {len(stage.nodes)} nodes ({names})"
        )
        _stage_lines(graph, stage.inner, depth + 1)


def _contiguous(
    workload: "Workload",
    devices: "list[Device]",
    links: "Link | list[Link] | None",
    overlap: bool,
    time_limit: float,
) -> "CutResult":
    from pipec.partition.solve import solve_contiguous

    return solve_contiguous(
        workload.graph,
        devices,
        free_order=workload.priced,
        exactly=bool(workload.links),
        links=links,
        overlap=overlap,
        time_limit=time_limit,
    )


def _in_chunks(
    workload: "Workload", devices: "list[Device]", chunks: int, time_limit: float
) -> "CutResult":
    from pipec.partition.chunks.solve import solve_chunks

    if not workload.priced:
        raise PartitionError("chunks need transfer times in seconds", got="sizes in bytes")
    return solve_chunks(workload.graph, devices, chunks, time_limit=time_limit)


def _devices(
    workload: "Workload", devices: int | None, cpus: int | None, memory: float | None
) -> "list[Device]":
    from pipec.partition.devices import Device

    size = workload.graph.size
    for name, count, given in (
        ("--devices", devices, workload.accelerators),
        ("--cpus", cpus, workload.cpus),
    ):
        wanted = given if count is None else count
        if not 0 <= wanted <= size:
            raise PartitionError(
                "a number of devices must be between 0 and the number of nodes",
                where=name if count is not None else f"{name}, as the file says",
                got=wanted,
                want=f"at most {size}, for {size} nodes",
            )
    targets = workload.devices(devices, cpus)
    if not targets:
        raise PartitionError(
            "no devices to cut for", got=0, want="at least one", hint="give --devices K"
        )
    if memory is not None:
        targets = [Device(d.kind, memory, d.pays) if d.pays else d for d in targets]
    return targets


def _facts(
    graph: "CostGraph", devices: "list[Device]", cut: "CutResult", seconds: float
) -> dict[str, object]:
    """The result as plain data; stages stand in pipeline order."""
    return {
        "problem": _problem(cut),
        "max_load": cut.max_load,
        "lower_bound": cut.lower_bound,
        "gap": cut.gap,
        "proven": cut.proven,
        "contiguous": cut.contiguous,
        "method": cut.method,
        "seconds": seconds,
        "devices": [d.kind for d in devices],
        "device_order": list(cut.device_order),
        "loads": list(cut.loads),
        "memory_bytes": list(cut.memory_bytes),
        "assignment": dict(zip(graph.names, cut.assignment.tolist(), strict=True)),
    }


def _problem(cut: "CutResult") -> str:
    return "contiguous" if cut.contiguous else "several contiguous chunks per device"


def _table(graph: "CostGraph", devices: "list[Device]", cut: "CutResult", seconds: float) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from pipec.cli.console import output
    from pipec.cluster.units import show

    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for title in ("stage", "nodes", "load", "memory"):
        table.add_column(title, justify="right", no_wrap=True)
    for title in ("device", "first node", "last node"):
        table.add_column(title, no_wrap=True, max_width=24)
    for s, device in enumerate(cut.device_order):
        nodes = (cut.assignment == device).nonzero()[0].tolist()
        table.add_row(
            str(s),
            str(len(nodes)),
            f"{cut.loads[s]:.6g}",
            show(cut.memory_bytes[s], "B"),
            f"{devices[device].kind} {device}",
            graph.names[nodes[0]] if nodes else "-",
            graph.names[nodes[-1]] if nodes else "-",
        )
    output().print(table)
    click.echo(f"problem      {_problem(cut)}")
    click.echo(f"max load     {cut.max_load:.6g}")
    click.echo(f"lower bound  {cut.lower_bound:.6g}")
    click.echo(f"gap          {'0, proven optimal' if cut.proven else f'{cut.gap:.3%}'}")
    click.echo(f"method       {cut.method}")
    click.echo(f"time         {seconds:.3f} s")
