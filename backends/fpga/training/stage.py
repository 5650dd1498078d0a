"""Everything that one stage of a training plan puts on its board, and how long it takes."""

import dataclasses
from dataclasses import dataclass

from pipec.backends.fpga.banks import with_slots
from pipec.backends.fpga.design import StageDesign
from pipec.backends.fpga.designs import board_of, cache_last, link_behind, types_of
from pipec.backends.fpga.engines.network import Network
from pipec.backends.fpga.engines.parts import Memory
from pipec.backends.fpga.memory import allocate, interface, items_of
from pipec.backends.fpga.search import Board, bind_to
from pipec.backends.fpga.timing import stage_timing
from pipec.backends.fpga.training.kernels import Kernels, kernels_on, networks_of
from pipec.backends.fpga.training.movers import SUMS, with_movers
from pipec.backends.fpga.training.phases import Phases, gradient_name, phases_of
from pipec.backends.fpga.training.update import ROW, UPDATED, Slice, layout, update_kernel
from pipec.cluster.device import Device
from pipec.compiler.stage_timing import device_of
from pipec.errors import BackendError, PlanError
from pipec.graph.ir import OutputKind
from pipec.plan.model import Plan, StageTiming
from pipec.runtime.draws import number_draws
from pipec.runtime.program import gradient_of


@dataclass(frozen=True)
class TrainedStage:
    """The kernels of one stage and where its values wait.

    Attributes:
        phases: The graphs.
        kernels: F and B.
        update: The update kernel; None where nothing is trained.
        parameters: The trained parameters as they lie in memory.
        sets: Microbatches in flight.
    """

    phases: Phases
    kernels: Kernels
    update: StageDesign | None
    parameters: tuple[Slice, ...]
    sets: int

    @property
    def designs(self) -> dict[str, StageDesign]:
        """Its kernels by folder: update and saved only where something is trained, or waits."""
        k = self.kernels
        found = {"forward": k.F, "backward": k.B, "update": self.update, "saved": k.saved}
        return {name: design for name, design in found.items() if design is not None}

    @property
    def slot_seconds(self) -> float:
        """Of one microbatch when F and B run at the same time, memory traffic included."""
        return self.kernels.interval / (self.kernels.F.clock_mhz * 1e6)


@cache_last
def make_stages(plan: Plan) -> tuple[TrainedStage, ...]:
    """The stages of a differentiated plan on their boards.

    Stage k of n, from 0, has room for the ``2(n-k)`` microbatches that FBP-AS keeps in flight;
    1F1B-AS keeps ``n-k`` (BaPipe, Zhao et al. 2020, section 3).

    Raises:
        BackendError: An op has no engine, or a stage does not fit its board.
        PlanError: The stages are not differentiated.
    """
    phases, draws = [], number_draws(plan.graph, [s.graph for s in plan.stages])
    for stage, numbers in zip(plan.stages, draws, strict=True):
        if stage.training is None:
            raise PlanError("the stages are not differentiated", want="the pass differentiate")
        phases.append(phases_of(stage.training, numbers))
    if own := types_of(plan).own:
        raise BackendError("single layers have no type of their own in training", got=own[0][0])
    networks = networks_of(phases, types_of(plan).precision)
    count = len(phases)
    return tuple(
        make_stage(phases[k], networks[k], board_of(plan, k), f"stage{k}", 2 * (count - k))
        for k in range(count)
    )


def make_stage(
    phases: Phases, networks: tuple[Network, Network], board: Board, name: str, sets: int
) -> TrainedStage:
    """One stage on its board, saved values held for ``sets`` microbatches in flight.

    Raises:
        BackendError: The stage does not fit the board.
    """
    parameters = layout(networks[1], phases.trained)
    if not parameters:
        kernels = kernels_on(networks, board, name, phases, sets)
        return TrainedStage(phases, kernels, None, (), sets)
    count, clock = ROW * (parameters[-1].first + parameters[-1].rows), board.fabric.clock_hz
    kernel = with_movers(update_kernel(count, board.limits.ddr / clock), UPDATED)
    kernel = bind_to(kernel, board, f"{name}_update")
    moved = with_slots(kernel, board.device)
    kernel = kernel if isinstance(moved, tuple) else moved
    kinds = {item: Memory.LUT for e in kernel.engines for item in items_of(e)}  # it is small
    update = allocate(kernel, kinds, interface(kernel))
    beside = board.beside(update.resources)
    beside = dataclasses.replace(beside, ported=len({p.bank for p in kernel.ddr}))
    kernels = kernels_on(networks, beside, name, phases, sets)
    banks = {p.group: p.bank for p in kernels.B.ddr if p.group == SUMS}
    slotted = with_slots(update, board.device, banks)
    if isinstance(slotted, tuple):
        raise BackendError("the board's memory has no room for the update's traffic", where=name,
                           got="; ".join(slotted))  # fmt: skip
    return TrainedStage(phases, kernels, slotted, parameters, sets)


def training_timing(plan: Plan) -> tuple[StageTiming, ...]:
    """Every stage: F alone, B alone, both at the same time, one update."""
    return tuple(_timing(plan, k, stage) for k, stage in enumerate(make_stages(plan)))


def _timing(plan: Plan, k: int, stage: TrainedStage) -> StageTiming:
    device, kernels = device_of(plan, plan.stages[k]), stage.kernels
    forward, backward = (
        stage_timing(
            dataclasses.replace(
                design, outputs=tuple(p for p in design.outputs if p.value in sent)
            ),
            device,
            link_behind(plan, at),
        )
        for design, sent, at in (
            (kernels.F, {o.name for o in stage.phases.F.outputs_of(OutputKind.VALUE)}, k),
            (kernels.B, {o.name for o in stage.phases.B.outputs_of(OutputKind.GRADIENT)}, k - 1),
        )
    )
    known = len(gradient_name(""))
    back = ((gradient_of(value[known:]), seconds) for value, seconds in backward.link_seconds)
    slower = max(forward, backward, key=lambda t: t.interval_seconds)
    in_memory = stage.slot_seconds > slower.interval_seconds
    bottleneck = "values in memory between F, B and the update" if in_memory else slower.bottleneck
    return StageTiming(
        interval_seconds=forward.interval_seconds,
        latency_seconds=forward.latency_seconds,
        bottleneck=bottleneck,
        memory_bytes=forward.memory_bytes + backward.memory_bytes,
        backward_seconds=backward.interval_seconds,
        together_seconds=max(stage.slot_seconds, slower.interval_seconds),
        step_seconds=0.0 if stage.update is None else stage.update.interval_seconds,
        notes=(*forward.notes, *backward.notes, *_notes(stage, device)),
        link_seconds=(*forward.link_seconds, *back),
    )


def _notes(stage: TrainedStage, device: Device) -> tuple[str, ...]:
    """Notes on the values that move through memory."""
    features = stage.kernels.features
    spilled = [f for f in features if not f.on_chip]
    moved = sum(p.bytes_per_frame for k in (stage.kernels.F, stage.kernels.B) for p in k.ddr
                if p.carries is not None)  # fmt: skip
    if not moved:
        return ()
    return (
        f"{len(spilled)} of {len(features)} saved values wait in DDR; with the sums of gradients "
        f"{moved / 1e6:.1f} MB per microbatch, {moved / stage.slot_seconds / 1e9:.1f} of "
        f"{device.memory_rate / 1e9:.1f} GB/s",
    )


def training_designs(plan: Plan) -> tuple[StageDesign, ...]:
    """All kernels of all stages."""
    return tuple(d for stage in make_stages(plan) for d in stage.designs.values())
