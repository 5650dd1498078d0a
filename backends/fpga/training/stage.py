"""Everything that one stage of a training plan puts on its board, and how long it takes."""

import dataclasses
from dataclasses import dataclass

from pipec.backends.fpga.design import Memory, Resources, StageDesign
from pipec.backends.fpga.designs import device_of, precision_of
from pipec.backends.fpga.lowering.network import Network
from pipec.backends.fpga.memory import items_of, placed
from pipec.backends.fpga.search import Board
from pipec.backends.fpga.timing import stage_timing
from pipec.backends.fpga.training.features import Feature, in_flight, placed_features, traffic
from pipec.backends.fpga.training.kernels import Kernels, kernels_on, networks_of
from pipec.backends.fpga.training.phases import Phases, gradient_name, phases_of
from pipec.backends.fpga.training.update import Sgd, update_kernel, update_seconds
from pipec.cluster.device import Device
from pipec.errors import PlanError
from pipec.graph.ir import Graph, InputKind, OutputKind, nbytes, tensor
from pipec.plan.model import Plan, StageTiming


@dataclass(frozen=True)
class TrainedStage:
    """The kernels of one stage and where its saved values wait.

    Attributes:
        phases: The graphs.
        kernels: F and B.
        update: The update kernel; None where nothing is trained.
        parameters: Names of the trained parameters, in the update's order.
        count: Trained numbers.
        features: Saved values.
        slot_seconds: Of one microbatch when F and B run at the same time.
    """

    phases: Phases
    kernels: Kernels
    update: StageDesign | None
    parameters: tuple[str, ...]
    count: int
    features: tuple[Feature, ...]
    slot_seconds: float


_last: list[tuple[Plan, tuple[TrainedStage, ...]]] = []


def trained_stages(plan: Plan) -> tuple[TrainedStage, ...]:
    """The stages of a differentiated plan on their boards.

    Raises:
        BackendError: An op has no engine, or a stage does not fit its board.
        PlanError: The stages are not differentiated.
    """
    for known, stages in _last:
        same = known.stages is plan.stages and known.placement == plan.placement
        if same and known.cluster == plan.cluster and known.options == plan.options:
            return stages
    phases = []
    for stage in plan.stages:
        if stage.training is None:
            raise PlanError("the stages are not differentiated", want="the pass differentiate")
        phases.append(phases_of(stage.training))
    networks = networks_of(phases, precision_of(plan))
    found = tuple(_stage(plan, k, phases[k], networks[k]) for k in range(len(phases)))
    _last[:] = [(plan, found)]
    return found


def _stage(plan: Plan, k: int, phases: Phases, networks: tuple[Network, Network]) -> TrainedStage:
    board = Board(device_of(plan, k), precision_of(plan))
    name, clock = f"stage{k}", board.fabric.clock_hz
    parameters, count = _trained(phases.B)
    update = None
    if parameters:
        made = update_kernel(count, board.limits.ddr / clock, Sgd(), f"{name}_update")
        update = on_board(made, board)
        board = _less(board, update.resources)
    kernels = kernels_on(networks, board, name, phases.saved)
    limit, used = board.limits, kernels.F.resources + kernels.B.resources
    room = Resources(bram36=max(limit.bram36 - used.bram36, 0), uram=max(limit.uram - used.uram, 0))
    sets = in_flight(k, len(plan.stages))
    features = placed_features(_sizes(phases.B), sets, room)
    moved = traffic(features) / (limit.ddr - used.ddr)
    slot = max(kernels.interval / clock, moved)
    return TrainedStage(phases, kernels, update, parameters, count, features, slot)


def _trained(backward: Graph) -> tuple[tuple[str, ...], int]:
    outputs, nodes = backward.outputs_of(OutputKind.WEIGHT_GRADIENT), backward.nodes
    names = tuple(o.name.removeprefix(gradient_name("")) for o in outputs)
    return names, sum(tensor(nodes[o.node]).numel() for o in outputs)


