"""The two kernels of a stage on one board: F and B folded together, then told apart.

Both stand on the board at once, so they are one network of engines to the search: every engine of
either keeps one interval T, and the least T at which all of them fit is the best division of the
board between forward and backward for schedules that run both at the same time (BaPipe's FBP-AS).
F then takes about a third of the multipliers, B, with two products for each of F's, the rest.
What memory moves meanwhile (saved values, gradient sums) has time slots of its own, and counts for
the interval like an engine.
"""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipec.backends.fpga.assemble import wire_lanes
from pipec.backends.fpga.design import Engine, Resources, StageDesign
from pipec.backends.fpga.fifo import MIN_DEPTH, busiest, sized
from pipec.backends.fpga.flow import schedule
from pipec.backends.fpga.lowering.layers import Layer, Use
from pipec.backends.fpga.lowering.lower import lower
from pipec.backends.fpga.lowering.network import NetPort, Network
from pipec.backends.fpga.memory import Item
from pipec.backends.fpga.resources import logic
from pipec.backends.fpga.search import Board, best_design, deep_fifos, laid_out
from pipec.backends.fpga.training.features import Feature, in_ddr, memories_of, placed_features
from pipec.backends.fpga.training.movers import Place, gradient_sum, ring, with_movers
from pipec.backends.fpga.training.nests import Accumulate, Mover
from pipec.backends.fpga.training.phases import Phases, gradient_name
from pipec.backends.fpga.training.saved import logic_between, saved_kernel
from pipec.backends.fpga.training.slots import memory_interval, with_slots
from pipec.backends.fpga.training.waiting import may_wait, with_fifos, with_rings
from pipec.errors import BackendError
from pipec.graph.ir import Graph, OutputKind

PREFIX = {"F": "f_", "B": "b_"}
"""What the names of a phase's engines begin with."""


@dataclass(frozen=True)
class Kernels:
    """The kernels of one stage.

    Attributes:
        F: Forward.
        B: Backward, weight gradients included.
        interval: Cycles per microbatch when both run at the same time.
        features: Saved values and their places.
        saved: Where those wait that stay on chip; None if none does.
    """

    F: StageDesign
    B: StageDesign
    interval: int
    features: tuple[Feature, ...]
    saved: StageDesign | None


def networks_of(
    phases: Sequence[Phases], precision: str = "float32"
) -> tuple[tuple[Network, Network], ...]:
    """The networks of F and B of every stage, names prefixed.

    A value keeps the axis order in which its producer sends it: values go down the pipeline,
    gradients come up it, saved values stay in their stage.

    Args:
        phases: The graphs, stage by stage.
        precision: Element type.

    Raises:
        BackendError: Ops that no engine computes.
    """
    sent: dict[str, tuple[int, ...]] = {}
    forward = []
    for p in phases:
        forward.append(lower(p.F, precision, sent))
        sent |= _orders(forward[-1], p.F, OutputKind.VALUE)
    found = []
    for p, f in zip(reversed(phases), reversed(forward), strict=True):
        arriving = {port.value: port.order for port in (*f.inputs, *f.outputs)}
        b = lower(p.B, precision, {**sent, **arriving})
        sent |= _orders(b, p.B, OutputKind.GRADIENT)
        found.append((prefixed(f, PREFIX["F"]), prefixed(b, PREFIX["B"])))
    return tuple(reversed(found))


def _orders(network: Network, graph: Graph, kind: OutputKind) -> dict[str, tuple[int, ...]]:
    names = {o.name for o in graph.outputs_of(kind)}
    return {port.value: port.order for port in network.outputs if port.value in names}


def prefixed(network: Network, prefix: str) -> Network:
    """The network with a prefix to the names of all layers and edges."""

    def use(u: Use) -> Use:
        return dataclasses.replace(u, edge=prefix + u.edge)

    def layer(y: Layer) -> Layer:
        return dataclasses.replace(y, name=prefix + y.name, inputs=tuple(map(use, y.inputs)))

    def port(p: NetPort) -> NetPort:
        return dataclasses.replace(p, node=prefix + p.node, use=use(p.use))

    return Network(
        tuple(map(layer, network.layers)),
        tuple(map(port, network.inputs)),
        tuple(map(port, network.outputs)),
    )


