"""Weights that do not fit on chip: which layers stream them from DDR, and what that costs."""

from pipec.backends.fpga.design import DdrPort, StageDesign
from pipec.backends.fpga.engines.base import busy_cycles
from pipec.backends.fpga.engines.memory import Gather, Load
from pipec.backends.fpga.engines.mvu import Mvu
from pipec.backends.fpga.engines.parts import Memory
from pipec.backends.fpga.engines.tiles import divisors
from pipec.backends.fpga.lowering.network import Network
from pipec.backends.fpga.numbers import bits_of

SHARES = (64, 16, 4, 2)
"""Buffers of a streamed layer may hold one of these shares of its matrix, none above a half."""


def block_of(nest: Mvu, share: int) -> int:
    """Vectors per pass over streamed weights: as many as buffers of 1/share of the matrix hold.

    0 where streaming makes no sense: grouped layers, and buffers larger than that.
    """
    if nest.groups > 1:
        return 0
    matrix, vector = nest.rows * nest.taps * nest.channels, nest.taps * nest.channels + nest.rows
    if nest.n > 1 and vector * share > matrix:
        return 0
    return max(v for v in divisors(nest.n) if v == 1 or v * vector * share <= matrix)


def blocks_of(network: Network) -> dict[str, tuple[int, ...]]:
    """Layers that may stream their weights: name to the choices of vectors per pass."""
    found = {}
    for layer in network.layers:
        if isinstance(layer.nest, Mvu):
            blocks = {block_of(layer.nest, share) for share in SHARES} - {0}
            if blocks:
                found[layer.name] = tuple(sorted(blocks))
    return found


def ddr_ports(design: StageDesign) -> tuple[DdrPort, ...]:
    """The m_axi ports of a design: one per engine that reads DDR.

    A port needs its traffic within the busy cycles of the engine that the words are for.
    """
    ports: list[DdrPort] = []
    clock = design.clock_mhz * 1e6
    engines = {e.name: e for e in design.engines}
    for engine in design.engines:
        nest, bits = engine.nest, bits_of(engine.dtype)
        if isinstance(nest, Load):
            words = nest.words * nest.repeat
            user = engines[design.streams[engine.outputs[0]].consumer or engine.name]
        elif isinstance(nest, Gather) and any(w.memory == Memory.DDR for w in engine.weights):
            words, user = nest.n * nest.cf, engine
        else:
            continue
        nbytes = words * nest.lanes * bits // 8
        rate = nbytes * clock / busy_cycles(user)
        ports.append(DdrPort(f"gmem{len(ports)}", engine.name, nest.lanes * bits, nbytes, rate))
    return tuple(ports)
