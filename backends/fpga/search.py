"""The least interval at which a stage fits its board.

For a target interval every layer takes its cheapest factors, weights that find no place on chip
are streamed from DDR, and memories are placed; the target is feasible if all of it fits. The
search is by bisection, from the bound that the DSPs set.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from pipec.backends.fpga.arithmetic import arithmetic
from pipec.backends.fpga.assemble import assemble
from pipec.backends.fpga.build import Built
from pipec.backends.fpga.design import Resources, StageDesign
from pipec.backends.fpga.factors import Factors, fold
from pipec.backends.fpga.lowering.layers import Dense, Depthwise, Layer, Product
from pipec.backends.fpga.lowering.network import Network
from pipec.backends.fpga.memory import Item, items_of, place, placed, shift_registers
from pipec.backends.fpga.resources import DDR_SHELL, LUT_MEMORY_LIMIT, limits, logic
from pipec.backends.fpga.streaming import SHARES, candidates, chosen, ddr_ports
from pipec.cluster.device import Device, FpgaResources
from pipec.errors import BackendError

_RATIO = 1.005
"""The search ends when the interval is known this well."""
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


def macs(layer: Layer) -> int:
    """Multiply-accumulates of a layer per frame."""
    if isinstance(layer, Dense):
        return layer.n * layer.groups * layer.out * layer.taps * layer.cin
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


class Overflow(Enum):
    """What of a board is too small for a design."""

    LOGIC = "DSPs or LUTs"
    BANDWIDTH = "DDR bandwidth"
    MEMORY = "on-chip memory"


@dataclass
class Search:
    """The search for one stage on one board.

    Attributes:
        name: Stage name.
        network: What is computed.
        board: Where.
        fifos: Memories of deep FIFOs, known from an earlier round.
        streamed: Share and count of streamed layers that fitted last (`streaming.candidates`).
    """

    name: str
    network: Network
    board: Board
    fifos: tuple[Item, ...] = ()
    streamed: tuple[int, int] = (SHARES[0], 0)
    built: dict[tuple[str, Factors], Built] = field(default_factory=dict)

    def at(self, target: int) -> StageDesign | None:
        """The design for a target interval with as few streamed layers as fit; None if none fits.

        More streaming frees memory and takes bandwidth, so what overflows says where to look.
        """
        for share in sorted(SHARES, key=lambda s: s != self.streamed[0]):
            most = len(candidates(self.network, self.board.precision, share))
            low, high = -1, most + 1
            count, best = (self.streamed[1] if share == self.streamed[0] else 0), None
            while low < count < high:
                found = self.fitted(self.unplaced(target, share, count), self.fifos)
                if found is Overflow.LOGIC:
                    return None
                if found is Overflow.MEMORY:
                    low = count
                else:
                    high = count
                if isinstance(found, StageDesign):
                    best, self.streamed = found, (share, count)
                count = high - 1 if high - low == 2 else (low + high) // 2
            if best is not None or (low == most and share == max(SHARES)):
                return best  # larger buffers need no less memory
        return None

    def unplaced(self, target: int, share: int, count: int) -> StageDesign:
        """The design with so many streamed layers, on the board, memories not placed."""
        dtype, fabric = self.board.precision, self.board.fabric
        streamed = chosen(self.network, dtype, share, count)
        design = design_at(
            self.network, target, name=self.name, dtype=dtype, streamed=streamed, built=self.built
        )
        return dataclasses.replace(
            design,
            device=self.board.device.kind,
            part=fabric.part,
            clock_mhz=fabric.clock_hz / 1e6,
            limits=self.board.limits,
        )

    def fitted(self, design: StageDesign, fifos: Sequence[Item]) -> "StageDesign | Overflow":
        """The design with its memories placed, or what does not fit the board.

        Args:
            design: Memories not placed.
            fifos: Deep FIFOs that count; those that the design does not have are only reserved.
        """
        ports, limit = ddr_ports(design), design.limits
        fixed = sum((logic(e) for e in design.engines), shift_registers(design.streams.values()))
        shell = DDR_SHELL if ports else Resources()
        traffic = Resources(ddr=sum(p.bytes_per_second for p in ports))
        if not (fixed + shell).fits(limit):
            return Overflow.LOGIC
        if not traffic.fits(limit):
            return Overflow.BANDWIDTH
        items = [*(item for e in design.engines for item in items_of(e)), *fifos]
        lut = min(limit.lut - fixed.lut - shell.lut, self.board.fabric.lut * LUT_MEMORY_LIMIT)
        kinds = place(items, (lut, limit.bram36 - shell.bram36, limit.uram))
        if kinds is None:
            return Overflow.MEMORY
        known = [(i, k) for i, k in zip(items, kinds, strict=True) if _is_in(i, design)]
        found = placed(
            dataclasses.replace(design, ddr=ports), [k for _, k in known], [i for i, _ in known]
        )
        return dataclasses.replace(found, resources=found.resources + shell + traffic)

    def best(self, start: int = 0) -> StageDesign:
        """The design of least interval, FIFOs not yet sized.

        Args:
            start: An interval below which the search need not look.

        Raises:
            BackendError: Not even the slowest design fits.
        """
        low = high = max(start, bound(self.network, self.board))
        found, factor = self.at(low), 1.1
        while found is None:
            if high >= _SLOWEST:
                raise self.too_large()
            low, high = high, int(high * factor) + 1
            found, factor = self.at(high), factor**1.5
        while high > low * _RATIO and high - low > 1:
            middle = (low + high) // 2
            better = self.at(middle)
            low, high = (middle, high) if better is None else (low, middle)
            found = better or found
        return found

    def too_large(self) -> BackendError:
        """The error for a stage that fits neither on chip nor streamed."""
        share = SHARES[0]
        most = len(candidates(self.network, self.board.precision, share))
        design = self.unplaced(_SLOWEST, share, most)
        limit = design.limits
        used = sum((logic(e) for e in design.engines), Resources())
        items = [*(i for e in design.engines for i in items_of(e)), *self.fifos]
        bits = sum(i.width * i.depth for i in items)
        room = (limit.bram36 * 36_864 + limit.uram * 294_912) / 1e6
        return BackendError(
            f"{self.name} does not fit the board, not even with all possible weights in DDR",
            where=self.board.device.kind,
            got=f"at least {used.dsp:.0f} DSP, {used.lut:.0f} LUT, {bits / 1e6:.1f} Mb on chip",
            want=f"at most {limit.dsp:.0f} DSP, {limit.lut:.0f} LUT, {room:.1f} Mb of RAM",
            hint="use more boards, larger ones, or a narrower precision",
        )


def _is_in(item: Item, design: StageDesign) -> bool:
    """Whether a FIFO item is one of the design's own, at its depth."""
    if item.role != "fifo":
        return True
    stream = design.streams.get(item.owner)
    return stream is not None and stream.depth == item.depth


def design_at(
    network: Network,
    target: int,
    *,
    name: str = "stage0",
    dtype: str = "float32",
    streamed: Mapping[str, int] | None = None,
    built: dict[tuple[str, Factors], Built] | None = None,
) -> StageDesign:
    """The design with the cheapest factors for a target interval, limits not looked at.

    Args:
        network: What is computed.
        target: Cycles per frame to aim at.
        name: Stage name.
        dtype: Type of the data streams.
        streamed: Dense layer to vectors per pass over weights that are streamed from DDR.
        built: Engines of layers under factors seen before; added to.
    """
    blocks = streamed or {}
    factors = {
        layer.name: fold(layer, target, dtype, block=blocks.get(layer.name, 0))
        for layer in network.layers
    }
    made, inputs, outputs = assemble(network, factors, dtype, built)
    return StageDesign(
        name, tuple(made.engines.values()), made.streams, inputs, outputs, precision=dtype
    )
