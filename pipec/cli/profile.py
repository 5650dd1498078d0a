"""``pipec profile``: run every node of a model, or the stages of a plan, and write their times."""

import json
import os
import platform
from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import click
import torch
import torch.distributed as dist
from rich.console import Console

from pipec.cli.command import Command, refuse
from pipec.cli.console import progress, progress_options
from pipec.cli.options import load_options, model_options, target_option
from pipec.cluster.presets import PRESETS
from pipec.cluster.units import show
from pipec.compiler.backend import load_backend, read_back
from pipec.compiler.profile import Profile, Profiles, node_costs, profile_emitted
from pipec.cost.file import load_costs, save_costs
from pipec.cost.measure import Measuring
from pipec.cost.table import CostTable
from pipec.errors import CostError
from pipec.files import check_output
from pipec.frontends.base import Loaded
from pipec.frontends.load import check_runnable, load, reload
from pipec.graph.ir import origin
from pipec.plan.model import Plan
from pipec.plan.store import load_plan
from pipec.runtime.builders import optimizer_from_text
from pipec.runtime.device import device_of, local_device, split_gpu_blocks
from pipec.runtime.distributed import process_group
from pipec.runtime.executor import Settings
from pipec.runtime.ranks import start_ranks

_OF_A_MODEL = ("shape", "bind", "autocast", "training", "loss", "seed", "target", "heaviest")
_OF_A_DIRECTORY = ("costs", "optimizer", "local", "seconds")


@click.command(cls=Command)
@click.argument("model")
@target_option
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option("--kind", help="Device kind that the times stand for; found from the device.")
@click.option("-o", "--output", type=click.Path(path_type=Path), default=Path("costs.json"),
              show_default=True, help="Cost file to write.")  # fmt: skip
@click.option("--repeats", type=click.IntRange(1), default=7, show_default=True,
              help="Runs of the model; of each node the median counts.")  # fmt: skip
@click.option("--warmup", type=click.IntRange(0), default=2, show_default=True,
              help="Runs before these.")  # fmt: skip
@click.option("--costs", type=click.Path(path_type=Path),
              help="DIRECTORY: keep the nodes' times of this cost file.")  # fmt: skip
@click.option("--optimizer", default="sgd:lr=0.01", show_default=True,
              help="DIRECTORY: whose steps are measured.")  # fmt: skip
@click.option("--local", is_flag=True, help="DIRECTORY: one process, and no messages.")
@click.option("--seconds", type=click.FloatRange(0), default=2.0, show_default=True,
              help="DIRECTORY: for each stage.")  # fmt: skip
@click.option("--heaviest", type=click.IntRange(0), default=10, show_default=True,
              help="Nodes to list.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@progress_options
@model_options
def command(model: str, **given: Any) -> None:
    """Run every node of MODEL on this machine and write a cost file for --costs.

    Nodes with the same op on the same types share a median; those of a quantised file are timed by
    onnxruntime with --target onnx. A file with open dimensions has other nodes where the --target
    leaves them open. Where MODEL is a DIRECTORY that
    `pipec compile` wrote, its stages' graphs, optimizer steps and messages are measured too, one
    process per device: compile again with the cost file, and the predictions are of this machine.
    """
    check_output(given["output"], ".json")
    device = given["device"]
    if device == "cuda":
        if not torch.cuda.is_available():
            raise CostError("this machine has no usable GPU", got=device, hint="use --device cpu")
        split_gpu_blocks()
    how = Measuring(device, given["warmup"], given["repeats"])
    if Path(model).is_dir():
        refuse(_OF_A_MODEL, "not for a directory, whose plan has it")
        refuse(("repeats", "warmup"), "not with --costs, which has the nodes' times",
               unless=given["costs"] is None)  # fmt: skip
        profile_stages(Path(model), given, how, _machine(device))
        return
    refuse(_OF_A_DIRECTORY, "only for a directory that `pipec compile` wrote")
    kind = str(given["kind"] or this_kind(device)).lower()
    console = progress(given["verbosity"])
    with console.status(f"reading {model}"):
        target = load_backend(given["target"])
        loaded = load(model, replace(load_options(given), **target.reads))
    table = _measure_nodes(target, loaded, kind, how, console)
    save_costs(given["output"], table, loaded.graph, _machine(device))
    _summary(loaded, table, kind, given)
    console.print(f"wrote {given['output']}, times for devices of kind {kind}")


def this_kind(device: str) -> str:
    """The preset that this machine's device is.

    Raises:
        CostError: The GPU is none of the presets.

    Example:
        >>> this_kind("cpu")
        'cpu'
    """
    if device == "cpu":
        return "cpu"
    if not torch.cuda.is_available():
        raise CostError("this machine has no usable GPU", got=device, hint="use --device cpu")
    name = torch.cuda.get_device_name()
    words = name.lower().replace("-", " ").split()
    found = next((k for k, d in PRESETS.items() if d.family == "gpu" and k in words), None)
    if found is None:
        raise CostError(
            "this GPU is no known kind of device",
            got=name,
            hint="give its name in the cluster: --kind h100",
        )
    return found


def _measure_nodes(
    target: object, loaded: Loaded, kind: str, how: Measuring, console: Console
) -> CostTable:
    done, total = count(1), len(loaded.graph.calls)
    with console.status("measuring") as status:
        return node_costs(
            target,
            loaded.graph,
            loaded.example_inputs,
            kind,
            how,
            lambda name: status.update(f"measuring {name} ({next(done)} of {total})"),
        )


def _machine(device: str) -> str:
    if device == "cuda":
        return torch.cuda.get_device_name()
    return f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}"


