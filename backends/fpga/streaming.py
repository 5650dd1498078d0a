"""Weights that do not fit on chip: which layers stream them from DDR, and what that costs."""

from pipec.backends.fpga.design import DdrPort, Memory, StageDesign, bits_of
from pipec.backends.fpga.factors import divisors
from pipec.backends.fpga.lowering.layers import Dense
from pipec.backends.fpga.lowering.network import Network
from pipec.backends.fpga.routing import Gather, Load
from pipec.backends.fpga.runs import busy_cycles


def weight_bits(layer: Dense, dtype: str) -> int:
    """Bits of a dense layer's matrix."""
    return layer.groups * layer.out * layer.taps * layer.cin * bits_of(dtype)


SHARES = (16, 2)
"""Buffers of a streamed layer may hold 1/16 of its matrix; more where bandwidth runs short."""


def block_of(layer: Dense, share: int) -> int:
    """Vectors per pass over streamed weights: as many as buffers of 1/share of the matrix hold.

    0 where streaming makes no sense: grouped layers, and buffers larger than that.
    """
    if layer.groups > 1:
        return 0
    matrix, vector = layer.out * layer.taps * layer.cin, layer.taps * layer.cin + layer.out
    if layer.n > 1 and vector * share > matrix:
        return 0
    return max(v for v in divisors(layer.n) if v == 1 or v * vector * share <= matrix)


def candidates(network: Network, dtype: str, share: int) -> list[tuple[str, int, int]]:
    """Layers that may stream: (name, block, bits kept off chip), the cheapest traffic first."""
    found = []
    for layer in network.layers:
        block = block_of(layer, share) if isinstance(layer, Dense) else 0
        if isinstance(layer, Dense) and block:
            bits = weight_bits(layer, dtype)
            found.append((layer.n // block, -bits, layer.name, block))
    return [(name, block, -bits) for _, bits, name, block in sorted(found)]


def chosen(network: Network, dtype: str, share: int, count: int) -> dict[str, int]:
    """The first ``count`` candidates: layer name to vectors per pass."""
    return {name: block for name, block, _ in candidates(network, dtype, share)[:count]}


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