def _sizes(backward: Graph) -> dict[str, int]:
    nodes = backward.nodes
    return {i.name: nbytes(nodes[i.node]) for i in backward.inputs_of(InputKind.SAVED)}


def on_board(design: StageDesign, board: Board) -> StageDesign:
    """A small kernel placed on a board: device, clock, resources; its memories are shallow.

    Raises:
        BackendError: It does not fit.
    """
    fabric = board.fabric
    named = dataclasses.replace(
        design,
        device=board.device.kind,
        part=fabric.part,
        clock_mhz=fabric.clock_hz / 1e6,
        limits=board.limits,
    )
    items = [item for e in named.engines for item in items_of(e)]
    return placed(named, [Memory.LUT] * len(items), items)


def _less(board: Board, used: Resources) -> Board:
    """The board with what a kernel takes gone."""
    fabric = board.fabric
    left = dataclasses.replace(
        fabric,
        dsp=int(fabric.dsp - used.dsp / fabric.logic_limit),
        lut=int(fabric.lut - used.lut / fabric.logic_limit),
    )
    return dataclasses.replace(board, device=dataclasses.replace(board.device, fpga=left))


def training_timing(plan: Plan) -> tuple[StageTiming, ...]:
    """Every stage: F alone, B alone, both at the same time, one update."""
    return tuple(_timing(plan, k, stage) for k, stage in enumerate(trained_stages(plan)))


def _timing(plan: Plan, k: int, stage: TrainedStage) -> StageTiming:
    device, kernels = device_of(plan, k), stage.kernels
    forward, backward = (
        stage_timing(_sending(design, graph, kind), device)
        for design, graph, kind in (
            (kernels.F, stage.phases.F, OutputKind.VALUE),
            (kernels.B, stage.phases.B, OutputKind.GRADIENT),
        )
    )
    slower = max(forward, backward, key=lambda t: t.interval_seconds)
    slot, bottleneck = stage.slot_seconds, slower.bottleneck
    if slot > kernels.interval / (kernels.F.clock_mhz * 1e6):
        bottleneck = "saved values to and from DDR"
    if slower.interval_seconds > slot:
        slot, bottleneck = slower.interval_seconds, slower.bottleneck
    update = 0.0
    if stage.update is not None:
        update = update_seconds(stage.count, stage.update, device.memory_bandwidth)
    return StageTiming(
        interval_seconds=forward.interval_seconds,
        latency_seconds=forward.latency_seconds,
        bottleneck=bottleneck,
        memory_bytes=forward.memory_bytes + backward.memory_bytes,
        backward_seconds=backward.interval_seconds,
        together_seconds=slot,
        step_seconds=update,
        notes=(*forward.notes, *backward.notes, *_notes(stage, device)),
    )


def _sending(design: StageDesign, graph: Graph, kind: OutputKind) -> StageDesign:
    """A kernel with the outputs that cross the link; the others stay on the board."""
    sent = {o.name for o in graph.outputs_of(kind)}
    return dataclasses.replace(design, outputs=tuple(p for p in design.outputs if p.value in sent))


def _notes(stage: TrainedStage, device: Device) -> tuple[str, ...]:
    spilled = [f for f in stage.features if f.memory is Memory.DDR]
    if not spilled:
        return ()
    moved = traffic(stage.features)
    return (
        f"{len(spilled)} of {len(stage.features)} saved values wait in DDR: {moved / 1e6:.1f} MB "
        f"per microbatch, {moved / stage.slot_seconds / 1e9:.1f} of "
        f"{device.memory_bandwidth / 1e9:.1f} GB/s",
    )


def training_designs(plan: Plan) -> tuple[StageDesign, ...]:
    """All kernels of all stages."""
    return tuple(
        design
        for stage in trained_stages(plan)
        for design in (stage.kernels.F, stage.kernels.B, stage.update)
        if design is not None
    )
