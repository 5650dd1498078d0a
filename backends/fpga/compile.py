"""From a stage graph to its design on a board."""

import dataclasses
from collections.abc import Callable, Collection, Sequence

from pipec.backends.fpga.design import Memory, StageDesign, Stream
from pipec.backends.fpga.fifo import deepened, timed
from pipec.backends.fpga.lowering.network import Network
from pipec.backends.fpga.memory import Item
from pipec.backends.fpga.regions import floorplan
from pipec.backends.fpga.resources import BRAM36_BITS, URAM_BITS
from pipec.backends.fpga.search import Board, Search, deep_fifos, fitted

__all__ = ["Board", "best_design"]

_ROUNDS = 8
_GROWTH = 1.005
"""How much slower the next round may be, at least, where FIFOs or regions did not fit; later rounds
may be slower still."""
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
    repeated with room reserved for them.

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
    search = Search(name, network, board)
    if reserved:
        search.reserve(tuple(reserved))
    growth = _GROWTH
    for _ in range(_ROUNDS):
        found = deepened(search.best(start), waiting)
        fifos = _deeper(deep_fifos(found), reserved)
        placed = laid_out(found, board, fifos)
        if placed is None and movable is not None:
            found, fifos = _moved(found, fifos, movable)
            placed = laid_out(found, board, fifos)
        if placed is not None:
            return timed(placed)
        search.reserve(fifos)
        start, growth = round(found.interval * growth), growth**1.5
    raise search.too_large()


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
    streams, limit = dict(design.streams), design.limits
    room = _ON_CHIP * (limit.bram36 * BRAM36_BITS + limit.uram * URAM_BITS)
    stay = {item.owner: item for item in fifos}
    candidates = [s for s in streams.values() if s.name in stay and movable(s)]
    order = sorted(candidates, key=lambda s: (-s.depth / s.tokens, -s.depth * s.token_bits, s.name))
    for stream in order:
        if sum(item.width * item.depth for item in stay.values()) <= room:
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
