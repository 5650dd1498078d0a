"""A stage's network run in torch, layer by layer, so that gradients reach every edge.

Edges hold ``[rows, channels]`` in stream order. What is done to an edge before anyone reads it
(rounded, disturbed, looked at) is a hook's business; see `Hook`.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import singledispatch
from typing import cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from pipec.backends.fpga.emit.integer import combined, function
from pipec.backends.fpga.lowering import layers
from pipec.backends.fpga.lowering.layers import Layer, Table
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
            result = compute(layer, reads, self.table)
            if layer.clamp != layers.UNCLAMPED:
                result = result.clamp(*layer.clamp)
            result = result.reshape(layer.rows, layer.channels)
            edges[layer.name] = hook(stage, layer.name, layer, result)
        outputs = {}
        for port in network.outputs:
            shape = [port.shape[axis] for axis in port.order]
            back = [port.order.index(axis) for axis in range(len(port.order))]
            outputs[port.value] = edges[port.use.edge].reshape(shape).permute(back)
        return outputs


Tables = Callable[[Table], Tensor]


@singledispatch
def compute(layer: Layer, reads: Sequence[Tensor], table: Tables) -> Tensor:
    """The results of a layer, elements in stream order.

    Args:
        layer: Any layer of inference, in real numbers.
        reads: Its inputs, in the rows in which it reads them.
        table: Tables as tensors.
    """
    raise TypeError(type(layer).__name__)


def _padded(window: layers.Window, x: Tensor, channels: int, value: float) -> Tensor:
    """``[batch, channels, h, w]`` with the padding of a window around it."""
    maps = x.reshape(window.batch, window.h, window.w, channels).permute(0, 3, 1, 2)
    high = (window.oh - 1) * window.sh + (window.kh - 1) * window.dh + 1
    wide = (window.ow - 1) * window.sw + (window.kw - 1) * window.dw + 1
    bottom, right = high - window.pt - window.h, wide - window.pl - window.w
    return functional.pad(maps, (window.pl, right, window.pt, bottom), value=value)


def _convolved(window: layers.Window, x: Tensor, weight: Tensor, groups: int, over: int) -> Tensor:
    """``[batch, oh, ow, out]`` of ``x`` with ``over`` channels."""
    found = functional.conv2d(
        _padded(window, x, over, 0.0), weight, None, (window.sh, window.sw), 0,
        (window.dh, window.dw), groups,
    )  # fmt: skip
    return found.permute(0, 2, 3, 1)


@compute.register
def _dense(layer: layers.Dense, reads: Sequence[Tensor], table: Tables) -> Tensor:
    weight = table(layer.weight)
    if layer.window is not None:
        window = layer.window
        kernel = weight.reshape(-1, window.kh, window.kw, layer.cin).permute(0, 3, 1, 2)
        channels = layer.groups * layer.cin
        found = _convolved(window, reads[0], kernel, layer.groups, channels)
    else:
        x = reads[0].reshape(layer.n, layer.groups, -1).transpose(0, 1)
        matrix = weight.reshape(layer.groups, layer.out, -1).transpose(1, 2)
        found = (x @ matrix).transpose(0, 1)
    found = found.reshape(layer.n, layer.groups, layer.out)
    return found if layer.bias is None else found + table(layer.bias)


@compute.register
def _depthwise(layer: layers.Depthwise, reads: Sequence[Tensor], table: Tables) -> Tensor:
    window, channels = layer.window, layer.channels
    kernel = table(layer.weight).reshape(channels, 1, window.kh, window.kw)
    found = _convolved(window, reads[0], kernel, channels, channels)
    return found if layer.bias is None else found + table(layer.bias)


@compute.register
def _pool(layer: layers.Pool, reads: Sequence[Tensor], table: Tables) -> Tensor:
    window, channels = layer.window, layer.channels
    if layer.op == "sum":
        ones = torch.ones(channels, 1, window.kh, window.kw)
        found = _convolved(window, reads[0], ones, channels, channels)
        if layer.scales is not None:
            return found * table(layer.scales).reshape(window.oh, window.ow, 1)
        return found * layer.scale
    maps = _padded(window, reads[0], channels, -np.inf)
    found = functional.max_pool2d(
        maps, (window.kh, window.kw), (window.sh, window.sw), 0, (window.dh, window.dw)
    )
    return found.permute(0, 2, 3, 1)


@compute.register
def _row_reduce(layer: layers.RowReduce, reads: Sequence[Tensor], table: Tables) -> Tensor:
    x = reads[0].reshape(layer.rows, layer.window, layer.channels)
    if layer.op == "sum":
        return x.sum(1) * layer.scale
    return x.amax(1) if layer.op == "max" else x.amin(1)


@compute.register
def _elementwise(layer: layers.Elementwise, reads: Sequence[Tensor], table: Tables) -> Tensor:
    shape = (layer.rows, layer.channels)
    x = reads[0].reshape(shape)
    for step in layer.steps:
        if step.operand == "stream":
            x = combined(step.op, x, reads[1].reshape(shape))
        elif step.operand == "table":
            y = table(cast("Table", step.table)).reshape(step.period, -1)
            x = combined(step.op, x.reshape(-1, step.period, layer.channels), y).reshape(shape)
        else:
            x = function(step)(x)
    return x


@compute.register
def _row_norm(layer: layers.RowNorm, reads: Sequence[Tensor], table: Tables) -> Tensor:
    x = reads[0].reshape(layer.n, layer.taps * layer.cin)
    if layer.op == "softmax":
        y = torch.softmax(x, -1)
    elif layer.op == "log_softmax":
        y = torch.log_softmax(x, -1)
    elif layer.op == "layer_norm":
        y = functional.layer_norm(x, x.shape[1:], eps=layer.eps)
    elif layer.op == "rms_norm":
        y = x * (x.square().mean(-1, keepdim=True) + layer.eps).rsqrt()
    else:
        wide = functional.pad(x.square(), ((layer.size - 1) // 2, layer.size // 2))
        total = wide.unfold(1, layer.size, 1).sum(-1)
        y = x / (layer.k + layer.alpha / layer.size * total) ** layer.beta
    y = y if layer.scale is None else y * table(layer.scale).reshape(-1)
    return y if layer.shift is None else y + table(layer.shift).reshape(-1)


@compute.register
def _product(layer: layers.Product, reads: Sequence[Tensor], table: Tables) -> Tensor:
    reduction = layer.taps * layer.cin
    a = reads[0].reshape(layer.blocks, layer.outer, layer.groups, layer.inner, reduction)
    b = reads[1].reshape(layer.blocks, *layer.b_sizes)
    order = [k for role in "gnk" for k, r in enumerate(layer.b_roles) if r == role]
    b = b.permute(0, *(k + 1 for k in order))
    b = b.reshape(layer.blocks, layer.groups, layer.out, reduction)
    return torch.einsum("bogik,bgnk->bogin", a, b) * layer.scale


@compute.register
def _join(layer: layers.Join, reads: Sequence[Tensor], table: Tables) -> Tensor:
    parts = zip(reads, layer.sizes, strict=True)
    return torch.cat([x.reshape(layer.outer, size) for x, size in parts], 1)


@compute.register
def _cut(layer: layers.Cut, reads: Sequence[Tensor], table: Tables) -> Tensor:
    x = reads[0].reshape(layer.outer, layer.size, layer.inner)
    return x[:, layer.start : layer.stop : layer.step]


@compute.register
def _reorder(layer: layers.Reorder, reads: Sequence[Tensor], table: Tables) -> Tensor:
    x = reads[0].reshape(layer.blocks, *layer.sizes)
    return x.permute(0, *(axis + 1 for axis in layer.order))


@compute.register
def _lookup(layer: layers.Lookup, reads: Sequence[Tensor], table: Tables) -> Tensor:
    return table(layer.table)[reads[0].reshape(-1)]


@compute.register
def _constant(layer: layers.Constant, reads: Sequence[Tensor], table: Tables) -> Tensor:
    return table(layer.table)


@compute.register
def _broadcast(layer: layers.Broadcast, reads: Sequence[Tensor], table: Tables) -> Tensor:
    x = reads[0].reshape(layer.outer, 1, -1)
    return x.expand(layer.outer, layer.times, x.shape[-1])