_ROUNDS = 6
_GROWTH = 1.05
"""How much slower the next round is where what is added to the engines did not fit. The last round
keeps no saved value on chip."""
_HALVINGS = 4
_NEAR = 1.03
"""How often, and until when, the interval of engines and that of memory are brought together."""


def kernels_on(
    networks: tuple[Network, Network], board: Board, name: str, phases: Phases, sets: int
) -> Kernels:
    """F and B folded onto one board such that both keep the least interval.

    Args:
        networks: Of F and B (`networks_of`).
        board: Where.
        name: Of the stage.
        phases: Their graphs.
        sets: Microbatches in flight, whose saved values are held.

    Raises:
        BackendError: They do not fit.
    """
    layers, inputs, outputs = (
        tuple(x for n in networks for x in getattr(n, field)) for field in _FIELDS
    )
    sums = {gradient_name(n): gradient_sum(n) for n in phases.trained}
    task = _Task(Network(layers, inputs, outputs), board, name, phases.saved, sets, sums)
    lacking, start, growth = _Lacking(_adding(networks[1], sums, board)), 0, _GROWTH
    for k in range(_ROUNDS):
        share = 1.0 - k / (_ROUNDS - 1)
        folded, found = task.attempt(start, lacking, share)
        if isinstance(found, Kernels):
            return _balanced(task, folded, found, lacking, share)
        # a slower design may need none of these FIFOs, nor one whose memory keeps up with engines
        known = k > 0 and found.interval <= _NEAR * folded
        lacking = found if known else dataclasses.replace(found, fifos=())
        start = round(max(start, folded, lacking.interval / growth) * growth)
        growth = growth**1.5
    raise BackendError(
        "the kernels of a stage and what moves their values do not fit the board together",
        where=name,
        hint="use more boards, larger ones, or smaller microbatches",
    )


@dataclass(frozen=True)
class _Lacking:
    """What kernels need besides engines, where both together did not fit.

    Attributes:
        movers: What moves values takes.
        interval: What memory keeps.
        fifos: Deep FIFOs, as deep as movers make them.
    """

    movers: Resources
    interval: int = 0
    fifos: tuple[Item, ...] = ()


def _balanced(
    task: "_Task", folded: int, found: Kernels, lacking: _Lacking, share: float
) -> Kernels:
    """The fastest kernels that are found where memory is slower than engines.

    Engines that need not be so fast leave more of the memory's time to values that move.
    """
    low = folded
    for _ in range(_HALVINGS):
        if found.interval <= _NEAR * low:
            break
        middle = round(math.sqrt(low * found.interval))
        _, other = task.attempt(middle, lacking, share)
        if isinstance(other, Kernels) and other.interval < found.interval:
            found = other
        low = middle
    return found


@dataclass(frozen=True)
class _Task:
    """What is to be put on a board."""

    both: Network
    board: Board
    name: str
    saved: tuple[str, ...]
    sets: int
    sums: Mapping[str, Place]

    def attempt(
        self, start: int, lacking: _Lacking, share: float
    ) -> tuple[int, Kernels | _Lacking]:
        """Kernels no faster than an interval.

        Args:
            start: The interval.
            lacking: Room is kept for it.
            share: Of the memory that engines leave, for saved values.

        Returns:
            The interval of the engines, and what `_complete` says.
        """
        board, fifos = without(self.board, lacking.movers), lacking.fifos
        whole = best_design(self.both, board, self.name, start, fifos, may_wait, self.saved)
        leaving = {p.value: whole.streams[p.stream] for p in whole.outputs}
        room = _room(whole, self.board, share)
        features = placed_features({v: leaving[v] for v in self.saved}, self.sets, room)
        rings = {f.value: ring(f.value, self.sets) for f in in_ddr(features)}
        found = _complete(_unsized(whole), {**self.sums, **rings}, features, self.board)
        if not isinstance(found, StageDesign):
            return whole.interval, found
        forward, backward = (
            _part(found, f"{self.name}_{suffix}", PREFIX[phase])
            for phase, suffix in (("F", "forward"), ("B", "backward"))
        )
        kept = saved_kernel(forward, features, f"{self.name}_saved")
        return whole.interval, Kernels(forward, backward, found.interval, features, kept)


