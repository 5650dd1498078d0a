"""``--target fpga``: HLS C++ per stage, cycles from its engines, verified by C simulation."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import torch

from pipec.backends.fpga import audit
from pipec.backends.fpga.boards import cycles_of_boards
from pipec.backends.fpga.cost import FpgaCost
from pipec.backends.fpga.cpp import cpp_type
from pipec.backends.fpga.csim.run import CSimulation, check_timing, load_stages, stream
from pipec.backends.fpga.cutting.joint import joint_cut, keep_together
from pipec.backends.fpga.cycles import cycles_of, engines_of
from pipec.backends.fpga.designs import designs_of, folders_of, link_behind, types_of
from pipec.backends.fpga.inference import accuracy_of, describe, emit_inference
from pipec.backends.fpga.lowering.types import parse_types
from pipec.backends.fpga.numbers import MINIMUM
from pipec.backends.fpga.quantise.bound import Bound, tolerance_of
from pipec.backends.fpga.quantise.samples import RANDOM, input_ranges, read_kept, source_of
from pipec.backends.fpga.search import Board
from pipec.backends.fpga.stagejson import read_design, read_record
from pipec.backends.fpga.timing import stage_timing
from pipec.backends.fpga.training.artifacts import KERNELS, emit_training
from pipec.backends.fpga.training.compare import MICROBATCHES, compare_emitted
from pipec.backends.fpga.training.run import TrainedRunner, load_training
from pipec.backends.fpga.training.stage import training_designs, training_timing
from pipec.backends.fpga.vitis import add_reports
from pipec.cluster.cluster import Cluster
from pipec.compiler.backend import Backend, Emitted
from pipec.compiler.comparison import SAME_KERNELS, Allowed, Comparison, compare, rounding_tolerance
from pipec.compiler.cycles import StageCycles, TimedCheck
from pipec.compiler.declared import Options, option
from pipec.compiler.inputs import KINDS, draw
from pipec.compiler.job import StageFunction
from pipec.compiler.loaded import Loaded
from pipec.compiler.same_model import check_same_model
from pipec.compiler.stage_timing import device_of
from pipec.compiler.verify import Progress, VerifyReport
from pipec.cost.model import CostModel
from pipec.errors import BackendError, PlanError
from pipec.graph.ir import OutputKind
from pipec.partition.result import CutResult
from pipec.plan.model import Plan, StageTiming
from pipec.plan.weights import all_have_data


@dataclass(frozen=True)
class FpgaOptions(Options):
    """Options of `pipec compile` for boards."""

    precision: str = option(
        "float32",
        "Numbers: float32, bfloat16, float16, ap_fixed<W,I>, int8; then for single layers, as in "
        "'ap_fixed<16,6>; head.* = ap_fixed<24,8>'.",
        explored=True,
    )
    calibrate: str = option(
        RANDOM,
        "Inputs that ranges of values are taken from: random ones like the example inputs, or a "
        ".npz file with an array of frames per input.",
    )
    simulate: bool = option(False, "Simulate cycles, shrink FIFOs to fit them.")


class FpgaBackend(Backend):
    """Stages as dataflows of engines, one per board, in a chain.

    ```text
    stage0_xcvu9p/   src/  HLS C++ and weights      stage.json  engines, FIFOs, cycles, resources
                     tb/   test bench, golden data  Makefile    C simulation with plain g++
    ```

    In training a stage has three such kernels: ``forward``, ``backward``, ``update``
    (`pipec.backends.fpga.training.artifacts`).
    """

    name: ClassVar[str] = "fpga"
    options: ClassVar[type[Options]] = FpgaOptions
    route: ClassVar[str] = "relay"
    fused_attention: ClassVar[bool] = False
    reads: ClassVar[Mapping[str, Any]] = MappingProxyType({"paired": True})
    simulates: ClassVar[bool] = True
    families: ClassVar[frozenset[str]] = frozenset({"fpga"})
    devices: ClassVar[str] = "2xvcu118"

    def check(self, plan: Plan) -> None:
        """See whether every stage can be emitted: its ops, its numbers, its board.

        Raises:
            BackendError: An op has no engine, a stage does not fit its board, or the numbers have
                no C++ type.
        """
        for design in training_designs(plan) if plan.trains else designs_of(plan):
            for fifo in design.streams.values():
                cpp_type(fifo.dtype)

    def stage_seconds(self, plan: Plan) -> tuple[StageTiming, ...]:
        """Predict every stage on its board: the busiest engine's cycles, or its links'."""
        if plan.trains:
            return training_timing(plan)
        return tuple(
            stage_timing(design, device_of(plan, plan.stages[k]), link_behind(plan, k))
            for k, design in enumerate(designs_of(plan))
        )

    def emit(self, plan: Plan, directory: Path) -> None:
        """Write a directory per stage.

        Raises:
            BackendError: The model was built without weights.
        """
        if not all_have_data(plan.graph.weights):
            raise BackendError(
                "weights are part of what is emitted, and the model was built without data",
                where=plan.graph.source.location,
                hint="build the model with its weights, not on the meta device",
            )
        if not plan.trains:
            emit_inference(plan, directory)
        elif not types_of(plan).narrow:
            emit_training(plan, directory)
        else:
            raise BackendError(
                "no C++ is emitted for training in these numbers, which can only be planned with",
                got=plan.options["precision"],
                want="float32",
            )

    def load(self, plan: Plan, directory: Path) -> Emitted:
        """Compile every stage's C simulation.

        Raises:
            BackendError: There is no g++, a file is damaged, or the code does not compile.
        """
        folders = folders_of(plan, directory)
        if plan.trains:
            rounding = rounding_tolerance(plan.graph, SAME_KERNELS)
            return Emitted(load_training(folders), max(MINIMUM, rounding))
        tolerance, bounds = _read_tolerances(plan, folders)
        stages = load_stages(folders)
        for folder in folders:
            audit.check(folder)
        return Emitted(stages, tolerance, bounds, partial(read_kept, directory, plan.graph))

    def compare_training(
        self,
        plan: Plan,
        stages: Sequence[StageFunction],
        reference: Loaded,
        tolerance: float,
        seed: int,
    ) -> list[Comparison]:
        """Summed gradients and two updates of the kernels, against autograd and SGD."""
        assert plan.schedule is not None
        runners = [r for r in stages if isinstance(r, TrainedRunner)]
        count, examples = min(MICROBATCHES, plan.schedule.microbatches), reference.example_inputs
        batches = [draw(reference.graph, examples, seed + k) for k in range(count)]
        return compare_emitted(plan, reference.graph, batches, tolerance, seed, runners)

    def verify_chain(
        self,
        plan: Plan,
        directory: Path,
        reference: Loaded,
        frames: int,
        *,
        seed: int = 0,
        tolerance: float | None = None,
        progress: Progress = lambda _: None,
    ) -> VerifyReport:
        """Stream frames through the C simulations of all stages, joined by named pipes.

        Stages are processes of their own; what leaves the last ones is compared.

        Raises:
            BackendError: The plan trains, or a stage does not compile, or fails.
            PlanError: The plan was made of another model.
        """
        if plan.trains:
            raise BackendError(
                "kernels of training are not joined by pipes", hint="pipec verify without --chain"
            )
        check_same_model(plan, reference.graph)
        emitted, graph = self.load(plan, directory), reference.graph
        bounds = emitted.bounds if tolerance is None else {}
        error = emitted.tolerance if tolerance is None else tolerance
        seeds = range(seed, seed + frames)
        inputs = [
            emitted.inputs(k) or draw(graph, reference.example_inputs, k, KINDS[k % len(KINDS)])
            for k in seeds
        ]
        progress(f"streaming {frames} frames through {len(plan.stages)} stages")
        stages = [s for s in emitted.stages if isinstance(s, CSimulation)]
        found, outputs = stream(stages, plan.channels, inputs), list[Comparison]()
        homes = {o.name: (o.kind, s.index) for s in plan.stages for o in s.graph.outputs
                 if o.kind is not OutputKind.VALUE}  # fmt: skip
        for k, (values, got) in enumerate(zip(inputs, found, strict=True), 1):
            progress(f"running the original model on frame {k} of {frames}")
            torch.default_generator.manual_seed(seed)
            for name, want in reference.original(values).items():
                if name not in got or name not in homes:
                    raise PlanError("no stage yields an output of the model", got=name)
                (kind, stage), by = homes[name], bounds.get(name, error)
                title = f"{name} of frame {k}"
                outputs.append(compare(got[name], want, by, name=title, kind=kind, stage=stage))
        return VerifyReport(error, seed, tuple(outputs))

    def cycles(
        self, plan: Plan, directory: Path, *, together: bool = False
    ) -> Sequence[StageCycles]:
        """Simulate every stage as its ``stage.json`` says, and all boards with their links.

        A kernel without engines (of a stage that only counts batches) has no cycles.

        Raises:
            BackendError: A file is damaged, or the FIFO depths in it deadlock.
        """
        kernels = (read_design(folder) for _, folder in _kernels(plan, directory))
        found = [cycles_of(design) for design in kernels if design.engines]
        if together and plan.placement is not None:
            designs = [read_design(folder) for folder in folders_of(plan, directory)]
            boards = [stage[0] for stage in plan.placement.forward]
            links = [plan.cluster.link(a, b) for a, b in itertools.pairwise(boards)]
            found.append(cycles_of_boards(designs, links))
        return found

    def engines(
        self,
        plan: Plan,
        directory: Path,
        simulated: Sequence[StageCycles],
        reports: Path | None = None,
    ) -> list[dict[str, Any]]:
        """The engines and FIFOs of every kernel as its ``stage.json`` and Vitis HLS say.

        Raises:
            BackendError: There are no reports where they should be, or a file is none.
        """
        records = [(k, read_record(folder)) for k, folder in _kernels(plan, directory)]
        try:
            rows = engines_of(records, simulated)
            found = add_reports(rows, reports or directory)
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            what = "a stage.json is damaged"
            raise BackendError(what, where=directory, got=repr(error)) from error
        if not found and reports is not None:
            wanted = ", ".join(f"{row['name']}_top_csynth.xml" for row in rows)
            raise BackendError("no report of Vitis HLS here", where=reports, want=wanted)
        return rows

    def check_cycles(self, plan: Plan, directory: Path) -> Sequence[TimedCheck]:
        """Run every stage's timed build, bounded at the declared depths, on golden data.

        Raises:
            BackendError: A stage deadlocks at its declared depths, or computes something else.
        """
        return [check_timing(folder) for _, folder in _kernels(plan, directory)]

    def remarks(self, plan: Plan, directory: Path) -> Sequence[str]:
        """What narrow numbers lose, as measured when the stages were written."""
        if plan.trains or not types_of(plan).narrow:
            return ()
        found, precision = accuracy_of(folders_of(plan, directory)), types_of(plan).precision
        if not found:
            return (f"{precision}: what it loses was not measured (no C++ compiler)",)
        bounds = _read_tolerances(plan, folders_of(plan, directory))[1]
        return [
            f"{precision}, ranges from {source_of(plan)}; {found[0].frames} frames in C "
            f"simulation against float32",
            *(f"  stage {a.stage}, {describe(a, bounds[a.value])}" for a in found),
        ]

    def prepare(
        self, settings: Mapping[str, object], example_inputs: Mapping[str, torch.Tensor]
    ) -> dict[str, object]:
        """In narrow numbers the plan remembers where their ranges are taken from.

        Raises:
            BackendError: Frames to calibrate with are given, and nothing is quantised; or there is
                no such precision.
        """
        if parse_types(str(settings["precision"])).narrow:
            return {**settings, "input_ranges": input_ranges(example_inputs)}
        if settings["calibrate"] != RANDOM:
            raise BackendError(
                "--calibrate has no effect on float32",
                got=settings["calibrate"],
                hint="--precision int8, say",
            )
        return {name: value for name, value in settings.items() if name != "calibrate"}

    def cut(self, plan: Plan, count: int, *, free_order: bool) -> CutResult | None:
        """Fold and cut jointly, unless costs were measured or the graph is one of training."""
        devices, costs = plan.cluster.devices[:count], plan.costs
        if costs is None or plan.trains:
            return None
        if any(costs.method.get(d.kind) != FpgaCost.name for d in devices):
            return None
        precision, own = types_of(plan)
        boards = [Board(d, precision, min(count - 1, 2), own) for d in devices]
        links = [plan.cluster.link(k, k + 1) for k in range(count - 1)]
        return joint_cut(plan, boards, links, free_order=free_order)

    def keep_together(self, plan: Plan) -> Iterable[Sequence[str]]:
        """What is one engine, or no link carries."""
        return keep_together(plan.graph, types_of(plan).precision)

    def cost_model(self, cluster: Cluster) -> CostModel:
        """A node's share of the interval of a board to itself."""
        return FpgaCost()


def _read_tolerances(plan: Plan, folders: Sequence[Path]) -> tuple[float, dict[str, Allowed]]:
    """The tolerance in the records of the stages, and that of values in narrow numbers."""
    records = [read_record(folder) for folder in folders]
    bounds = [Bound.of_json(k, b) for k, r in enumerate(records) for b in r.get("bounds", ())]
    tolerance = max(float(record["tolerance"]) for record in records)
    steps = {value: step for r in records for value, step in r.get("steps", {}).items()}
    return tolerance, {
        b.value: Allowed(tolerance_of([b]), b.basis, step=steps.get(b.value, 0.0)) for b in bounds
    }


def _kernels(plan: Plan, directory: Path) -> list[tuple[int, Path]]:
    """Stage and directory of every kernel: one per stage, in training F, B and the update."""
    stages = list(enumerate(folders_of(plan, directory)))
    if not plan.trains:
        return stages
    return [(k, folder / n) for k, folder in stages for n in KERNELS if (folder / n).is_dir()]
