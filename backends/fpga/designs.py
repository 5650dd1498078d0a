"""The designs of all stages of a plan: lowered in order, each folded onto its own board."""

import difflib
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import TypeVar

from pipec.backends.fpga.banks import memory_ports
from pipec.backends.fpga.cpp import identifier
from pipec.backends.fpga.cutting.joint import METHOD
from pipec.backends.fpga.cycles import shrink_fifos
from pipec.backends.fpga.demand import Shortage
from pipec.backends.fpga.design import StageDesign
from pipec.backends.fpga.engines.network import Network
from pipec.backends.fpga.fifo import join_fifos
from pipec.backends.fpga.lowering.lower import lower
from pipec.backends.fpga.lowering.types import OwnTypes, Types, forms_of, own_type, parse_types
from pipec.backends.fpga.memory import Item
from pipec.backends.fpga.numbers import Int8
from pipec.backends.fpga.quantise.formats import formats_of, observe
from pipec.backends.fpga.quantise.layers import quantise
from pipec.backends.fpga.quantise.samples import RANDOM, calibration_samples
from pipec.backends.fpga.search import Board, Search, deep_fifos, fit_design, port_kernels
from pipec.cluster.cluster import Link
from pipec.compiler.stage_timing import device_of
from pipec.errors import BackendError
from pipec.graph.ir import origin
from pipec.graph.lower import lower as without_transfers
from pipec.plan.model import Plan, Stage
from pipec.plan.weights import all_have_data

T = TypeVar("T")
_ROUNDS = 6
"""Times that stages may be folded anew because their FIFOs became deeper."""


def cache_last(make: Callable[[Plan], T]) -> Callable[[Plan], T]:
    """A function of a plan's stages that gives its last result while these and their boards stay.

    A plan goes through check, timing and emission with the same stages.
    """
    last: list[tuple[tuple[Stage, ...], object, T]] = []

    @wraps(make)
    def cached(plan: Plan) -> T:
        facts = (plan.placement, plan.cluster, plan.options)
        if not last or last[0][0] is not plan.stages or last[0][1] != facts:
            last[:] = [(plan.stages, facts, make(plan))]
        return last[0][2]

    return cached


def types_of(plan: Plan) -> Types:
    """Element types of the streams, as the plan's options say.

    Raises:
        BackendError: No engine computes in one, or in it beside the others.
    """
    return parse_types(str(plan.options.get("precision", "float32")))


def folders_of(plan: Plan, directory: Path) -> list[Path]:
    """Where every stage is written, a folder named by stage and chip: ``stage0_xcvu9p``."""
    found = []
    for k in range(len(plan.stages)):
        fabric = device_of(plan, plan.stages[k]).fpga
        chip = fabric.part.partition("-")[0] if fabric is not None else ""
        found.append(directory / identifier(f"stage{k}_{chip}" if chip else f"stage{k}"))
    return found


def link_behind(plan: Plan, stage: int) -> Link | None:
    """The link between a stage and the next; None where there is none."""
    if plan.placement is None or not 0 <= stage < len(plan.placement.forward) - 1:
        return None
    here, there = (plan.placement.forward[k][0] for k in (stage, stage + 1))
    return None if here == there else plan.cluster.link(here, there)


def board_of(plan: Plan, stage: int) -> Board:
    """The board of a stage as the plan uses it; one that holds the whole model has no links."""
    precision, own = types_of(plan)
    links = (stage > 0) + (stage < len(plan.stages) - 1)
    return Board(device_of(plan, plan.stages[stage]), precision, links, own)


@cache_last
def networks(plan: Plan) -> tuple[Network, ...]:
    """The networks of all stages, of 8-bit integers calibrated if the weights have data.

    Raises:
        BackendError: As `lower_stages` does; or a layer can't compute in 8-bit integers.
    """
    found = lower_stages(plan)
    if types_of(plan).precision == "int8" and all_have_data(plan.graph.weights):
        drawn = plan.options.get("calibrate", RANDOM) == RANDOM
        formats = formats_of(found, observe(found, calibration_samples(plan), drawn=drawn))
        return tuple(map(quantise, found, formats))
    return found


