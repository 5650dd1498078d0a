"""``pipec profile DIRECTORY``: measure the stages of a plan where they will run."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import torch
import torch.distributed as dist

from pipec.cli.command import refuse
from pipec.cluster.units import show
from pipec.compiler.backend import load_backend, read_back
from pipec.compiler.profile import Profile, Profiles, node_costs, profile_emitted
from pipec.cost.file import load_costs, save_costs
from pipec.cost.measure import Measuring
from pipec.cost.table import CostTable
from pipec.errors import CostError
from pipec.frontends.base import Loaded
from pipec.frontends.load import check_runnable, reload
from pipec.plan.model import Plan
from pipec.plan.store import load_plan
from pipec.runtime.builders import optimizer_from_text
from pipec.runtime.device import device_of, local_device
from pipec.runtime.distributed import process_group
from pipec.runtime.executor import Settings
from pipec.runtime.ranks import start_ranks


def profile_stages(directory: Path, given: Mapping[str, Any], how: Measuring, machine: str) -> None:
    """Measure nodes, stages, steps and messages of a plan, and write one cost file.

    Started by torchrun this is one rank; otherwise it starts torchrun itself.

    Args:
        directory: What ``pipec compile -o`` wrote.
        given: The options of ``pipec profile`` by name.
        how: Warm-up, repetitions and device of the measurement.
        machine: What they are measured on, for people.

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
    directory: Path,
    given: Mapping[str, Any],
    how: Measuring,
    machine: str,
    plan: Plan,
    kind: str,
) -> None:
    check_runnable(directory, plan.graph.source, plan.target, None, trust=given["trust"])
    loaded = reload(plan.graph.source, trust=given["trust"])
    first = not dist.is_initialized() or dist.get_rank() == 0
    target = load_backend(plan.target)
    nodes = _nodes(target, given["costs"], loaded, kind, how) if first else None
    inputs: Mapping[str, torch.Tensor] = loaded.example_inputs
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
        _tell(plan, found)
        click.echo(f"wrote {given['output']}, times for devices of kind {kind}")


def _nodes(
    target: object, costs: Path | None, loaded: Loaded, kind: str, how: Measuring
) -> CostTable:
    if costs is not None:
        return load_costs(costs, loaded.graph)
    return node_costs(target, loaded.graph, loaded.example_inputs, kind, how)


def _tell(plan: Plan, found: Profile) -> None:
    for stage in plan.stages:
        cost = found.stages[stage.cost_key]
        parts = {"F": cost.F, "B": cost.B, "I": cost.I, "W": cost.W, "step": cost.step}
        shown = "  ".join(f"{k} {show(s, 's')}" for k, s in parts.items() if s)
        click.echo(f"stage {stage.index}: {shown}")
    if found.messages:
        for nbytes, seconds in zip(found.messages.nbytes, found.messages.one_way, strict=True):
            processor = found.messages.sending(nbytes)
            text = f"{show(seconds, 's')} one way, {show(processor, 's')} of each processor"
            click.echo(f"message of {show(float(nbytes), 'B')}: {text}")
