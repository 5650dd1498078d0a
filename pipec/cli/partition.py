"""``pipec partition``: cut a cost graph optimally, with proof.

Heavy libraries are imported where they are used: a small graph is cut in less time than they load.
"""

import json
import math
import os
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import click

from pipec.cli.command import Command, refuse
from pipec.errors import PartitionError

if TYPE_CHECKING:
    from pipec.cluster.cluster import Link
    from pipec.partition.costgraph import CostGraph
    from pipec.partition.devices import Device
    from pipec.partition.formats.workload import Workload
    from pipec.partition.replicas.plan import ReplicatedStage
    from pipec.partition.result import CutResult


@click.command("partition", cls=Command)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--devices", type=int, help="Accelerators; by default as the file says.")
@click.option("--cpus", type=int, help="CPUs, which pay no communication; as the file says.")
@click.option("--memory", type=click.FloatRange(0), help="Bytes per accelerator; as the file says.")
@click.option("--chunks", type=int, default=1, show_default=True, help="Chunks per device.")
@click.option("--planner", type=click.Choice(["contiguous", "pipedream"]), default="contiguous")
@click.option("--workers", type=int, multiple=True, help="pipedream: per level, innermost first.")
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
    help="Seconds for the proof, by the clock.",
)
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
def command(file: Path, **given: Any) -> None:
    """Cuts a cost graph so that the slowest stage is as fast as possible.

    FILE is a dnn-partitioning JSON workload, a PipeDream profile (graph.txt), or a directory that
    `pipec compile` wrote (its own devices and links are used). The cut comes
    with a lower bound that no cut can beat; where they meet, the cut is optimal. With
    --planner pipedream, stages may be replicated over one or more levels of links; as in the paper,
    a message takes its bytes over the bandwidth there, without the latency of a link.
    """
    # the matrices are small: threads would cost more than they give
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if given["chunks"] < 1 or not given["time_limit"] >= 0:
        raise PartitionError(
            "--chunks must be at least 1, and --time-limit at least 0",
            got=f"--chunks {given['chunks']}, --time-limit {given['time_limit']:g}",
        )
    if not 0 <= given["latency"] < math.inf:
        raise PartitionError("no such latency", got=given["latency"], want="seconds, 0 or more")
    workload = _read_workload(file, replicated=given["planner"] == "pipedream")
    _refuse_unused(workload, given)
    if given["planner"] == "pipedream":
        _plan_replicas(workload, given)
        return
    targets = _devices(workload, given)
    search = (_in_chunks if given["chunks"] > 1 else _contiguous)(workload, targets, given)
    began = perf_counter()  # reading the file and loading libraries is no part of the search
    cut = search()
    seconds = perf_counter() - began
    if given["as_json"]:
        click.echo(json.dumps(_facts(workload.graph, targets, cut, seconds)))
    else:
        _table(workload, targets, cut, seconds)


def _read_workload(file: Path, *, replicated: bool) -> "Workload":
    if file.name == "plan.json" or (file / "plan.json").exists():
        from pipec.cli.plan_workload import plan_workload

        return plan_workload(file, replicated=replicated)
    from pipec.partition.formats.workload import read_workload

    return read_workload(file)


def _refuse_unused(workload: "Workload", given: dict[str, Any]) -> None:
    """An option that would have no effect is a misunderstanding."""
    replicates = given["planner"] == "pipedream"
    refuse({"workers"}, "only with --planner pipedream", unless=replicates)
    other = ("cpus", "chunks", "latency", "overlap", "time_limit")
    refuse(other, "only with --planner contiguous", unless=not replicates)
    refuse({"devices"}, "not beside --workers", unless=not given["workers"])
    priced = ("bandwidth", "latency", "overlap")
    refuse(priced, "only for values in bytes", unless=not workload.priced)
    known = workload.links and not given["bandwidth"]
    refuse({"latency"}, "only with --bandwidth: the plan has links of its own", unless=not known)


def _links(workload: "Workload", devices: int, given: dict[str, Any]) -> "Link | list[Link] | None":
    """What joins neighbours; None where transfers are priced in seconds."""
    from pipec.cluster.cluster import Link

    if workload.priced:
        return None
    bandwidth: tuple[float, ...] = given["bandwidth"]
    if len(bandwidth) > 1:
        raise PartitionError(
            "one bandwidth joins all neighbours",
            got="--bandwidth " + " --bandwidth ".join(f"{rate:g}" for rate in bandwidth),
            want="--bandwidth once; several are the levels of --planner pipedream",
        )
    if workload.links and not bandwidth:
        return list(workload.links[: devices - 1])
    return Link(bandwidth[0] if bandwidth else 1e9, given["latency"])