def _summary(loaded: Loaded, table: CostTable, kind: str, given: Mapping[str, Any]) -> None:
    forward, backward = table.of(kind), table.backward.get(kind, {})
    seconds = {name: s + backward.get(name, 0.0) for name, s in forward.items()}
    total, back = sum(seconds.values()), sum(backward.values())
    nodes = loaded.graph.nodes
    rows: list[dict[str, Any]] = [
        {"node": name, "origin": str(origin(nodes[name])), "seconds": seconds[name],
         "share": seconds[name] / total if total else 0.0}
        for name in sorted(seconds, key=lambda n: -seconds[n])[: given["heaviest"]]
    ]  # fmt: skip
    if given["as_json"]:
        data = {"nodes": len(seconds), "seconds": total, "backward_seconds": back, "heaviest": rows}
        click.echo(json.dumps(data, indent=2))
        return
    part = f", {show(back, 's')} of it backward" if backward else ""
    click.echo(f"{len(seconds)} nodes, {show(total, 's')} in all{part}")
    for r in rows:
        click.echo(f"{show(r['seconds'], 's'):>10} {r['share']:6.1%}  {r['node']}  {r['origin']}")


def profile_stages(directory: Path, given: Mapping[str, Any], how: Measuring, machine: str) -> None:
    """Measure nodes, stages, steps and messages of a plan, and write one cost file.

    Started by torchrun this is one rank; otherwise it starts torchrun itself.

    Raises:
        CostError: The devices of the plan are of several kinds, or there is no GPU.
        PipecError: The directory, the model or the cost file cannot be read.
    """
    plan = load_plan(directory)
    target = load_backend(plan.target)
    if target.simulates:
        raise CostError(
            f"the stages of the target {target.name} are simulated here: their seconds are not "
            "those of its devices",
            where=directory,
            hint="pipec inspect shows what is predicted",
        )
    refuse(("optimizer",), "an inference has no steps", unless=plan.trains)
    kind = str(given["kind"] or _only_kind(plan)).lower()
    world = 1 if plan.placement is None else plan.placement.devices
    if given["local"] or world == 1 or not isinstance(target, Profiles):
        _measure(directory, given, how, machine, plan, kind)
    elif "RANK" in os.environ:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // world))
        with process_group(device=given["device"]):
            _measure(directory, given, how, machine, plan, kind)
    else:
        start_ranks(world)


def _only_kind(plan: Plan) -> str:
    kinds = sorted({d.kind for d in plan.cluster.devices})
    if len(kinds) > 1:
        raise CostError(
            "the plan's devices are of several kinds",
            got=", ".join(kinds),
            hint="name the kind of this machine: --kind",
        )
    return kinds[0]


def _measure(
    directory: Path, given: Mapping[str, Any], how: Measuring, machine: str, plan: Plan, kind: str
) -> None:
    check_runnable(directory, plan.graph.source, plan.target, None, trust=given["trust"])
    loaded = reload(plan.graph.source, trust=given["trust"])
    first = not dist.is_initialized() or dist.get_rank() == 0
    target = load_backend(plan.target)
    inputs: Mapping[str, torch.Tensor] = loaded.example_inputs
    nodes = load_costs(given["costs"], loaded.graph) if first and given["costs"] else None
    if first and nodes is None:
        nodes = node_costs(target, loaded.graph, inputs, kind, how)
    settings = Settings(optimizer_from_text(given["optimizer"]))
    if isinstance(target, Profiles):
        compute = device_of(local_device(given["device"]))
        found = target.profile(
            plan, lambda _: inputs, settings, budget=given["seconds"], compute=compute
        )
    else:
        stages = read_back(plan, directory).stages
        found = profile_emitted(plan, stages, inputs, given["seconds"])
    if nodes is not None:
        save_costs(given["output"], found.add_to(nodes, plan, kind), loaded.graph, machine)
        _tell(plan, found, as_json=given["as_json"])
        text = f"wrote {given['output']}, times for devices of kind {kind}"
        click.echo(text, err=given["as_json"])


def _tell(plan: Plan, found: Profile, *, as_json: bool) -> None:
    stages, messages = [], []
    for stage in plan.stages:
        cost = found.stages[stage.cost_key]
        parts = {"F": cost.F, "B": cost.B, "I": cost.I, "W": cost.W, "step": cost.step}
        stages.append({"stage": stage.index, **{k: s for k, s in parts.items() if s}})
    if sent := found.messages:
        for nbytes, seconds in zip(sent.nbytes, sent.one_way, strict=True):
            both = {"one_way": seconds, "processor": sent.sending(nbytes)}
            messages.append({"nbytes": nbytes, **both})
    if as_json:
        click.echo(json.dumps({"stage_seconds": stages, "message_seconds": messages}, indent=2))
        return
    for s in stages:
        shown = "  ".join(f"{k} {show(v, 's')}" for k, v in s.items() if k != "stage")
        click.echo(f"stage {s['stage']}: {shown}")
    for m in messages:
        text = f"{show(m['one_way'], 's')} one way, {show(m['processor'], 's')} of each processor"
        click.echo(f"message of {show(float(m['nbytes']), 'B')}: {text}")
