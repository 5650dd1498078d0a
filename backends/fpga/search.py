"""The design of least interval that fits a board: one bisection over the interval.

At a target every layer takes its cheapest factors, FIFOs are as deep as a schedule asks, and as few
layers stream their weights from DDR as memories allow; the target is feasible if the memories, the
memory ports and the engines then find their places.
"""

import dataclasses
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from pipec.backends.fpga.banks import blocks_of, ddr_ports, period, time_slots, with_banks
from pipec.backends.fpga.demand import Choice, Demands, Option, Room, Shortage, fit, in_order
from pipec.backends.fpga.design import StageDesign, Stream
from pipec.backends.fpga.engines.gear import regrouping
from pipec.backends.fpga.engines.network import NetPort, Network
from pipec.backends.fpga.engines.parts import BURST, PORT_BITS, Memory, Resources
from pipec.backends.fpga.fifo import add_latency, deepen_fifos
from pipec.backends.fpga.folding import wire_lanes
from pipec.backends.fpga.links import PACKET, WINDOW
from pipec.backends.fpga.lowering.types import OwnTypes
from pipec.backends.fpga.memory import (
    DDR_SHELL,
    HBM_SHELL,
    LINK_SHELL,
    LUT_MEMORY_LIMIT,
    SHIFT_REGISTER,
    Item,
    adapter,
    allocate,
    fifo_item,
    fifo_logic,
    fifos_logic,
    interconnect,
    interface,
    port,
    registers,
    with_control,
)
from pipec.backends.fpga.numbers import bits_of
from pipec.cluster.device import Device, FpgaResources, ram_bits
from pipec.errors import BackendError

_RATIO = 1.0025
"""The search ends when the interval is known this well."""
_STEP, _FAR = 1.05, 16
"""Up to so many times the bound the search looks at every such step: on a board that is nearly full
one interval may fit and a longer one not, as tiles differ."""
_SLOWEST = 1 << 44
"""Cycles that no frame takes: here every layer has its least factors."""
_ON_CHIP = 0.5
"""Share of the chip's memory that FIFOs take at most where some may lie in DDR."""


@dataclass(frozen=True)
class Board:
    """One FPGA board and how it is used.

    Attributes:
        device: The board.
        precision: Element type of the streams.
        links: Other boards that it is joined to.
        own: Element types of layers that have another one.
        taken: What stands there beside the kernel: other kernels.
        ported: Memory ports that these use.
    """

    device: Device
    precision: str = "float32"
    links: int = 1
    own: OwnTypes = ()
    taken: Resources = field(default_factory=Resources)
    ported: int = 1

    @property
    def fabric(self) -> FpgaResources:
        """Its fabric.

        Raises:
            BackendError: The device is no FPGA.
        """
        if self.device.fpga is None:
            raise BackendError(
                "the device is no FPGA", got=self.device.kind, hint="`pipec devices` lists boards"
            )
        return self.device.fpga

    @property
    def limits(self) -> Resources:
        """The board within its limits, less what stands there whatever is computed.

        That are network cores, two Aurora cores as one where there is no platform, memory
        controllers, and other kernels.
        """
        fabric = self.fabric
        cores = LINK_SHELL * (self.links if fabric.has_platform else min(self.links, 1))
        logic = Resources(dsp=fabric.dsp, lut=fabric.lut, ff=fabric.ff)
        memory = Resources(bram36=fabric.bram36, uram=fabric.uram, ddr=self.device.memory_rate)
        usable = logic * fabric.logic_limit + memory * fabric.memory_limit
        return usable - cores - self.taken - self.controller * self.controllers

    @property
    def controller(self) -> Resources:
        """Resources of a memory controller; HBM has one for all channels."""
        of_fabric = HBM_SHELL if self.fabric.memory_kind == "HBM" else DDR_SHELL
        return Resources() if self.fabric.hard_memory else of_fabric

    @property
    def controllers(self) -> int:
        """Those that are there in any case: for tables; on a platform frames come through all."""
        every = self.fabric.memory_kind == "DDR" and self.fabric.has_platform
        return self.fabric.memory_ports if every else 1

    def beside(self, kernels: Resources) -> "Board":
        """The board where other kernels stand, too."""
        return dataclasses.replace(self, taken=self.taken + kernels)

    def room(self, most: Resources) -> Room:
        """Limits, of the whole board or less, as numbers."""
        fabric, one = self.fabric, self.controller
        limit = np.array(in_order(most, time_slots(fabric)))
        more = fabric.memory_ports - self.controllers if fabric.memory_kind == "DDR" else 0
        lut = fabric.lut * LUT_MEMORY_LIMIT
        return Room(limit, more, np.array(in_order(one, 0)), lut, period(self.device))


