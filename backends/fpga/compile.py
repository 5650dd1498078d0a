"""From a stage graph to its design on a board."""

import dataclasses
import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from pipec.backends.fpga.choice import PRICES
from pipec.backends.fpga.design import Memory, StageDesign, Stream
from pipec.backends.fpga.fifo import deepened, timed
from pipec.backends.fpga.lowering.network import Network
from pipec.backends.fpga.memory import Item
from pipec.backends.fpga.regions import floorplan
from pipec.backends.fpga.search import Board, Search, bound, deep_fifos, fitted
from pipec.cluster.device import ram_bits

__all__ = ["Board", "best_design"]

_ROUNDS = 8
_GROWTH = 1.005
"""How much slower the next round may be, at least, where FIFOs or regions did not fit; later rounds
may be slower still."""
_CLOSE = 1.005
"""A design so near to what is asked for, or to the bound, is not searched for twice."""
_ON_CHIP = 0.5
"""Share of the chip's memory that FIFOs take at most where some may lie in DDR."""


def best_design(
    network: Network,
    board: Board,
    name: str = "stage0",
    start: int = 0,
    reserved: Sequence[Item] = (),
    movable: Callable[[Stream], bool] | None = None,
    waiting: Collection[str] | None = None,
) -> StageDesign:
    """The design of least interval that fits a board and its regions, FIFOs sized and counted.

    FIFO depths follow from a design; where their memories do not fit beside it, the search is
    repeated with room reserved for them: as much as they took, and where layers stream their
    weights also as much as the next choice of such layers asks, these chosen with memory ports
    dear or cheap beside memories. The fastest design counts.

    Args:
        network: What is computed (`lowering.lower.lower`).
        board: Where.
        name: Stage name.
        start: An interval that is short enough: what other stages take.
        reserved: FIFOs that are known to become at least so deep; room is kept for them.
        movable: Whether a FIFO may lie in DDR (``Stream.memory`` says which do); none if not given.
        waiting: Inputs that wait elsewhere until they are read (`pipec.backends.fpga.flow`).

    Raises:
        BackendError: It does not fit.
    """
    need = _Need(start, tuple(reserved), movable, waiting)
    close = _CLOSE * max(start, bound(network, board))
    search, best = Search(name, network, board), None
    for price, follows in itertools.product(PRICES, (False, True)):
        search = Search(name, network, board, follows=follows, price=price)
        found = _settled(search, need)
        if found is not None and (best is None or found.interval < best.interval):
            best = found
        if not search.streams or (best is not None and best.interval <= close):
            break
    if best is None:
        raise search.too_large()
    return timed(best)


@dataclass(frozen=True)
class _Need:
    """What `best_design` is asked for; its arguments."""

    start: int
    reserved: tuple[Item, ...]
    movable: Callable[[Stream], bool] | None
    waiting: Collection[str] | None


def _settled(search: Search, need: _Need) -> StageDesign | None:
    """The first design of a search whose FIFOs fit beside it, not timed; None in few rounds."""
    if need.reserved:
        search.reserve(need.reserved)
    start, growth = need.start, 1.0
    for _ in range(_ROUNDS):
        found = deepened(search.best(start), need.waiting)
        fifos = _deeper(deep_fifos(found), need.reserved)
        placed = laid_out(found, search.board, fifos)
        if placed is None and need.movable is not None:
            found, fifos = _moved(found, fifos, need.movable)
            placed = laid_out(found, search.board, fifos)
        if placed is not None:
            return placed
        search.reserve(fifos)
        start, growth = round(found.interval * growth), max(_GROWTH, growth**1.5)
    return None


def laid_out(design: StageDesign, board: Board, fifos: Sequence[Item]) -> StageDesign | None:
    """The design with memories placed and engines in regions; None if it does not fit the board.

    Args:
        design: Engines and streams.
        board: Where.
        fifos: Deep FIFOs that count (`search.fitted`).
    """
    found = fitted(design, board, fifos)
    plan = None if found is None else floorplan(found, board.fabric)
    return None if found is None or plan is None else dataclasses.replace(found, floorplan=plan)


def _moved(
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


def _deeper(fifos: Sequence[Item], others: Sequence[Item]) -> tuple[Item, ...]:
    """Both, of two memories of one FIFO the deeper one."""
    found = {item.owner: item for item in fifos}
    for item in others:
        if item.owner not in found or found[item.owner].depth < item.depth:
            found[item.owner] = item
    return tuple(found.values())
