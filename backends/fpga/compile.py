"""From a stage graph to its design on a board."""

from pipec.backends.fpga.design import StageDesign
from pipec.backends.fpga.fifo import sized
from pipec.backends.fpga.lowering.network import Network
from pipec.backends.fpga.memory import fifo_item
from pipec.backends.fpga.search import Board, Search

__all__ = ["Board", "best_design"]

_ROUNDS = 8
_GROWTH = 1.005
"""How much slower the next round may be, at least, where FIFOs did not fit."""


def best_design(
    network: Network, board: Board, name: str = "stage0", start: int = 0
) -> StageDesign:
    """The design of least interval that fits a board, FIFOs sized and counted.

    FIFO depths follow from a design; where their memories do not fit beside it, the search is
    repeated with room reserved for them.

    Args:
        network: What is computed (`lowering.lower.lower`).
        board: Where.
        name: Stage name.
        start: An interval that is short enough: what other stages take.

    Raises:
        BackendError: It does not fit.
    """
    search = Search(name, network, board)
    for _ in range(_ROUNDS):
        found = sized(search.best(start))
        fifos = tuple(i for s in found.streams.values() if (i := fifo_item(s)) is not None)
        fitted = search.fitted(found, fifos)
        if fitted is not None:
            return fitted
        search.reserve(fifos)
        start = round(found.interval * _GROWTH)
    raise search.too_large()