def port_kernels(
    ports: tuple[Sequence[NetPort], Sequence[NetPort]], crossing: Collection[str], *, platform: bool
) -> Resources:
    """The kernels at the inputs and outputs of a stage.

    They lead what crosses to another board over its link (``hls/link``); a platform has others
    between memory and the rest (``hls/mover``), where the user's own stands elsewhere.
    """
    found = Resources()
    for reads, some in zip((True, False), ports, strict=True):
        links = any(p.value in crossing for p in some)
        for use, crosses in ((p.use, p.value in crossing) for p in some):
            lanes, beat = wire_lanes(use.channels, use.dtype), PORT_BITS // bits_of(use.dtype)
            words = BURST
            if crosses:
                words = PACKET * (WINDOW if reads else 2)
            elif platform:
                found += adapter(PORT_BITS, reads=reads) + interconnect(PORT_BITS) + registers(3)
            else:
                continue
            gear = regrouping(lanes, beat, use.dtype)
            found += port(lanes * bits_of(use.dtype)) + fifo_logic(PORT_BITS, words)
            for lut in (gear, 0.0):
                found += with_control(0.0, lut, 3, 3, 0.0, word=PORT_BITS)
            if words > SHIFT_REGISTER:
                found += Item("", "", PORT_BITS, words).cost_in(Memory.BRAM)
        found += port(PORT_BITS) * (2 * links)  # of a link, credits the other way
    return found


def bound_interval(network: Network, board: Board) -> int:
    """Interval that no folding beats: all multiply-accumulates on all usable DSPs."""
    return max(1, int(network.products(board.precision) / board.limits.dsp))


@dataclass
class Search:
    """The search for one stage on one board.

    Attributes:
        network: What is computed (`lowering.lower.lower`).
        board: Board of the stage.
        name: Stage name.
        reserved: FIFOs that are known to become at least so deep; room is kept for them.
        movable: Whether a FIFO may lie in DDR (``Stream.memory`` says which do); none if not given.
        waiting: Inputs that wait elsewhere until they are read (`pipec.backends.fpga.flow`).
        lay_out: What becomes of a folded design with these FIFOs; `fit_design` if not given.
    """

    network: Network
    board: Board
    name: str = "stage0"
    reserved: Sequence[Item] = ()
    movable: Callable[[Stream], bool] | None = None
    waiting: Collection[str] | None = None
    lay_out: Callable[[StageDesign, Sequence[Item]], StageDesign | Shortage] | None = None

    def __post_init__(self) -> None:
        self.network = self.network.at_clock(self.board.fabric.clock_hz)
        nodes = {layer.node: 0 for layer in self.network.layers}
        self._demands = Demands(self.network, self.board.precision, nodes)
        self._cache: dict[tuple[object, ...], StageDesign | Shortage] = {}

    def at(self, target: int) -> StageDesign | Shortage:
        """The design for a target interval, or what it lacks."""
        found = self._lay_out(design := self._demands.design(target))
        if not (isinstance(found, Shortage) and found.of_memory):
            return found
        demand = self._demands.at(target)
        layers = [group.layer for group in demand.groups]

        def attempt(choice: Choice) -> StageDesign | Shortage:
            blocks = {n: o.block for n, o in zip(layers, choice, strict=True) if o.block}
            return self._lay_out(self._demands.design(target, blocks))

        room = self.board.room(self.board.limits - interface(design))
        found = demand.choose(room, attempt, found)
        if self.movable is not None and isinstance(found, Shortage) and found.of_memory:
            found = self._least(target)  # the choice counts FIFOs on the chip that may leave it
        return found

    def _least(self, target: int) -> StageDesign | Shortage:
        """The same with all weights in DDR that may lie there, in the smallest buffers."""
        least = {name: blocks[0] for name, blocks in blocks_of(self.network).items()}
        return self._lay_out(self._demands.design(target, least))

    def _lay_out(self, design: StageDesign) -> StageDesign | Shortage:
        """A folded design on the board; many targets have the same one."""
        folded = (*design.engines, *design.streams.values())
        if folded not in self._cache:
            self._cache[folded] = self._size(design)
        return self._cache[folded]

    def _size(self, design: StageDesign) -> StageDesign | Shortage:
        """The same, FIFOs sized, some of them in DDR if they may lie there."""
        design = deepen_fifos(bind_to(design, self.board, self.name), self.waiting)
        fifos = _keep_deeper(deep_fifos(design), self.reserved)
        lay_out = self.lay_out or (lambda made, fifos: fit_design(made, self.board, fifos))
        found = lay_out(design, fifos)
        if isinstance(found, Shortage) and found.of_memory and self.movable is not None:
            moved, fifos = _move_fifos(design, fifos, self.movable)
            if moved != design:
                found = lay_out(moved, fifos)
        return found

    def best(self, start: int = 0) -> StageDesign:
        """The design of least interval that fits the board, FIFOs sized.

        An interval of ``start`` is short enough: what other stages take.

        Raises:
            BackendError: Not even the slowest design fits.
        """
        low = high = max(start, bound_interval(self.network, self.board))
        found, factor, far = self.at(low), _RATIO, _FAR * low
        while isinstance(found, Shortage):
            if high >= _SLOWEST:
                raise self._too_large(found)
            low, high = high, min(max(int(high * factor) + 1, found.least), _SLOWEST)
            found, factor = self.at(high), min(factor**2, _STEP if high < far else 1e6)
        while high > low * _RATIO and high - low > 1:
            middle = (low + high) // 2
            better = self.at(middle)
            if isinstance(better, Shortage):
                low = middle
            else:
                high, found = middle, better
        return add_latency(found)

    def _too_large(self, lacks: Shortage) -> BackendError:
        """The error for a stage that fits neither on chip nor streamed."""
        if lacks.of_memory:
            streamed = self._least(_SLOWEST)
            lacks = streamed if isinstance(streamed, Shortage) else lacks
        return BackendError(
            f"{self.name} does not fit the board, not even with all possible weights in DDR",
            where=self.board.device.kind,
            got="; ".join(lacks.exceeded),
            want="no more than the board's share that a design may use",
            hint="use more boards, larger ones, or a narrower precision",
        )


