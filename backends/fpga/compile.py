"""From a stage graph to its design on a board."""

from collections.abc import Sequence

from pipec.backends.fpga.design import StageDesign
from pipec.backends.fpga.fifo import sized
from pipec.backends.fpga.lowering.network import Network
from pipec.backends.fpga.memory import Item
from pipec.backends.fpga.search import Board, Search, deep_fifos, fitted

__all__ = ["Board", "best_design"]

_ROUNDS = 8
_GROWTH = 1.005
"""How much slower the next round may be, at least, where FIFOs did not fit."""


def best_design(
    network: Network,
    board: Board,
    name: str = "stage0",
    start: int = 0,
    reserved: Sequence[Item] = (),
) -> StageDesign:
    """The design of least interval that fits a board, FIFOs sized and counted.

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
    for _ in range(_ROUNDS):
        found = sized(search.best(start))
        fifos = _deeper(deep_fifos(found), reserved)
        placed = fitted(found, board, fifos)
        if placed is not None:
            return placed
        search.reserve(fifos)
        start = round(found.interval * _GROWTH)
    raise search.too_large()


def _deeper(fifos: Sequence[Item], others: Sequence[Item]) -> tuple[Item, ...]:
    """Both, of two memories of one FIFO the deeper one."""
    found = {item.owner: item for item in fifos}
    for item in others:
        if item.owner not in found or found[item.owner].depth < item.depth:
            found[item.owner] = item
    return tuple(found.values())
