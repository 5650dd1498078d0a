"""``--target torch``: one safetensors file per stage, and exported programs on request."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import torch

from pipec.backends.torch import run as engine
from pipec.backends.torch.exported import OpenStage, Sized, export_stage, write_exported
from pipec.backends.torch.launcher import train_script
from pipec.backends.torch.open_axes import find_axes, read_axes
from pipec.compiler.backend import Backend, Emitted
from pipec.compiler.comparison import OTHER_KERNELS, REWRITTEN, SAME_KERNELS, rounding_tolerance
from pipec.compiler.declared import Options, option
from pipec.compiler.job import Job, StageFunction
from pipec.compiler.profile import Profile, Profiler
from pipec.compiler.sizes import resize_plan
from pipec.compiler.stage_timing import sum_stage_times
from pipec.errors import BackendError, first_line, list_lines
from pipec.graph.axes import Axes
from pipec.graph.eager import eager_parts
from pipec.graph.ir import Graph, InputKind, origin
from pipec.graph.lower import lower
from pipec.graph.quantised import QUANTISED
from pipec.graph.size_formula import SizedArgument
from pipec.plan.model import Plan, StageTiming
from pipec.plan.weights import WEIGHTS, all_have_data, owners, stage_folder, write_weights
from pipec.runtime.device import Device
from pipec.runtime.draws import number_draws, seed_graph
from pipec.runtime.executor import Batch, Settings
from pipec.runtime.program import Program

_OPAQUE = "pipec.onnx.default"
_NO_WEIGHTS = "emitted without weights: the model was built without data (fake or meta tensors)"


@dataclass(frozen=True)
class TorchOptions(Options):
    """Options of `pipec compile` for torch."""

    pt2: bool = option(False, "Also write an exported program per stage.")


class TorchBackend(Backend):
    """Stages for torch on any device.

    ```text
    train.py                     for a training plan: run it with torchrun, edit it
    stage0/weights.safetensors   the weights that this stage owns, under their original names
    stage0/stage0.pt2            with the option ``pt2``: what `torch.export.load` takes
    ```

    The graphs that run are the plan's own (``graphs/<key>/F.json``).
    """

    name: ClassVar[str] = "torch"
    options: ClassVar[type[Options]] = TorchOptions
    run_options: ClassVar[type[Options]] = engine.RunOptions
    runs_emitted_code: ClassVar[bool] = False
    reads: ClassVar[Mapping[str, Any]] = MappingProxyType({"open": True})

    def check(self, plan: Plan) -> None:
        """See whether every stage can be emitted.

        Raises:
            BackendError: A training graph holds an opaque node, or exported programs were asked
                for a model without weights.
            PlanError: The runtime cannot run the schedule: a weight is in several stages that an
                asynchronous one would update at different times.
        """
        if plan.schedule is not None and plan.schedule.training:
            Program.of(plan)
        flat = [n for n in plan.graph.calls if n.target in QUANTISED or str(n.target) == _OPAQUE]
        if flat and plan.trains:
            raise BackendError(
                "quantised ONNX nodes, and those without a torch lowering, have no gradient",
                got=list_lines([f"{n.name}: {origin(n)}" for n in flat]),
                hint="compile for inference, or replace these nodes",
            )
        if plan.options.get("pt2") and not all_have_data(plan.graph.weights):
            raise BackendError("exported programs hold weights, and the model was built without")
        if plan.options.get("pt2") and (parts := eager_parts(plan.graph)):
            got = ", ".join(dict.fromkeys(parts.values()))
            raise BackendError("an exported program holds no module that runs eagerly", got=got)

    def stage_seconds(self, plan: Plan) -> tuple[StageTiming, ...]:
        """Predict every stage on its device: node by node, by the plan's costs."""
        empty = () if all_have_data(plan.graph.weights) else (_NO_WEIGHTS,)
        found = []
        for stage, timing in zip(plan.stages, sum_stage_times(plan), strict=True):
            parts = ", ".join(dict.fromkeys(eager_parts(stage.graph).values()))
            eager = (f"runs eagerly, as a module under autograd: {parts}",) if parts else ()
            found.append(dataclasses.replace(timing, notes=(*empty, *eager)))
        return tuple(found)

    def emit(self, plan: Plan, directory: Path) -> None:
        """Write weights, and exported programs if ``plan.options`` has ``pt2``."""
        if plan.schedule is not None and plan.schedule.training:
            (directory / "train.py").write_text(train_script(plan), encoding="utf-8")
        if not all_have_data(plan.graph.weights):
            return
        axes = Axes()
        if plan.graph.source.options.get("open") and not plan.trains:
            axes = find_axes(plan, lambda chosen: self._export(plan, chosen), _tolerance(plan))
        axes.write(directory)
        owner = owners(plan)
        for stage in plan.stages:
            folder = directory / stage_folder(stage.index)
            folder.mkdir()
            own = {n: plan.graph.weights[n] for n, k in owner.items() if k == stage.index}
            write_weights(own, folder / WEIGHTS)
            if plan.options.get("pt2"):
                write_exported(_open_stage(plan, axes, stage.index), folder / f"{folder.name}.pt2")

    def load(self, plan: Plan, directory: Path) -> Emitted:
        """The graphs of a plan that was loaded from ``directory``, with its weights.

        Raises:
            BackendError: There are no weights.
        """
        if not all_have_data(plan.graph.weights):
            raise BackendError(
                "nothing can run: the model was compiled without its weights", where=directory
            )
        axes = read_axes(plan, directory)
        return Emitted(self._stages(plan, axes), _tolerance(plan), traced=True, axes=axes)

    def _export(self, plan: Plan, axes: Axes) -> list[StageFunction]:
        """Every stage for any size of some axes, once exported if it is to be."""
        for stage in plan.stages if plan.options.get("pt2") else ():
            export_stage(_open_stage(plan, axes, stage.index), named=True)
        return self._stages(plan, axes)

    def _stages(self, plan: Plan, axes: Axes) -> list[StageFunction]:
        """Every stage as a function, for any size of the open axes."""
        draws = number_draws(plan.graph, [s.graph for s in plan.stages])
        sized_of = axes.stages if axes.open else (None,) * len(plan.stages)
        return [
            stage_runner(seed_graph(lower(s.graph).graph, numbers), plan.graph.weights, sized)
            for s, numbers, sized in zip(plan.stages, draws, sized_of, strict=True)
        ]

    def run(self, plan: Plan, job: Job) -> None:
        """Train or infer in pipec's runtime, one process per device."""
        assert isinstance(job.options, engine.RunOptions)
        engine.run(plan, job, job.options)

    def profile(
        self,
        plan: Plan,
        batch: Batch,
        settings: Settings,
        *,
        budget: float = 1.0,
        compute: Device | None = None,
    ) -> Profile:
        """Measure stages, steps and messages in the runtime, on all ranks."""
        return Profiler(plan, batch, settings, compute=compute).measure(budget)


