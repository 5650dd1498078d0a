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
from pipec.backends.fpga.lowering.layers import UNCLAMPED, Elementwise, Layer, Table
from pipec.backends.fpga.lowering.network import Network
from pipec.backends.fpga.nests import Map, Matmul, Mvu, Norm, Reduce, Swg, Vvu
from pipec.backends.fpga.routing import Concat, Const, Gather, Nest, Perm, Repeat, Slice

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
            result = compute(layer.nest, layer, reads, self.table)
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


Tables = Callable[[Table], Tensor]


@singledispatch
def compute(nest: Nest, layer: Layer, reads: Sequence[Tensor], table: Tables) -> Tensor:
    """The results of a layer, elements in stream order.

    Args:
        nest: That of the layer.
        layer: Any layer of inference, in real numbers.
        reads: Its inputs, in the rows in which it reads them.
        table: Tables as tensors.
    """
    raise TypeError(type(nest).__name__)


def _padded(window: Swg, x: Tensor, value: float) -> Tensor:
    """``[batch, channels, h, w]`` with the padding of a window around it."""
    maps = x.reshape(window.batch, window.h, window.w, window.cf).permute(0, 3, 1, 2)
    high = (window.oh - 1) * window.sh + (window.kh - 1) * window.dh + 1
    wide = (window.ow - 1) * window.sw + (window.kw - 1) * window.dw + 1
    bottom, right = high - window.pt - window.h, wide - window.pl - window.w
    return functional.pad(maps, (window.pl, right, window.pt, bottom), value=value)


def _convolved(window: Swg, x: Tensor, weight: Tensor, groups: int) -> Tensor:
    """``[batch, oh, ow, out]`` of ``x``."""
    found = functional.conv2d(
        _padded(window, x, 0.0), weight, None, (window.sh, window.sw), 0,
        (window.dh, window.dw), groups,
    )  # fmt: skip
    return found.permute(0, 2, 3, 1)


def _biased(layer: Layer, found: Tensor, table: Tables) -> Tensor:
    return found + table(layer.tables["bias"]) if "bias" in layer.tables else found


@compute.register
def _mvu(nest: Mvu, layer: Layer, reads: Sequence[Tensor], table: Tables) -> Tensor:
    weight, window = table(layer.tables["weight"]), layer.window
    if window is not None:
        kernel = weight.reshape(-1, window.kh, window.kw, nest.channels).permute(0, 3, 1, 2)
        found = _convolved(window, reads[0], kernel, nest.groups)
    else:
        x = reads[0].reshape(nest.n, nest.groups, -1).transpose(0, 1)
        matrix = weight.reshape(nest.groups, nest.rows, -1).transpose(1, 2)
        found = (x @ matrix).transpose(0, 1)
    return _biased(layer, found.reshape(nest.n, nest.groups, nest.rows), table)


@compute.register
def _vvu(nest: Vvu, layer: Layer, reads: Sequence[Tensor], table: Tables) -> Tensor:
    assert layer.window is not None
    window, channels = layer.window, nest.channels
    kernel = table(layer.tables["weight"]).reshape(channels, 1, window.kh, window.kw)
    return _biased(layer, _convolved(window, reads[0], kernel, channels), table)


@compute.register
def _reduce(nest: Reduce, layer: Layer, reads: Sequence[Tensor], table: Tables) -> Tensor:
    window = layer.window
    if window is None:
        x = reads[0].reshape(layer.rows, nest.window, layer.channels)
        if nest.op == "sum":
            return x.sum(1) * nest.scale
        return x.amax(1) if nest.op == "max" else x.amin(1)
    if nest.op == "sum":
        ones = torch.ones(window.cf, 1, window.kh, window.kw)
        found = _convolved(window, reads[0], ones, window.cf)
        if "scale" in layer.tables:
            return found * table(layer.tables["scale"]).reshape(window.oh, window.ow, 1)
        return found * nest.scale
    maps = _padded(window, reads[0], -np.inf)
    found = functional.max_pool2d(
        maps, (window.kh, window.kw), (window.sh, window.sw), 0, (window.dh, window.dw)
    )
    return found.permute(0, 2, 3, 1)


@compute.register
def _map(nest: Map, layer: Layer, reads: Sequence[Tensor], table: Tables) -> Tensor:
    assert isinstance(layer, Elementwise)
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
def _norm(nest: Norm, layer: Layer, reads: Sequence[Tensor], table: Tables) -> Tensor:
    x = reads[0].reshape(nest.rows, nest.taps * nest.channels)
    if nest.op == "softmax":
        y = torch.softmax(x, -1)
    elif nest.op == "log_softmax":
        y = torch.log_softmax(x, -1)
    elif nest.op == "layer_norm":
        y = functional.layer_norm(x, x.shape[1:], eps=nest.eps)
    elif nest.op == "rms_norm":
        y = x * (x.square().mean(-1, keepdim=True) + nest.eps).rsqrt()
    else:
        wide = functional.pad(x.square(), ((nest.size - 1) // 2, nest.size // 2))
        total = wide.unfold(1, nest.size, 1).sum(-1)
        y = x / (nest.k + nest.alpha / nest.size * total) ** nest.beta
    rows = {role: table(found).reshape(-1) for role, found in layer.tables.items()}
    y = y * rows["scale"] if "scale" in rows else y
    return y + rows["shift"] if "shift" in rows else y


@compute.register
def _matmul(nest: Matmul, layer: Layer, reads: Sequence[Tensor], table: Tables) -> Tensor:
    reduction = nest.taps * nest.channels
    a = reads[0].reshape(nest.blocks, nest.outer, nest.groups, nest.inner, reduction)
    b = reads[1].reshape(nest.blocks, *nest.b_sizes)
    order = [k for role in "gnk" for k, r in enumerate(nest.b_roles) if r == role]
    b = b.permute(0, *(k + 1 for k in order))
    b = b.reshape(nest.blocks, nest.groups, nest.rows, reduction)
    return torch.einsum("bogik,bgnk->bogin", a, b) * nest.scale


@compute.register
def _concat(nest: Concat, layer: Layer, reads: Sequence[Tensor], table: Tables) -> Tensor:
    parts = zip(reads, nest.sizes, strict=True)
    return torch.cat([x.reshape(nest.outer, size) for x, size in parts], 1)


@compute.register
def _slice(nest: Slice, layer: Layer, reads: Sequence[Tensor], table: Tables) -> Tensor:
    x = reads[0].reshape(nest.outer, nest.size, nest.inner)
    return x[:, nest.start : nest.stop : nest.step]


@compute.register
def _perm(nest: Perm, layer: Layer, reads: Sequence[Tensor], table: Tables) -> Tensor:
    x = reads[0].reshape(nest.blocks, *nest.sizes)
    return x.permute(0, *(axis + 1 for axis in nest.order))


@compute.register
def _gather(nest: Gather, layer: Layer, reads: Sequence[Tensor], table: Tables) -> Tensor:
    return table(layer.tables["table"])[reads[0].reshape(-1)]


@compute.register
def _const(nest: Const, layer: Layer, reads: Sequence[Tensor], table: Tables) -> Tensor:
    return table(layer.tables["table"])


@compute.register
def _repeat(nest: Repeat, layer: Layer, reads: Sequence[Tensor], table: Tables) -> Tensor:
    x = reads[0].reshape(nest.outer, 1, -1)
    return x.expand(nest.outer, nest.times, x.shape[-1])
