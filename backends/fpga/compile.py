"""From a stage graph to its design on a board."""

import dataclasses
from collections.abc import Sequence

from pipec.backends.fpga.design import StageDesign
from pipec.backends.fpga.fifo import deepened, timed
from pipec.backends.fpga.lowering.network import Network
from pipec.backends.fpga.memory import Item
from pipec.backends.fpga.regions import floorplan
from pipec.backends.fpga.search import Board, Search, deep_fifos, fitted

__all__ = ["Board", "best_design"]

_ROUNDS = 8
_GROWTH = 1.005
"""How much slower the next round may be, at least, where FIFOs or regions did not fit; later rounds
may be slower still."""


def best_design(
    network: Network,
    board: Board,
    name: str = "stage0",
    start: int = 0,
    reserved: Sequence[Item] = (),
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

    Raises:
        BackendError: It does not fit.
    """
    search = Search(name, network, board)
    if reserved:
        search.reserve(tuple(reserved))
    growth = _GROWTH
    for _ in range(_ROUNDS):
        found = deepened(search.best(start))
        fifos = _deeper(deep_fifos(found), reserved)
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


def _deeper(fifos: Sequence[Item], others: Sequence[Item]) -> tuple[Item, ...]:
    """Both, of two memories of one FIFO the deeper one."""
    found = {item.owner: item for item in fifos}
    for item in others:
        if item.owner not in found or found[item.owner].depth < item.depth:
            found[item.owner] = item
    return tuple(found.values())
