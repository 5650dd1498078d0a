"""A network with its weights as they are stored: what is left of them in narrow numbers."""

import dataclasses
from typing import cast

import numpy as np

from pipec.backends.fpga.engines.base import Layer
from pipec.backends.fpga.engines.map import Elementwise
from pipec.backends.fpga.engines.mvu import Mvu
from pipec.backends.fpga.engines.parts import Table
from pipec.backends.fpga.engines.vvu import Vvu
from pipec.backends.fpga.int8 import Int8, int8_format, unpacked
from pipec.backends.fpga.lowering.network import Network
from pipec.backends.fpga.numbers import decoded, encoded


def stored(network: Network, precision: str) -> Network:
    """The network in real numbers, its tables those that the engines read.

    Args:
        network: As lowered for the precision; for ``int8`` with formats and whole numbers
            (`pipec.backends.fpga.quantise.layers`).
        precision: Element type of the streams.
    """
    convert = _integer if precision == "int8" else lambda layer: _held(layer, precision)
    return dataclasses.replace(network, layers=tuple(convert(y) for y in network.layers))


def types_of(network: Network) -> dict[str, str]:
    """The element type of every edge of a network that has formats."""
    found = {port.use.edge: port.use.dtype for port in network.inputs}
    return found | {layer.name: layer.dtype for layer in network.layers}


def _held(layer: Layer, precision: str) -> Layer:
    """A layer whose tables hold numbers of a type."""

    def table(of: Table) -> Table:
        """The table after rounding."""
        return Table(lambda: decoded(encoded(np.asarray(of.values()), precision), precision))

    if isinstance(layer, Elementwise):
        steps = tuple(
            s if s.table is None else dataclasses.replace(s, table=table(s.table))
            for s in layer.steps
        )
        return dataclasses.replace(layer, steps=steps)
    return layer.with_tables(**{role: table(found) for role, found in layer.tables.items()})


def _integer(layer: Layer) -> Layer:
    """A layer of whole numbers in real ones: ``(W q + bias) * multiplier / 2**shift`` steps."""
    if not isinstance(layer.nest, Mvu | Vvu) or layer.rescale is None:
        return layer
    reads, writes = (cast("Int8", int8_format(t)) for t in (layer.inputs[0].dtype, layer.dtype))
    whole = np.asarray(layer.tables["weight"].values(), dtype=np.float64)
    bias, multiplier = unpacked(np.asarray(layer.tables["rescale"].values()))
    over = tuple(range(bias.ndim, whole.ndim))
    gain = multiplier * 2.0**-layer.rescale.shift * writes.scale
    weight = whole * (gain / reads.scale).reshape(gain.shape + (1,) * len(over))
    start = (bias + reads.zero * whole.sum(over)) * gain
    return layer.with_tables(weight=Table(lambda: weight), bias=Table(lambda: start))