def _adding(backward: Network, sums: Mapping[str, Place], board: Board) -> Resources:
    """What adding up gradients in memory takes."""
    found = Resources()
    for port in backward.outputs:
        if port.value in sums:
            lanes = wire_lanes(port.use.channels, port.use.dtype)
            found = found + logic(Engine("", Accumulate(port.use.rows, lanes), (), ()))
    return found + dataclasses.replace(board.controllers, ff=0.0) if sums else found


def _room(whole: StageDesign, board: Board, share: float) -> Resources:
    """A share of the on-chip memory that engines leave."""
    limit, used = board.limits, whole.resources
    return Resources(
        bram36=share * max(limit.bram36 - used.bram36, 0),
        uram=share * max(limit.uram - used.uram, 0),
    )


def _complete(
    whole: StageDesign, places: Mapping[str, Place], features: Sequence[Feature], board: Board
) -> StageDesign | _Lacking:
    """F and B with movers, laid out; what they lack if that does not fit the board."""
    # what was reserved for movers is theirs here
    whole = dataclasses.replace(whole, limits=without(board, logic_between(features)).limits)
    prefixes = tuple(PREFIX.values())
    moving = with_fifos(with_movers(whole, places, prefixes), prefixes)
    moved = with_slots(moving, board.device)
    if moved is None:
        return _Lacking(_movers_of(moving, board), memory_interval(moving, board.device))
    slotted = with_rings(sized(moved, [f.value for f in features]))
    slotted = dataclasses.replace(slotted, interval=max(slotted.interval, whole.interval))
    fifos = deep_fifos(slotted)
    found = laid_out(slotted, board, [*fifos, *memories_of(features)])
    if isinstance(found, StageDesign):
        return found
    return _Lacking(_movers_of(slotted, board), slotted.interval, fifos)


def _unsized(design: StageDesign) -> StageDesign:
    """The design with FIFOs as shallow as before they were sized, but for what decides their place.

    Movers change when values come and go.
    """
    streams = {
        name: s if s.memory is not None or s.initial else dataclasses.replace(s, depth=MIN_DEPTH)
        for name, s in design.streams.items()
    }
    return dataclasses.replace(design, streams=streams)


def _movers_of(design: StageDesign, board: Board) -> Resources:
    """What movers take."""
    movers = (logic(e) for e in design.engines if isinstance(e.nest, Mover))
    return sum(movers, dataclasses.replace(board.controllers, ff=0.0))


def without(board: Board, used: Resources) -> Board:
    """The board with what a kernel takes gone."""
    fabric = board.fabric
    left = dataclasses.replace(
        fabric,
        dsp=int(fabric.dsp - used.dsp / fabric.logic_limit),
        lut=int(fabric.lut - used.lut / fabric.logic_limit),
        bram36=int(fabric.bram36 - used.bram36 / fabric.memory_limit),
    )
    return dataclasses.replace(board, device=dataclasses.replace(board.device, fpga=left))


_OUTPUT = re.compile(r"^out_[0-9]+_")
"""What stands before the prefix in the name of a width converter at an output."""
_FIELDS = ("layers", "inputs", "outputs")


def _part(whole: StageDesign, name: str, prefix: str) -> StageDesign:
    """The engines of one kernel, with their streams and ports."""
    engines = tuple(e for e in whole.engines if _OUTPUT.sub("", e.name).startswith(prefix))
    names = {e.name for e in engines}
    streams = {k: s for k, s in whole.streams.items() if s.producer in names or s.consumer in names}
    found = dataclasses.replace(
        whole,
        name=name,
        engines=engines,
        streams=streams,
        inputs=tuple(p for p in whole.inputs if p.node.startswith(prefix)),
        outputs=tuple(p for p in whole.outputs if p.node.startswith(prefix)),
        ddr=tuple(p for p in whole.ddr if p.engine in names),
        floorplan=dataclasses.replace(
            whole.floorplan,
            regions={e: r for e, r in whole.floorplan.regions.items() if e in names},
        ),
        resources=sum((e.resources for e in engines), Resources()),
    )
    interval, _ = busiest(found)
    latency = math.ceil(schedule(found, None).end)
    return dataclasses.replace(found, interval=interval, latency=latency)
