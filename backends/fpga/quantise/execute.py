"""A stage's network run in torch, layer by layer, so that gradients reach every edge.

Edges hold ``[rows, channels]`` in stream order. What is done to an edge before anyone reads it
(rounded, disturbed, looked at) is a hook's business; see `Hook`.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from pipec.backends.fpga.engines.base import Layer
from pipec.backends.fpga.engines.parts import UNCLAMPED, Table
from pipec.backends.fpga.lowering.network import Network

Hook = Callable[[int, str, Layer | None, Tensor], Tensor]
"""Stage, edge, the layer that writes it (None for an input of the model), its value; what the
readers get."""


class Chain:
    """The networks of all stages, one after the other; tables are made into tensors once.

    Args:
        networks: In order, in real numbers.
    """

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
        """All stages on one frame.

        Args:
            inputs: The model's inputs, by name.
            hook: Called once for every edge; an edge from another stage is not an input.

        Returns:
            Per stage, the values that leave it by name, in the model's shapes.
        """
        known = dict(inputs)
        sent: set[str] = set()
        found = []
        for stage, network in enumerate(self.networks):
            outputs = self._stage(stage, network, known, sent, hook)
            found.append(outputs)
            known |= outputs
            sent |= outputs.keys()
        return found

    def _stage(
        self,
        stage: int,
        network: Network,
        known: Mapping[str, Tensor],
        sent: set[str],
        hook: Hook,
    ) -> dict[str, Tensor]:
        edges: dict[str, Tensor] = {}
        for port in network.inputs:
            x = known[port.value].permute(port.order).reshape(port.use.rows, port.use.channels)
            x = x.float() if x.dtype.is_floating_point else x.long()
            edges[port.use.edge] = x if port.value in sent else hook(stage, port.use.edge, None, x)
        for layer in network.layers:
            reads = [edges[use.edge].reshape(use.rows, use.channels) for use in layer.inputs]
            result = layer.nest.compute(layer, reads, self.table)
            if layer.clamp != UNCLAMPED:
                result = result.clamp(*layer.clamp)
            result = result.reshape(layer.rows, layer.channels)
            edges[layer.name] = hook(stage, layer.name, layer, result)
        outputs = {}
        for port in network.outputs:
            shape = [port.shape[axis] for axis in port.order]
            back = [port.order.index(axis) for axis in range(len(port.order))]
            outputs[port.value] = edges[port.use.edge].reshape(shape).permute(back)
        return outputs
