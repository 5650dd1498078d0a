"""Recurrent layers: one ATen op each, gates reordered; where that cannot be, unrolled in time."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pipec.frontends.onnx.context import Context, Result, lowering
from pipec.frontends.onnx.refusals import Refused
from pipec.frontends.onnx.values import Value

_GATES = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}
"""ONNX gate of each torch gate: iofc -> ifgo, zrh -> rzn."""

_ACTIVATIONS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}


@dataclass(frozen=True)
class Layer:
    """The inputs of a recurrent node, batch second, gates in torch's order.

    Attributes:
        x: Input of shape [time, batch, features].
        w: Input weights, one entry per direction.
        r: Recurrent weights, one entry per direction.
        b: Biases of input and recurrent part per direction, or empty.
        states: Initial states, [directions, batch, hidden] each.
    """

    x: Tensor
    w: list[Tensor]
    r: list[Tensor]
    b: list[tuple[Tensor, Tensor]]
    states: list[Tensor]

    @property
    def weights(self) -> list[Tensor]:
        """As torch's recurrent ops want them, direction by direction."""
        flat: list[Tensor] = []
        for k, (w, r) in enumerate(zip(self.w, self.r, strict=True)):
            flat += [w, r, *(self.b[k] if self.b else ())]
        return flat


def _reorder(t: Tensor, order: tuple[int, ...]) -> Tensor:
    if len(order) == 1:
        return t
    parts = t.chunk(len(order), 0)
    return torch.cat([parts[k] for k in order])


def _layer(ctx: Context, x: Tensor, w: Tensor, r: Tensor, b: Value, states: list[Value]) -> Layer:
    op, directions = ctx.node.op_type, w.shape[0]
    order, hidden = _GATES[op], r.shape[2]
    if ctx.attr("layout", 0):
        x = x.transpose(0, 1)
    biases = []
    for k in range(directions if b is not None else 0):
        halves = ctx.tensor(b)[k].chunk(2, 0)
        biases.append((_reorder(halves[0], order), _reorder(halves[1], order)))
    shape = (directions, x.shape[1], hidden)
    started = []
    for value in states:
        state = x.new_zeros(shape) if value is None else ctx.tensor(value)
        turned = value is not None and ctx.attr("layout", 0)
        started.append(state.transpose(0, 1) if turned else state)
    return Layer(
        x=x,
        w=[_reorder(w[k], order) for k in range(directions)],
        r=[_reorder(r[k], order) for k in range(directions)],
        b=biases,
        states=started,
    )


def _check(ctx: Context, lengths: Value) -> None:
    op = ctx.node.op_type
    directions = 2 if ctx.attr("direction", "forward") == "bidirectional" else 1
    found = [a.capitalize() for a in ctx.attr("activations", _ACTIVATIONS[op] * directions)]
    if op != "RNN" and found != _ACTIVATIONS[op] * directions:
        raise Refused(f"activations {found}")
    if op == "RNN" and (len(set(found)) > 1 or found[0] not in ("Tanh", "Relu")):
        raise Refused(f"activations {found}")
    if ctx.attr("clip") or ctx.attr("input_forget", 0):
        raise Refused("clip or input_forget")
    if lengths is not None:
        raise Refused("sequence lengths")


def _results(ctx: Context, y: Tensor, states: tuple[Tensor, ...], directions: int) -> Result:
    """ONNX's outputs: [time, directions, batch, hidden] and the last states."""
    time, batch, _ = y.shape
    sequence = y.reshape(time, batch, directions, -1).transpose(1, 2)
    if ctx.attr("layout", 0):
        sequence = sequence.permute(2, 0, 1, 3)
        states = tuple(s.transpose(0, 1) for s in states)
    return (sequence, *states)


def _backwards(ctx: Context) -> bool:
    return bool(ctx.attr("direction", "forward") == "reverse")


@lowering("LSTM", "GRU", "RNN", raw=(3, 4, 5, 6, 7))
def recurrent(
    ctx: Context,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Value = None,
    lengths: Value = None,
    h: Value = None,
    c: Value = None,
    peepholes: Value = None,
) -> Result:
    """A recurrent layer; a GRU with the reset gate before the product is unrolled."""
    op = ctx.node.op_type
    _check(ctx, lengths)
    if x.dim() != 3:
        raise Refused(f"an input of {x.dim()} dimensions", final=True)
    if peepholes is not None:
        raise Refused("peepholes")
    layer = _layer(ctx, x, w, r, b, [h, c] if op == "LSTM" else [h])
    if op == "GRU" and not ctx.attr("linear_before_reset", 0):
        return _unroll_gru(ctx, layer)
    relu = ctx.attr("activations", ["Tanh"])[0].capitalize() == "Relu"
    function = _FUNCTIONS.get(op, torch.rnn_relu if relu else torch.rnn_tanh)
    source = layer.x.flip(0) if _backwards(ctx) else layer.x
    states = layer.states if op == "LSTM" else layer.states[0]
    both = len(layer.w) == 2
    y, *last = function(source, states, layer.weights, bool(layer.b), 1, 0.0, False, both, False)
    return _results(ctx, y.flip(0) if _backwards(ctx) else y, tuple(last), len(layer.w))


_FUNCTIONS: dict[str, Callable[..., tuple[Tensor, ...]]] = {"LSTM": torch.lstm, "GRU": torch.gru}
_LONGEST_UNROLLED = 256


def _unroll_gru(ctx: Context, layer: Layer) -> Result:
    """Gates r, z, n step by step, with ``n = tanh(W x + R (r * h))``."""
    steps = layer.x.shape[0]
    if steps > _LONGEST_UNROLLED:
        raise Refused(f"{steps} steps to unroll; at most {_LONGEST_UNROLLED}")
    outputs, lasts = [], []
    for k, (w, r) in enumerate(zip(layer.w, layer.r, strict=True)):
        back = _backwards(ctx) or k == 1
        h, row = layer.states[0][k], list[Tensor]()
        bias = sum(layer.b[k]) if layer.b else None
        fed = layer.x @ w.t() if bias is None else layer.x @ w.t() + bias
        gates, new = r[: 2 * h.shape[-1]], r[2 * h.shape[-1] :]
        for t in range(steps)[:: -1 if back else 1]:
            fr, fz, fn = fed[t].chunk(3, -1)
            hr, hz = (h @ gates.t()).chunk(2, -1)
            reset, update = torch.sigmoid(fr + hr), torch.sigmoid(fz + hz)
            candidate = torch.tanh(fn + (reset * h) @ new.t())
            h = (1 - update) * candidate + update * h
            row.append(h)
        outputs.append(torch.stack(row[::-1] if back else row))
        lasts.append(h)
    return _results(ctx, torch.cat(outputs, -1), (torch.stack(lasts),), len(layer.w))
