"""The least interval at which a stage fits its board.

For a target interval every layer takes its cheapest factors, weights that find no place on chip
are streamed from DDR, and memories are placed; the target is feasible if all of it fits. The
search is by bisection, from the bound that the DSPs set.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipec.backends.fpga.arithmetic import arithmetic
from pipec.backends.fpga.banks import period, time_slots, with_banks
from pipec.backends.fpga.choice import PRICES, choices
from pipec.backends.fpga.demand import Demands, Room
from pipec.backends.fpga.design import Resources, StageDesign
from pipec.backends.fpga.fifo import deepened
from pipec.backends.fpga.lowering.layers import Dense, Depthwise, Layer, Product
from pipec.backends.fpga.lowering.network import Network
from pipec.backends.fpga.memory import (
    Item,
    fifo_item,
    items_of,
    place,
    placed,
    shift_registers,
)
from pipec.backends.fpga.resources import (
    DDR_SHELL,
    LUT_MEMORY_LIMIT,
    limits,
    logic,
)
from pipec.backends.fpga.streaming import blocks_of, ddr_ports
from pipec.cluster.device import Device, FpgaResources, ram_bits
from pipec.errors import BackendError

_RATIO = 1.0025
"""The search ends when the interval is known this well."""
_MORE = 1.1
"""How many times more is taken to wait where less than was thought did not fit."""
_SLOWEST = 1 << 44
"""Cycles that no frame takes: here every layer has its least factors."""


@dataclass(frozen=True)
class Board:
    """One FPGA board and how it is used.

    Attributes:
        device: The board.
        precision: Element type of the streams.
    """

    device: Device
    precision: str = "float32"

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
        """What a design may use."""
        return limits(self.device, self.fabric)

    @property
    def room(self) -> Room:
        """The same as numbers."""
        most = self.limits
        return Room(
            np.array([most.dsp, most.lut, most.bram36, most.uram, time_slots(self.fabric)]),
            np.array([0.0, DDR_SHELL.lut, DDR_SHELL.bram36, 0.0, 0.0]),
            self.fabric.lut * LUT_MEMORY_LIMIT,
            period(self.device),
        )


def macs(layer: Layer) -> int:
    """Multiply-accumulates of a layer per frame."""
    if isinstance(layer, Dense):
        return round(layer.used * layer.n * layer.groups * layer.out * layer.taps * layer.cin)
    if isinstance(layer, Depthwise):
        return layer.rows * layer.channels * layer.window.kh * layer.window.kw
    if isinstance(layer, Product):
        vectors = layer.blocks * layer.outer * layer.groups * layer.inner
        return vectors * layer.out * layer.taps * layer.cin
    return 0


def bound(network: Network, board: Board) -> int:
    """Interval that no folding beats: all multiply-accumulates on all usable DSPs."""
    units = board.limits.dsp / arithmetic(board.precision).mac_dsp
    return max(1, int(sum(macs(layer) for layer in network.layers) / units))


@dataclass
class Search:
    """The search for one stage on one board.

    Attributes:
        name: Stage name.
        network: What is computed.
        board: Where.
        fifos: Memories of deep FIFOs, known from an earlier round.
        follows: Whether FIFOs that are deep since layers stream their weights are counted as the
            choice of such layers asks, by their ratio in the design found last; else as they were.
        price: What memory ports count beside memories where layers are chosen to stream.
    """

    name: str
    network: Network
    board: Board
    fifos: tuple[Item, ...] = ()
    follows: bool = False
    price: float = PRICES[0]

    def __post_init__(self) -> None:
        nodes = {layer.node: 0 for layer in self.network.layers}
        self._demands = Demands(self.network, self.board.precision, nodes)
        self._found = (0, dict[str, int]())

    @property
    def streams(self) -> bool:
        """Whether layers of the design found last stream their weights."""
        return bool(self._found[1])

    def reserve(self, fifos: tuple[Item, ...]) -> None:
        """Count these deep FIFOs of the design found last from now on."""
        target, streamed = self._found
        waits = self._demands.waits(target, streamed)
        if self.follows and waits > 0:
            plain = deep_fifos(deepened(self._demands.design(target)))
            depth = {item.owner: item.depth for item in plain}
            known = tuple(
                dataclasses.replace(item, depth=min(item.depth, depth[item.owner]))
                for item in fifos
                if item.owner in depth
            )
            deeper = sum(item.bits for item in fifos) - sum(item.bits for item in known)
            times = deeper / waits
            self._demands.wait(max(times, _MORE * self._demands.waiting))
            fifos = known
        self.fifos = fifos
        self._demands.count([(0, item) for item in fifos])

    def at(self, target: int) -> StageDesign | None:
        """The design for a target interval; None if none fits."""
        for streamed in choices(self._demands.at(target), self.board.room, self.price):
            fifos = (*self.fifos, *self._demands.held(target, streamed))
            found = fitted(self.unplaced(target, streamed), self.board, fifos)
            if found is not None:
                self._found = (target, dict(streamed))
                return found
        return None

    def unplaced(self, target: int, streamed: Mapping[str, int]) -> StageDesign:
        """The design with these layers streamed, on the board, memories not placed."""
        fabric = self.board.fabric
        return dataclasses.replace(
            self._demands.design(target, streamed),
            name=self.name,
            device=self.board.device.kind,
            part=fabric.part,
            clock_mhz=fabric.clock_hz / 1e6,
            limits=self.board.limits,
        )

    def best(self, start: int = 0) -> StageDesign:
        """The design of least interval, FIFOs not yet sized.

        Args:
            start: An interval below which the search need not look.

        Raises:
            BackendError: Not even the slowest design fits.
        """
        low = high = max(start, bound(self.network, self.board))
        found, factor = self.at(low), _RATIO
        while found is None:
            if high >= _SLOWEST:
                raise self.too_large()
            low, high = high, min(int(high * factor) + 1, _SLOWEST)
            found, factor = self.at(high), min(factor**2, 1e6)
        while high > low * _RATIO and high - low > 1:
            middle = (low + high) // 2
            better = self.at(middle)
            low, high = (middle, high) if better is None else (low, middle)
            found = better or found
        return found

    def too_large(self) -> BackendError:
        """The error for a stage that fits neither on chip nor streamed."""
        least = {name: blocks[0] for name, blocks in blocks_of(self.network).items()}
        design = self.unplaced(_SLOWEST, least)
        return BackendError(
            f"{self.name} does not fit the board, not even with all possible weights in DDR",
            where=self.board.device.kind,
            got="; ".join(_exceeded(design, self.board, self.fifos)),
            want="no more than the board's share that a design may use",
            hint="use more boards, larger ones, or a narrower precision",
        )


def deep_fifos(design: StageDesign) -> tuple[Item, ...]:
    """Memories of the FIFOs that are no shift registers."""
    return tuple(i for s in design.streams.values() if (i := fifo_item(s)) is not None)


def fitted(design: StageDesign, board: Board, fifos: Sequence[Item]) -> StageDesign | None:
    """The design with memories and memory ports placed and counted; None if it does not fit.

    Args:
        design: Engines and streams; where its memories lie so far does not matter.
        board: Where.
        fifos: Deep FIFOs that count; those that the design does not have are only reserved.
    """
    ported = dataclasses.replace(design, ddr=design.ddr or ddr_ports(design))
    banked = ported if design.ddr else with_banks(ported, board.device)
    if banked is None:
        return None
    design, extra = banked, _beside(banked)
    if not (_fixed(design) + extra).fits(design.limits):
        return None
    items = [*(item for e in design.engines for item in items_of(e)), *fifos]
    kinds = place(items, _left(design, board))
    if kinds is None:
        return None
    known = [(i, k) for i, k in zip(items, kinds, strict=True) if _is_in(i, design)]
    found = placed(design, [k for _, k in known], [i for i, _ in known])
    return dataclasses.replace(found, resources=found.resources + extra)


def _fixed(design: StageDesign) -> Resources:
    """What a design takes without its memories: engines and shift registers."""
    return sum((logic(e) for e in design.engines), shift_registers(design.streams.values()))


def _beside(design: StageDesign) -> Resources:
    """What its memory ports take: a controller, and bytes per second."""
    shell = DDR_SHELL if design.ddr else Resources()
    return shell + Resources(ddr=sum(p.bytes_per_second for p in design.ddr))


def _left(design: StageDesign, board: Board) -> tuple[float, float, float]:
    """LUTs, block RAMs and UltraRAMs that are left for memories."""
    limit, used = design.limits, _fixed(design) + _beside(design)
    lut = min(limit.lut - used.lut, board.fabric.lut * LUT_MEMORY_LIMIT)
    return (lut, limit.bram36 - used.bram36, limit.uram)


def _exceeded(design: StageDesign, board: Board, fifos: Sequence[Item]) -> list[str]:
    """The limits that a design exceeds, each with by how much."""
    design = dataclasses.replace(design, ddr=design.ddr or ddr_ports(design))
    needed = (_fixed(design) + _beside(design)).values()
    most = [max(math.floor(limit), 0) for limit in design.limits.values()]
    names = ("DSP", "BRAM36", "UltraRAM", "LUT", "FF", "bytes/s of DDR")
    found = [
        f"{math.ceil(used):,} {name} of {limit:,} ({math.ceil(used) - limit:,} too many)"
        for name, used, limit in zip(names, needed, most, strict=True)
        if math.ceil(used) > limit
    ]
    if with_banks(design, board.device) is None:
        found.append(f"{len(design.ddr)} readers of DDR, more than its ports have slots for")
    if found:
        return found
    items = [*(i for e in design.engines for i in items_of(e)), *fifos]
    lut, blocks, ultra = _left(design, board)
    bits = sum(item.bits for item in items) / 1e6
    room = ram_bits(blocks, ultra) / 1e6
    return [
        f"{len(items)} memories of {bits:,.1f} Mb, which do not fit {blocks:,.0f} BRAM36 and "
        f"{ultra:,.0f} UltraRAMs ({room:,.1f} Mb) and {lut:,.0f} LUT"
    ]


def _is_in(item: Item, design: StageDesign) -> bool:
    """Whether a FIFO item is one of the design's own, at its depth."""
    if item.role != "fifo":
        return True
    stream = design.streams.get(item.owner)
    return stream is not None and stream.depth == item.depth