def _plan_replicas(workload: "Workload", given: dict[str, Any]) -> None:
    from pipec.partition.replicas.plan import plan_replicated
    from pipec.partition.replicas.recurrence import Level

    if workload.priced:
        raise PartitionError(
            "the pipedream planner needs sizes in bytes",
            got="a workload with transfer seconds",
            want="a PipeDream profile",
        )
    count = len(workload.devices()) if given["devices"] is None else given["devices"]
    workers: tuple[int, ...] = given["workers"] or (count,)
    devices, rates = _for_replicas(workload, workers)
    rates = given["bandwidth"] or rates
    if len(rates) != len(workers):
        raise PartitionError(
            "every level needs its number of workers and its bandwidth",
            got=f"{len(workers)} --workers, {len(given['bandwidth'])} --bandwidth",
        )
    levels = [Level(count, rate) for count, rate in zip(workers, rates, strict=True)]
    began = perf_counter()
    limit = min((d.memory_bytes for d in devices), default=math.inf)
    limit = limit if given["memory"] is None else given["memory"]
    plan = plan_replicated(workload.graph, levels, memory_bytes=limit)
    seconds = perf_counter() - began
    facts = {
        "problem": "replicated stages",
        "configuration": plan.configuration,
        "max_load": plan.seconds,
        "workers": workers[-1],
        "contiguous": True,
        "exact": plan.exact,
        "seconds": seconds,
        "stages": [asdict(stage) for stage in plan.stages],
    }
    if given["as_json"]:
        click.echo(json.dumps(facts))
        return
    click.echo(f"problem        {facts['problem']} on {' x '.join(map(str, workers))} workers")
    click.echo(f"configuration  {plan.configuration}")
    _stage_lines(workload.graph, plan.stages, 0)
    click.echo(f"slowest        {plan.seconds:.6g} s per minibatch")
    click.echo(f"optimal over   {'all cuts' if plan.exact else 'the cuts of two orders'}")
    click.echo(f"time           {seconds:.4f} s")


def _for_replicas(
    workload: "Workload", workers: tuple[int, ...]
) -> "tuple[list[Device], tuple[float, ...]]":
    """Devices, and bytes per second of every level where the command line says none."""
    if not workload.links:
        return workload.devices(math.prod(workers)), (1e9,) * len(workers)
    from pipec.cli.plan_workload import PlanWorkload

    assert isinstance(workload, PlanWorkload)
    return workload.replicas(workers)


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
    workload: "Workload", devices: "list[Device]", given: dict[str, Any]
) -> "Callable[[], CutResult]":
    from pipec.partition.solve import solve_contiguous

    return partial(
        solve_contiguous,
        workload.graph,
        devices,
        free_order=workload.priced,
        exactly=bool(workload.links),
        links=_links(workload, len(devices), given),
        overlap=given["overlap"],
        time_limit=given["time_limit"],
    )


def _in_chunks(
    workload: "Workload", devices: "list[Device]", given: dict[str, Any]
) -> "Callable[[], CutResult]":
    from pipec.partition.chunks.solve import solve_chunks

    if not workload.priced:
        raise PartitionError("chunks need transfer times in seconds", got="sizes in bytes")
    limit = given["time_limit"]
    return partial(solve_chunks, workload.graph, devices, given["chunks"], time_limit=limit)


def _devices(workload: "Workload", given: dict[str, Any]) -> "list[Device]":
    from pipec.partition.devices import Device

    size, devices, cpus, memory = (
        workload.graph.size, given["devices"], given["cpus"], given["memory"],
    )  # fmt: skip
    if given["chunks"] > 1:
        cpus = cpus or 0
    for name, count, default in (
        ("--devices", devices, workload.accelerators),
        ("--cpus", cpus, workload.cpus),
    ):
        wanted = default if count is None else count
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


def _table(workload: "Workload", devices: "list[Device]", cut: "CutResult", seconds: float) -> None:
    from pipec.cli.console import output
    from pipec.cluster.units import show
    from pipec.report.table import Table

    graph, unit = workload.graph, "" if workload.priced else " s"  # else that of the file
    load = f"load,{unit}" if unit else "load"
    columns = ("stage", "device", "first node", "last node", "nodes", load, "memory")
    table = Table("", columns, right=4, texts=("device", "first node", "last node"))
    for s, device in enumerate(cut.device_order):
        nodes = (cut.assignment == device).nonzero()[0].tolist()
        table.add(
            str(s),
            f"{devices[device].kind} {device}",
            graph.names[nodes[0]] if nodes else "-",
            graph.names[nodes[-1]] if nodes else "-",
            str(len(nodes)),
            f"{cut.loads[s]:.6g}",
            show(cut.memory_bytes[s], "B"),
        )
    output().print(table)
    click.echo(f"problem      {_problem(cut)}")
    click.echo(f"max load     {cut.max_load:.6g}{unit}")
    click.echo(f"lower bound  {cut.lower_bound:.6g}{unit}")
    click.echo(f"gap          {'0, proven optimal' if cut.proven else f'{cut.gap:.3%}'}")
    click.echo(f"method       {cut.method}")
    click.echo(f"time         {seconds:.3f} s")