def _open_stage(plan: Plan, axes: Axes, stage: int) -> OpenStage:
    """A stage without communication nodes, and what of it is open."""
    graph = lower(plan.stages[stage].graph).graph
    if not axes.open:
        return OpenStage(graph)
    planned = {n: t.shape for n, t in plan.graph.tensors_of(InputKind.INPUT).items()}
    other = resize_plan(plan, axes, axes.shapes(planned, axes.checked[0])).stages[stage]
    return OpenStage(graph, axes.stages[stage], lower(other.graph).graph)


def _tolerance(plan: Plan) -> float:
    """How far stages may be off.

    They run the same kernels as the reference, unless that is an ONNX file run by onnxruntime, or a
    pass has put other ops in place of the model's.
    """
    same = plan.graph.source.kind != "onnx" and REWRITTEN not in plan.options
    return rounding_tolerance(plan.graph, SAME_KERNELS if same else OTHER_KERNELS)


def stage_runner(
    graph: Graph, weights: Mapping[str, torch.Tensor], sized: Sequence[SizedArgument] | None = None
) -> StageFunction:
    """A function that runs a pure stage graph eagerly.

    Returns:
        From user inputs and values by name to outputs and values by name. Gradients are off; the
        weights are never written.
    """
    by_node = {i.node: weights[i.name] for i in graph.inputs if i.kind.is_weight}
    module = graph.module if sized is None else Sized(graph, sized).run

    def run(inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        missing = [i.name for i in graph.inputs if i.node not in by_node and i.name not in inputs]
        if missing:
            where = type(graph.module).__name__
            raise BackendError("a stage lacks inputs", where=where, got=", ".join(missing))
        args = [by_node[i.node] if i.node in by_node else inputs[i.name] for i in graph.inputs]
        try:
            with torch.no_grad():
                results = module(*args)
        except (RuntimeError, ValueError, IndexError) as error:
            where, problem = type(graph.module).__name__, first_line(error)
            raise BackendError("torch fails on a stage", where=where, got=problem) from error
        return {o.name: value for o, value in zip(graph.outputs, results, strict=True)}

    return run