def bind_to(design: StageDesign, board: Board, name: str) -> StageDesign:
    """The design with the name of its stage and the facts of its board."""
    return dataclasses.replace(
        design,
        name=name,
        device=board.device.kind,
        part=board.fabric.part,
        clock_mhz=board.fabric.clock_hz / 1e6,
        limits=board.limits,
    )


def deep_fifos(design: StageDesign) -> tuple[Item, ...]:
    """Memories of the FIFOs that are no shift registers."""
    return tuple(i for s in design.streams.values() if (i := fifo_item(s)) is not None)


def fit_design(
    design: StageDesign, board: Board, fifos: Sequence[Item], ends: Resources | None = None
) -> StageDesign | Shortage:
    """The design with memories and memory ports placed and counted, or what it lacks.

    Where its memories lie so far does not matter. Its limits are the board's, or less. Deep FIFOs
    count; those that the design does not have are only reserved. The ends
    of several kernels in one are given (`memory.interface`).
    """
    ported = dataclasses.replace(design, ddr=design.ddr or ddr_ports(design))
    banked = ported if design.ddr else with_banks(ported, board.device)
    if isinstance(banked, tuple):
        return Shortage(banked)
    use = Option(items=list(fifos), ported=max(board.ported, len({p.bank for p in banked.ddr})))
    for engine in banked.engines:
        use.add(engine)
    ends = ends or interface(banked)
    use.used += fifos_logic(banked.streams.values()) + ends
    kinds = fit([use], room := board.room(design.limits))
    if isinstance(kinds, Shortage):
        return kinds
    own = {i for s in banked.streams.values() if (i := fifo_item(s)) is not None}
    known = {i: k for i, k in zip(use.items, kinds, strict=True) if i.role != "fifo" or i in own}
    found = allocate(banked, known, ends)
    beside = Resources(ddr=sum(p.bytes_per_second for p in banked.ddr))
    beside += board.controller * min(max(use.ported - 1, 0), room.controllers)
    return dataclasses.replace(found, resources=found.resources + beside)


def _move_fifos(
    design: StageDesign, fifos: Sequence[Item], movable: Callable[[Stream], bool]
) -> tuple[StageDesign, tuple[Item, ...]]:
    """The design with FIFOs in DDR until the others take half of the chip, and these others.

    A FIFO moves a frame in and out, however much of it waits: first those that save most per byte.
    """
    streams = dict(design.streams)
    room = _ON_CHIP * ram_bits(design.limits.bram36, design.limits.uram)
    stay = {item.owner: item for item in fifos}
    candidates = [s for s in streams.values() if s.name in stay and movable(s)]
    order = sorted(candidates, key=lambda s: (-s.depth / s.tokens, -s.depth * s.token_bits, s.name))
    for stream in order:
        if sum(item.bits for item in stay.values()) <= room:
            break
        del stay[stream.name]
        streams[stream.name] = dataclasses.replace(stream, memory=Memory.DDR)
    return dataclasses.replace(design, streams=streams), tuple(stay.values())


def _keep_deeper(fifos: Sequence[Item], others: Sequence[Item]) -> tuple[Item, ...]:
    """Both, of two memories of one FIFO the deeper one."""
    found = dict[str, Item]()
    for item in (*fifos, *others):
        found[item.owner] = max(found.get(item.owner, item), item, key=lambda each: each.depth)
    return tuple(found.values())
