"""``--target fpga``: HLS C++ per stage, cycles from its engines, verified by C simulation."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import torch

from pipec.backends.fpga import audit
from pipec.backends.fpga.boards import cycles_of_boards
from pipec.backends.fpga.cost import FpgaCost
from pipec.backends.fpga.csim.accuracy import told
from pipec.backends.fpga.csim.chain import stream
from pipec.backends.fpga.csim.run import load_stages
from pipec.backends.fpga.csim.timed import check_timing
from pipec.backends.fpga.cutting.joint import joint_cut
from pipec.backends.fpga.designs import designs_of, device_of, lowered, networks, precision_of
from pipec.backends.fpga.emit.cpp import cpp_type
from pipec.backends.fpga.emit.stage import stage_directory
from pipec.backends.fpga.inference import accuracy_of, emit_inference
from pipec.backends.fpga.numbers import MINIMUM
from pipec.backends.fpga.quantise.bound import Bound
from pipec.backends.fpga.quantise.plan import error_bounds, tolerance_of
from pipec.backends.fpga.quantise.samples import kept_frame, source_of
from pipec.backends.fpga.search import Board
from pipec.backends.fpga.stage_cycles import cycles_of
from pipec.backends.fpga.stagejson import read_record
from pipec.backends.fpga.timing import stage_timing
from pipec.backends.fpga.training.artifacts import KERNELS, emit_training
from pipec.backends.fpga.training.run import load_training
from pipec.backends.fpga.training.stage import training_designs, training_timing
from pipec.cluster.cluster import Cluster
from pipec.compiler.backend import Backend, StageRunner
from pipec.compiler.comparison import Allowed
from pipec.compiler.cycles import StageCycles, TimedCheck
from pipec.cost.model import CostModel
from pipec.errors import BackendError
from pipec.graph.ir import OutputKind
from pipec.partition.result import CutResult
from pipec.plan.model import Plan, StageTiming
from pipec.plan.weights import all_have_data


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
    route: ClassVar[str] = "relay"
    fused_attention: ClassVar[bool] = False
    devices: ClassVar[str] = "2xvcu118"

    def check(self, plan: Plan) -> None:
        """See whether every stage can be emitted: its ops, its numbers, its board.

        Raises:
            BackendError: An op has no engine, a stage does not fit its board, or the numbers have
                no C++ type.
        """
        designs = designs_of(plan) if not plan.trains else training_designs(plan)
        for design in designs:
            for fifo in design.streams.values():
                cpp_type(fifo.dtype)

    def timing(self, plan: Plan) -> tuple[StageTiming, ...]:
        """Predict every stage on its board: the busiest engine's cycles, or its links'."""
        if plan.trains:
            return training_timing(plan)
        return tuple(
            stage_timing(design, device_of(plan, k), _link_rate(plan, k))
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
        precision = precision_of(plan)
        if not plan.trains:
            emit_inference(plan, directory, _bounds(plan))
        elif precision == "float32":
            emit_training(plan, directory)
        else:
            raise BackendError(
                "no C++ is emitted for training in these numbers, which can only be planned with",
                got=precision,
                want="float32",
            )

    def load(self, plan: Plan, directory: Path) -> Sequence[StageRunner]:
        """Compile every stage's C simulation.

        Raises:
            BackendError: There is no g++, a file is damaged, or the code does not compile.
        """
        folders = _folders(plan, directory)
        if plan.trains:
            return load_training(folders)
        runners = load_stages(folders)
        for folder in folders:
            audit.check(folder)
        return runners

    def stream(
        self, plan: Plan, directory: Path, frames: Sequence[Mapping[str, torch.Tensor]]
    ) -> Sequence[dict[str, torch.Tensor]]:
        """The C simulations of all stages as processes, joined by named pipes.

        Raises:
            BackendError: The plan trains, or a stage does not compile, or fails.
        """
        if plan.trains:
            raise BackendError(
                "kernels of training are not joined by pipes", hint="pipec verify without --chain"
            )
        return stream(load_stages(_folders(plan, directory)), plan.channels, frames)

    def cycles(
        self, plan: Plan, directory: Path, *, together: bool = False
    ) -> Sequence[StageCycles]:
        """Simulate every stage as its ``stage.json`` says, and all boards with their links.

        Raises:
            BackendError: A file is damaged, or the FIFO depths in it deadlock.
        """
        found = [cycles_of(read_record(folder)) for folder in _kernels(plan, directory)]
        if together and plan.placement is not None:
            records = [read_record(folder) for folder in _folders(plan, directory)]
            boards = [stage[0] for stage in plan.placement.forward]
            links = [plan.cluster.link(a, b) for a, b in itertools.pairwise(boards)]
            found.append(cycles_of_boards(records, links))
        return found

    def check_cycles(self, plan: Plan, directory: Path) -> Sequence[TimedCheck]:
        """Run every stage's timed build, bounded at the declared depths, on golden data.

        Raises:
            BackendError: A stage deadlocks at its declared depths, or computes something else.
        """
        return [check_timing(folder) for folder in _kernels(plan, directory)]

    def tolerance(self, plan: Plan) -> float:
        """What the element type explains; the test benches use it too.

        Raises:
            BackendError: Weights or samples, which it depends on, are not there.
        """
        return tolerance_of(_bounds(plan))

    def emitted_tolerance(self, plan: Plan, directory: Path) -> float:
        """What the stages themselves say."""
        if plan.trains or precision_of(plan) == "float32":
            return MINIMUM
        return max(float(read_record(f)["tolerance"]) for f in _folders(plan, directory))

    def emitted_bounds(self, plan: Plan, directory: Path) -> Mapping[str, Allowed]:
        """Of every floating-point value that leaves a stage in narrow numbers."""
        if plan.trains or precision_of(plan) == "float32":
            return {}
        return {
            b.value: Allowed(tolerance_of([b]), b.basis)
            for k, folder in enumerate(_folders(plan, directory))
            for b in (Bound.of_json(k, item) for item in read_record(folder).get("bounds", ()))
        }

    def sample_inputs(
        self, plan: Plan, directory: Path, seed: int
    ) -> dict[str, torch.Tensor] | None:
        """One of the calibration file's frames that the scales were not chosen on."""
        return kept_frame(directory, seed)

    def remarks(self, plan: Plan, directory: Path) -> Sequence[str]:
        """What narrow numbers lose, as measured when the stages were written."""
        if plan.trains or precision_of(plan) == "float32":
            return ()
        found = accuracy_of(_folders(plan, directory))
        if not found:
            return (f"{precision_of(plan)}: what it loses was not measured (no C++ compiler)",)
        bounds = self.emitted_bounds(plan, directory)
        return [
            f"{precision_of(plan)}, ranges from {source_of(plan)}; {found[0].frames} frames in C "
            f"simulation against float32",
            *(f"  stage {a.stage}, {told(a, bounds[a.value])}" for a in found),
        ]

    def cut(self, plan: Plan, count: int, *, free_order: bool) -> CutResult | None:
        """Fold and cut jointly, unless costs were measured or the graph is one of training."""
        devices, costs = plan.cluster.devices[:count], plan.costs
        if costs is None or plan.graph.outputs_of(OutputKind.LOSS):
            return None
        if any(costs.method.get(d.kind) != FpgaCost.name for d in devices):
            return None
        boards = [Board(device, precision_of(plan)) for device in devices]
        links = [plan.cluster.link(k, k + 1).bytes_per_second for k in range(count - 1)]
        return joint_cut(plan.graph, costs, boards, links, free_order=free_order)

    def cost_model(self, cluster: Cluster) -> CostModel | None:
        """A node's share of the interval of a board to itself."""
        return FpgaCost(boards=cluster.size)


def _bounds(plan: Plan) -> list[Bound]:
    """Of what leaves the stages in narrow numbers; none of float32."""
    precision = precision_of(plan)
    if plan.trains or precision == "float32":
        return []
    return error_bounds(plan, lowered(plan), networks(plan), precision)


def _folders(plan: Plan, directory: Path) -> list[Path]:
    """Where every stage was written."""
    folders = []
    for stage in plan.stages:
        fabric = device_of(plan, stage.index).fpga
        part = fabric.part if fabric is not None else ""
        folders.append(directory / stage_directory(f"stage{stage.index}", part))
    return folders


def _kernels(plan: Plan, directory: Path) -> list[Path]:
    """The directory of every kernel: one per stage, in training F, B and the update."""
    folders = _folders(plan, directory)
    if not plan.trains:
        return folders
    return [f / name for f in folders for name in KERNELS if (f / name).is_dir()]


def _link_rate(plan: Plan, stage: int) -> float | None:
    """Payload bytes per second of the link to the next stage."""
    if plan.placement is None or stage + 1 >= len(plan.placement.forward):
        return None
    here, there = (plan.placement.forward[k][0] for k in (stage, stage + 1))
    return None if here == there else plan.cluster.link(here, there).bytes_per_second
