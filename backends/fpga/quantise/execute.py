"""A stage's network run in torch, layer by layer, so that gradients reach every edge.

Edges hold ``[rows, channels]`` in stream order. What is done to an edge before anyone reads it
(rounded, disturbed, looked at) is a hook's business; see `Hook`.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor

from pipec.backends.fpga.engines.base import Layer
from pipec.backends.fpga.engines.mvu import Mvu
from pipec.backends.fpga.engines.network import Network
from pipec.backends.fpga.engines.parts import UNCLAMPED, Array, Table
from pipec.backends.fpga.engines.vvu import Vvu
from pipec.backends.fpga.numbers import Int8, decode, encode, int8_format, unpack

Hook = Callable[[int, str, Layer | None, Tensor], Tensor]
"""Stage, edge, the layer that writes it (None for an input of the model), its value; what the
readers get."""


class Chain:
    """The networks of all stages, one after the other; tables are made into tensors once."""

    def __init__(self, networks: Sequence[Network]) -> None:
        self.networks = networks
        self._tables: dict[int, Tensor] = {}

    def table(self, table: Table) -> Tensor:
        """A table as float32, one of indices as integers."""
        if id(table) not in self._tables:
            values = np.asarray(table.values())
            kind = torch.int64 if values.dtype.kind in "iu" else torch.float32
            self._tables[id(table)] = torch.tensor(values, dtype=kind)
        return self._tables[id(table)]

    def run(self, inputs: Mapping[str, Tensor], hook: Hook) -> list[dict[str, Tensor]]:
        """Outputs of each stage for one frame of inputs, by name, in the model's shapes.

        The hook is called once for every edge; an edge from another stage is not an input.
        """
        known, found = dict(inputs), list[dict[str, Tensor]]()
        for stage, network in enumerate(self.networks):
            sent, edges = {name for outputs in found for name in outputs}, dict[str, Tensor]()
            for port in network.inputs:
                x = known[port.value].permute(port.order).reshape(port.use.rows, port.use.channels)
                x = x.float() if x.dtype.is_floating_point else x.long()
                x = x if port.value in sent else hook(stage, port.use.edge, None, x)
                edges[port.use.edge] = x
            for layer in network.layers:
                reads = [edges[use.edge].reshape(use.rows, use.channels) for use in layer.inputs]
                result = layer.nest.compute(layer, reads, self.table)
                if layer.clamp != UNCLAMPED:
                    result = result.clamp(*layer.clamp)
                result = result.reshape(layer.rows, layer.channels)
                result = result.long() if layer.dtype == "int32" else result.float()
                edges[layer.name] = hook(stage, layer.name, layer, result)
            outputs = {}
            for port in network.outputs:
                shape = [port.shape[axis] for axis in port.order]
                back = [port.order.index(axis) for axis in range(len(port.order))]
                outputs[port.value] = edges[port.use.edge].reshape(shape).permute(back)
            found.append(outputs)
            known |= outputs
        return found


def store_tables(network: Network, precision: str) -> Network:
    """The network in real numbers, its tables those that the engines read.

    For ``int8`` it has formats and whole numbers (`pipec.backends.fpga.quantise.layers`).
    """
    convert = (
        _integer if precision == "int8" else lambda layer: _cast(layer, layer.arithmetic(precision))
    )
    return dataclasses.replace(network, layers=tuple(convert(y) for y in network.layers))


def _cast(layer: Layer, precision: str) -> Layer:
    """A layer whose tables hold numbers of a type."""

    def round_table(w: Array) -> Array:
        return decode(encode(w, precision), precision)

    steps = (
        dataclasses.replace(s, table=s.table and s.table.apply(round_table)) for s in layer.steps
    )
    tables = {role: table.apply(round_table) for role, table in layer.tables.items()}
    return dataclasses.replace(layer, steps=tuple(steps), tables=tables)


def _integer(layer: Layer) -> Layer:
    """A layer of whole numbers in real ones: ``(W q + bias) * multiplier / 2**shift`` steps."""
    if not isinstance(layer.nest, Mvu | Vvu) or layer.rescale is None:
        return layer
    reads, writes = (cast("Int8", int8_format(t)) for t in (layer.inputs[0].dtype, layer.dtype))
    whole = np.asarray(layer.tables["weight"].values(), dtype=np.float64)
    bias, multiplier = unpack(np.asarray(layer.tables["rescale"].values()))
    over = tuple(range(bias.ndim, whole.ndim))
    gain = multiplier * 2.0**-layer.rescale.shift * writes.scale
    weight = whole * (gain / reads.scale).reshape(gain.shape + (1,) * len(over))
    start = (bias + reads.zero * whole.sum(over)) * gain
    return layer.with_tables(weight=Table(lambda: weight), bias=Table(lambda: start))
