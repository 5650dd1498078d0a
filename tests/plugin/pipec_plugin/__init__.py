"""A plug-in package: one pass and one backend, found by entry point."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from safetensors.torch import load_file, save_file
from torch import fx

from pipec.compiler.backend import Backend, StageRunner
from pipec.compiler.pass_base import Pass
from pipec.graph.ir import nbytes
from pipec.graph.lower import lower
from pipec.plan.model import Plan, StageTiming


@dataclass(frozen=True)
class TagLargest(Pass):
    """Remembers the node with the largest output in the plan's options."""

    name: ClassVar[str] = "tag-largest"
    key: str = "largest"

    def run(self, plan: Plan) -> Plan:
        largest = max(plan.graph.calls, key=nbytes)
        return plan.replace(options={**plan.options, self.key: largest.name})


class ListingBackend(Backend):
    """Emits each stage as a list of its ops; runs it by the FX interpreter."""

    name: ClassVar[str] = "listing"

    def check(self, plan: Plan) -> None:
        """Everything can be listed."""

    def timing(self, plan: Plan) -> tuple[StageTiming, ...]:
        """As the partition predicted."""
        seconds = plan.partition.seconds if plan.partition else ()
        return tuple(StageTiming(s, s, "roofline") for s in seconds)

    def emit(self, plan: Plan, directory: Path) -> None:
        """One text file per stage, and the weights."""
        for stage in plan.stages:
            ops = "".join(f"{n.name} = {n.target}\n" for n in stage.graph.calls)
            (directory / f"stage{stage.index}.txt").write_text(ops)
        save_file(dict(plan.graph.weights), directory / "weights.safetensors")

    def load(self, plan: Plan, directory: Path) -> Sequence[StageRunner]:
        """The stage graphs with the weights that were emitted."""
        weights = load_file(directory / "weights.safetensors")
        return [_runner(plan, k, weights) for k in range(len(plan.stages))]

    def tolerance(self, plan: Plan) -> float:
        """Nothing is computed differently."""
        del plan
        return 0.0


def _runner(plan: Plan, index: int, weights: Mapping[str, torch.Tensor]) -> StageRunner:
    graph = lower(plan.stages[index].graph).graph

    def run(inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        args = [weights[i.name] if i.kind.is_weight else inputs[i.name] for i in graph.inputs]
        results = fx.Interpreter(graph.module).run(*args)
        return {o.name: r for o, r in zip(graph.outputs, results, strict=True)}

    return run
