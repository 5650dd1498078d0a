"""A plain numpy execution of a stage design, engine by engine, whole frames at a time.

Independent of the C++: it follows the docstrings of the nests. Streams are arrays of tokens,
``[tokens][lanes]``; padding lanes must be zero, and that is checked.
"""

from collections.abc import Callable, Sequence
from functools import partial, singledispatch
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pipec.backends.fpga.design import StageDesign, Stream
from pipec.backends.fpga.engines.base import Engine, Layer, Rows
from pipec.backends.fpga.engines.gear import Dwc
from pipec.backends.fpga.engines.map import Map
from pipec.backends.fpga.engines.matmul import Matmul
from pipec.backends.fpga.engines.memory import Gather, Load
from pipec.backends.fpga.engines.mvu import Mvu
from pipec.backends.fpga.engines.norm import Norm
from pipec.backends.fpga.engines.parts import Table
from pipec.backends.fpga.engines.perm import Perm
from pipec.backends.fpga.engines.reduce import Reduce
from pipec.backends.fpga.engines.route import Concat, Const, Fork, Repeat, Slice
from pipec.backends.fpga.engines.swg import Swg
from pipec.backends.fpga.engines.vvu import Vvu

Array = NDArray[Any]


def tokens(rows: Array, lanes: int) -> Array:
    """[rows][channels] -> [tokens][lanes], zero padded."""
    channels = rows.shape[1]
    width = -(-channels // lanes) * lanes
    return np.pad(rows, ((0, 0), (0, width - channels))).reshape(-1, lanes)


def elements(array: Array, rows: int, channels: int) -> Array:
    """[tokens][lanes] -> [rows][channels]."""
    return np.asarray(array.reshape(rows, -1)[:, :channels])


@singledispatch
def run(nest: Any, engine: Engine, args: Sequence[Array]) -> list[Array]:
    """A kind without a line here, as it says itself; its sample is compared with torch.

    Its tables, if any, are rows cut into tokens.
    """
    assert isinstance(nest, Rows), type(nest)
    tables = {w.role: Table(partial(_rows, engine, w.role, nest)) for w in engine.weights}
    layer = Layer(engine.name, "", "", (), nest.rows, nest.channels, nest, tables=tables)
    reads = [torch.from_numpy(elements(a, nest.rows, nest.channels)) for a in args]
    found = nest.compute(layer, reads, lambda t: torch.from_numpy(t.values()))
    return [tokens(found.numpy(), nest.lanes)]


def _rows(engine: Engine, role: str, nest: Rows) -> Array:
    found = table(engine, role)
    return elements(found, found.size // (nest.cf * nest.lanes), nest.channels)


def table(engine: Engine, role: str) -> Array:
    found = engine.weight(role)
    assert found is not None, (engine.name, role)
    values = np.asarray(found.values())
    assert values.shape == found.shape
    return values


@run.register
def _swg(n: Swg, engine: Engine, args: Sequence[Array]) -> list[Array]:
    x = args[0].reshape(n.batch, n.h, n.w, n.cf, n.lanes)
    span_h, span_w = (n.kh - 1) * n.dh + 1, (n.kw - 1) * n.dw + 1
    bottom = max((n.oh - 1) * n.sh + span_h - n.pt - n.h, 0)
    right = max((n.ow - 1) * n.sw + span_w - n.pl - n.w, 0)
    pads = ((0, 0), (n.pt, bottom), (n.pl, right), (0, 0), (0, 0))
    x = np.pad(x, pads, constant_values=n.pad_value)
    taps = [
        x[:, ky * n.dh : ky * n.dh + (n.oh - 1) * n.sh + 1 : n.sh,
          kx * n.dw : kx * n.dw + (n.ow - 1) * n.sw + 1 : n.sw]
        for ky in range(n.kh) for kx in range(n.kw)
    ]  # fmt: skip
    w = np.stack(taps, 3)  # batch oh ow taps cf lanes
    w = w.reshape(n.batch, n.oh, n.ow, n.taps // n.kp, n.kp, n.groups, n.cf // n.groups, n.lanes)
    w = w.transpose(0, 1, 2, 5, 3, 6, 4, 7)
    return [w.reshape(-1, n.kp * n.lanes)]


@run.register
def _mvu(n: Mvu, engine: Engine, args: Sequence[Array]) -> list[Array]:
    x = args[0].reshape(n.n, n.groups, n.sf * n.simd)
    if n.streamed:
        w = args[1].reshape(n.n // n.block, -1)[0]
        shape = (n.groups, n.sf, n.nf, n.simd, n.pe) if n.order == "B" else (
            n.groups, n.nf, n.sf, n.simd, n.pe)  # fmt: skip
        w = w.reshape(shape)
        if n.order == "B":
            w = w.transpose(0, 2, 1, 3, 4)
    else:
        w = table(engine, "weight")
    w = w.transpose(0, 2, 3, 1, 4).reshape(n.groups, n.sf * n.simd, n.nf * n.pe)
    y = np.einsum("vgk,gko->vgo", x, w)
    if n.bias:
        y = y + table(engine, "bias").reshape(1, n.groups, n.nf * n.pe)
    return [y.reshape(-1, n.pe)]


@run.register
def _vvu(n: Vvu, engine: Engine, args: Sequence[Array]) -> list[Array]:
    x = args[0].reshape(n.n, n.cf, n.taps // n.kp, n.kp, n.lanes)
    y = (x * table(engine, "weight")).sum((2, 3))
    if n.bias:
        y = y + table(engine, "bias")
    return [y.reshape(-1, n.lanes)]


@run.register
def _reduce(n: Reduce, engine: Engine, args: Sequence[Array]) -> list[Array]:
    x = args[0].reshape(n.n, n.window, n.cf, n.kp, n.lanes)
    reducers: dict[str, Any] = {"max": np.max, "min": np.min, "sum": np.sum}
    y = reducers[n.op](x, (1, 3))
    if n.table:
        y = y * np.resize(table(engine, "scale"), n.n)[:, None, None]
    return [(y * n.scale).reshape(-1, n.lanes)]


def _unary(op: str, x: Array) -> Array:
    t = torch.from_numpy(x)
    special: dict[str, Any] = {
        "gelu": torch.nn.functional.gelu,
        "gelu_tanh": lambda v: torch.nn.functional.gelu(v, approximate="tanh"),
        "silu": torch.nn.functional.silu,
        "softplus": torch.nn.functional.softplus,
    }
    function = special[op] if op in special else getattr(torch, op)
    return np.asarray(function(t).numpy())


_TWO: dict[str, Any] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "max": np.maximum,
    "min": np.minimum, "pow": np.power, "rsub": lambda x, y: y - x, "rdiv": lambda x, y: y / x,
    "rpow": lambda x, y: y**x,
}  # fmt: skip


@run.register
def _map(n: Map, engine: Engine, args: Sequence[Array]) -> list[Array]:
    x = args[0]
    for k, step in enumerate(n.steps):
        if step.op == "leaky_relu":
            x = np.where(x > 0, x, x * step.value)
        elif step.op == "elu":
            x = np.where(x > 0, x, step.value * np.expm1(x))
        elif step.operand == "none":
            x = _unary(step.op, x)
        elif step.operand == "scalar":
            x = _TWO[step.op](x, step.value)
        elif step.operand == "table":
            y = table(engine, f"table{k}")
            assert len(y) == step.period
            x = _TWO[step.op](x, np.resize(y, x.shape))
        else:
            x = _TWO[step.op](x, args[1])
    return [x]


@run.register
def _norm(n: Norm, engine: Engine, args: Sequence[Array]) -> list[Array]:
    x = args[0].reshape(n.rows * n.taps, -1)[:, : n.channels].reshape(n.rows, n.taps * n.channels)
    t = torch.from_numpy(x)
    if n.op == "softmax":
        y = torch.softmax(t, -1).numpy()
    elif n.op == "log_softmax":
        y = torch.log_softmax(t, -1).numpy()
    elif n.op == "layer_norm":
        y = torch.layer_norm(t, t.shape[1:], eps=n.eps).numpy()
    elif n.op == "rms_norm":
        y = x / np.sqrt((x**2).mean(-1, keepdims=True) + n.eps)
    else:
        square = np.pad(x**2, ((0, 0), ((n.size - 1) // 2, n.size // 2)))
        total = sum(square[:, k : k + x.shape[1]] for k in range(n.size))
        y = x / (n.k + n.alpha / n.size * total) ** n.beta
    y = tokens(y.reshape(n.rows * n.taps, n.channels), n.lanes)
    for role, op in (("scale", np.multiply), ("shift", np.add)):
        if getattr(n, role):
            y = op(y, np.resize(table(engine, role), y.shape))
    return [y]


@run.register
def _fork(n: Fork, engine: Engine, args: Sequence[Array]) -> list[Array]:
    return [args[0]] * n.outputs


@run.register
def _concat(n: Concat, engine: Engine, args: Sequence[Array]) -> list[Array]:
    parts = [a.reshape(n.outer, size, -1) for a, size in zip(args, n.sizes, strict=True)]
    return [np.concatenate(parts, 1).reshape(-1, parts[0].shape[-1])]


@run.register
def _slice(n: Slice, engine: Engine, args: Sequence[Array]) -> list[Array]:
    x = args[0].reshape(n.outer, n.size, n.inner, -1)[:, n.start : n.stop : n.step]
    return [x.reshape(-1, x.shape[-1])]


@run.register
def _dwc(n: Dwc, engine: Engine, args: Sequence[Array]) -> list[Array]:
    x = elements(args[0], n.repeat * n.rows_in, n.channels_in)
    return [tokens(x.reshape(n.repeat * n.rows_out, n.channels_out), n.lanes_out)]


@run.register
def _perm(n: Perm, engine: Engine, args: Sequence[Array]) -> list[Array]:
    rows = n.blocks * n.elements // n.channels_in
    x = elements(args[0], rows, n.channels_in).reshape(n.blocks, *n.sizes)
    x = np.flip(x, tuple(k + 1 for k in n.backwards))
    x = x.transpose(0, *(k + 1 for k in n.order))
    return [tokens(x.reshape(-1, n.channels_out), n.lanes_out)]


@run.register
def _matmul(n: Matmul, engine: Engine, args: Sequence[Array]) -> list[Array]:
    a = args[0].reshape(n.blocks, n.outer, n.groups, n.inner, -1)
    a = elements(args[0], n.blocks * n.vectors * n.taps, n.channels)
    a = a.reshape(n.blocks, n.outer, n.groups, n.inner, n.taps * n.channels)
    rows = n.blocks * int(np.prod(n.b_sizes[:-1]))
    b = elements(args[1], rows, n.b_sizes[-1]).reshape(n.blocks, *n.b_sizes)
    order = [k for role in "gnk" for k, r in enumerate(n.b_roles) if r == role]
    b = b.transpose(0, *(k + 1 for k in order))
    b = b.reshape(n.blocks, n.groups, n.rows, n.taps * n.channels)
    y = np.einsum("bogik,bgnk->bogin", a, b) * n.scale
    return [tokens(y.reshape(-1, n.rows), n.pe)]


@run.register
def _gather(n: Gather, engine: Engine, args: Sequence[Array]) -> list[Array]:
    index = args[0].reshape(-1).astype(np.int64)
    assert len(index) == n.rows
    return [table(engine, "table")[index].reshape(-1, n.lanes)]


@run.register
def _load(n: Load, engine: Engine, args: Sequence[Array]) -> list[Array]:
    return [np.tile(table(engine, "weight"), (n.repeat, 1))]


@run.register
def _const(n: Const, engine: Engine, args: Sequence[Array]) -> list[Array]:
    return [table(engine, "table")]


@run.register
def _repeat(n: Repeat, engine: Engine, args: Sequence[Array]) -> list[Array]:
    x = args[0].reshape(n.outer, 1, n.inner, -1)
    return [np.repeat(x, n.times, 1).reshape(-1, x.shape[-1])]


def check_stream(stream: Stream, found: Array) -> Array:
    assert found.shape == (stream.tokens, stream.lanes), (stream, found.shape)
    padded = found.reshape(stream.rows, -1)
    return np.asarray(padded[:, : stream.channels])


def _engine(engine: Engine, args: Sequence[Array]) -> list[Array]:
    return run(engine.nest, engine, args)


def _as_is(x: Array, dtype: str) -> Array:
    return x


def execute(
    design: StageDesign,
    inputs: dict[str, torch.Tensor],
    engine_run: Callable[[Engine, Sequence[Array]], list[Array]] = _engine,
    enter: Callable[[Array, str], Array] = _as_is,
) -> dict[str, torch.Tensor]:
    """Inputs by value name to outputs by value name, in the model's shapes (float64)."""
    held: dict[str, Array] = {}
    for port in design.inputs:
        stream = design.streams[port.stream]
        x = inputs[port.value].permute(port.order).reshape(stream.rows, stream.channels)
        held[port.stream] = tokens(enter(x.double().numpy(), stream.dtype), stream.lanes)
    for engine in design.engines:
        results = engine_run(engine, [held[s] for s in engine.inputs])
        for name, result in zip(engine.outputs, results, strict=True):
            stream = design.streams[name]
            valid = check_stream(stream, result)
            held[name] = tokens(valid, stream.lanes)  # every engine writes padding as zero
    outputs = {}
    for port in design.outputs:
        stream = design.streams[port.stream]
        flat = torch.from_numpy(elements(held[port.stream], stream.rows, stream.channels).copy())
        shape = [port.shape[d] for d in port.order]
        back = [port.order.index(d) for d in range(len(port.order))]
        outputs[port.value] = flat.reshape(shape).permute(back)
    return outputs