def lower_stages(plan: Plan) -> tuple[Network, ...]:
    """The networks of all stages; a value keeps the axis order in which its producer sends it.

    Raises:
        BackendError: Ops that no engine computes; those of all stages are listed.
    """
    orders, formats = dict[str, tuple[int, ...]](), dict[str, Int8]()
    (precision, own), types = types_of(plan), dict[str, str]()
    _check_names(plan, own)
    found, problems = list[Network](), list[BackendError]()
    for stage in plan.stages:
        try:
            graph = without_transfers(stage.graph).graph
            memory = memory_ports(device_of(plan, stage))
            pace = _pace(plan, stage.index, bound=True)
            network = lower(
                graph, precision, orders, pace, memory, formats=formats, own=own, types=types
            )
        except BackendError as error:
            problems.append(error)
            continue
        found.append(network)
        orders |= {port.value: port.order for port in network.outputs}
        layers = {layer.name: layer for layer in network.layers}
        for port in network.outputs:
            if len(forms := forms_of(port.use.edge, layers, network.named)) == 1:
                formats[port.value] = forms.pop()
        types |= {port.value: port.use.dtype for port in network.outputs}
    if len(problems) == 1:
        raise problems[0]
    if problems:
        raise BackendError(
            f"{len(problems)} stages have nodes without an FPGA engine",
            got="".join(str(p.got) for p in problems),
            hint=problems[0].hint,
        )
    return tuple(found)


def _check_names(plan: Plan, own: OwnTypes) -> None:
    """Refuse a pattern that names nothing."""
    for pattern, dtype in own:
        if not any(own_type(node, [(pattern, dtype)]) for node in plan.graph.calls):
            places = sorted({origin(node).name for node in plan.graph.calls} - {""})
            near = difflib.get_close_matches(pattern, places, n=3, cutoff=0.4) or places[:3]
            raise BackendError(
                "no layer has this name",
                where="--precision",
                got=pattern,
                want="a module or node, such as " + ", ".join(near),
            )


@cache_last
def designs_of(plan: Plan) -> tuple[StageDesign, ...]:
    """The design of every stage on its board, FIFOs deep enough to run behind one another.

    Where the deeper FIFOs of a stage do not fit its board, the stage is folded anew with room
    reserved for them.

    Raises:
        BackendError: An op has no engine, a device is no FPGA, or a stage does not fit.
    """
    nets, simulate, late = networks(plan), bool(plan.options.get("simulate", False)), list[int]()
    designs = [_design(plan, k, network) for k, network in enumerate(nets)]
    for _ in range(_ROUNDS):
        deep = join_fifos([shrink_fifos(design) if simulate else design for design in designs])
        counted = [
            d if d is designs[k] else fit_design(d, board_of(plan, k), deep_fifos(d))
            for k, d in enumerate(deep)
        ]
        late = [k for k, d in enumerate(counted) if isinstance(d, Shortage)]
        if not late:
            return tuple(d for d in counted if not isinstance(d, Shortage))
        for k in late:
            designs[k] = _design(plan, k, nets[k], deep_fifos(deep[k]))
    raise BackendError(
        "the FIFOs that let the stages run behind one another do not fit their boards",
        got=", ".join(designs[k].name for k in late),
        hint="use larger boards, or another number of stages",
    )


def _design(plan: Plan, stage: int, network: Network, reserved: Sequence[Item] = ()) -> StageDesign:
    """The design of one stage, no faster than the interval that the plan was cut for."""
    board = left_of(plan, stage, network)
    return Search(network, board, f"stage{stage}", reserved).best(_pace(plan, stage))


def left_of(plan: Plan, stage: int, network: Network) -> Board:
    """The board of a stage less the kernels at its ports."""
    board, ends = board_of(plan, stage), without_transfers(plan.stages[stage].graph)
    crossing, platform = {t.value for t in (*ends.receives, *ends.sends)}, board.fabric.has_platform
    ports = network.inputs, network.outputs
    return board.beside(port_kernels(ports, crossing, platform=platform))


def _pace(plan: Plan, stage: int, *, bound: bool = False) -> int:
    """Cycles per frame that the plan was cut for, or their bound; 0 if it was cut otherwise."""
    cut, fabric = plan.partition, device_of(plan, plan.stages[stage]).fpga
    if cut is None or cut.method != METHOD or fabric is None:
        return 0
    return int((cut.lower_bound if bound else cut.max_load) * fabric.clock_hz)
