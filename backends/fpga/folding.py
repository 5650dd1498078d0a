"""A network folded for a target interval: the cheapest factors of every layer, put together."""

from collections.abc import Mapping

from pipec.backends.fpga.assemble import assemble
from pipec.backends.fpga.build import Built, fold
from pipec.backends.fpga.design import StageDesign
from pipec.backends.fpga.engines.base import Folded
from pipec.backends.fpga.lowering.network import Network


def design_at(
    network: Network,
    target: int,
    *,
    name: str = "stage0",
    dtype: str = "float32",
    streamed: Mapping[str, int] | None = None,
    built: dict[tuple[str, Folded], Built] | None = None,
) -> StageDesign:
    """The design with the cheapest factors for a target interval, limits not looked at.

    Args:
        network: What is computed.
        target: Cycles per frame to aim at.
        name: Stage name.
        dtype: Type of the data streams.
        streamed: Dense layer to vectors per pass over weights that are streamed from DDR.
        built: Engines of layers as they were folded before; added to.
    """
    blocks = streamed or {}
    folded = {
        layer.name: fold(layer, target, dtype, block=blocks.get(layer.name, 0))
        for layer in network.layers
    }
    made, inputs, outputs = assemble(network, folded, dtype, built)
    return StageDesign(
        name, tuple(made.engines.values()), made.streams, inputs, outputs, precision=dtype
    )
