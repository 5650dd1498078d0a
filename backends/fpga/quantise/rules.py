"""What each layer makes of the errors of what it reads (`pipec.backends.fpga.quantise.errors`)."""

from collections.abc import Callable
from functools import singledispatch

import numpy as np
import torch

from pipec.backends.fpga.emit.integer import function
from pipec.backends.fpga.int8 import MULTIPLIER_BITS, int8_format
from pipec.backends.fpga.lowering.layers import (
    Constant,
    Dense,
    Depthwise,
    Elementwise,
    Join,
    Layer,
    Lookup,
    MapStep,
    Pool,
    Product,
    RowNorm,
    RowReduce,
    Table,
)
from pipec.backends.fpga.numbers import decoded, encoded
from pipec.backends.fpga.quantise.calibrate import DEVIATION, HIDDEN, Seen
from pipec.backends.fpga.quantise.errors import Error, Numbers, Numerics
from pipec.backends.fpga.quantise.layers import weight_scale

_FLOAT = 2.0**-24
_GRID = 2049
"""Points of a range at which the slope of a function is looked at."""


@singledispatch
def spread(layer: Layer, reads: list[Error], about: Numerics) -> Error:
    """Errors of a layer's results before they are rounded.

    Args:
        layer: Any layer of a network in real numbers.
        reads: Errors of its inputs, in the rows in which it reads them.
        about: The numbers on the edges.
    """
    return reads[0].rows(layer.channels)


def _stored(table: Table | None, precision: str) -> tuple[Numbers, Numbers]:
    """A table's numbers and how far the stored ones are off."""
    assert table is not None
    values = np.asarray(table.values(), dtype=np.float64)
    kept = precision if precision != "int8" else "float32"
    with np.errstate(invalid="ignore", over="ignore"):
        off = np.abs(decoded(encoded(values, kept), kept).astype(np.float64) - values)
    return values, off


def _sums(weight: Numbers, off: Numbers, read: Error, seen: Seen, over: tuple[int, ...]) -> Error:
    """Errors of sums of products with weights, which are ``off`` by so much.

    Args:
        weight: Its last axis is that of the channels read.
        off: Error of every weight.
        read: Errors of the channels.
        seen: What was seen of them.
        over: Axes that are summed over.
    """
    size = np.abs(weight)
    count = int(np.prod([weight.shape[axis] for axis in over]))
    worst = (size * read.worst).sum(over) + (off * (seen.largest + read.worst)).sum(over)
    worst = worst + _FLOAT * count * size.sum(over) * seen.largest
    # a ReLU before passes the errors of what it lets through
    active = read.variance * seen.density
    variance = (size**2 * active).sum(over) + (off**2).sum(over) * seen.square
    return Error(worst.reshape(-1), variance.reshape(-1))


@spread.register
def _dense(layer: Dense, reads: list[Error], about: Numerics) -> Error:
    over = (2, 3)
    weight, off, by = _weights(layer, layer.weight, layer.bias, over, about)
    found = _sums(weight, off, reads[0], about.of(layer.inputs[0].edge), over)
    found = found.added(by.worst, by.variance)
    return found if layer.groups == 1 else found.rows(1).rows(layer.channels)


@spread.register
def _depthwise(layer: Depthwise, reads: list[Error], about: Numerics) -> Error:
    weight, off, by = _weights(layer, layer.weight, layer.bias, (1,), about)
    read = reads[0]
    per_channel = Error(read.worst[:, None], read.variance[:, None])
    found = _sums(weight, off, per_channel, about.of(layer.inputs[0].edge), (1,))
    return found.added(by.worst, by.variance)


def _weights(
    layer: Layer, weight: Table, bias: Table | None, over: tuple[int, ...], about: Numerics
) -> tuple[Numbers, Numbers, Error]:
    """Weights, their errors, and the errors of what is put on their sums: bias, multiplier."""
    values, off = _stored(weight, about.precision)
    shape = tuple(n for axis, n in enumerate(values.shape) if axis not in over)
    start = np.zeros(shape) if bias is None else np.asarray(bias.values()).reshape(shape)
    if about.precision != "int8":
        wrong = np.zeros(shape) if bias is None else _stored(bias, about.precision)[1]
        wrong = wrong.reshape(-1)
        return values, off, Error(wrong, wrong**2)
    step = about.types[layer.inputs[0].edge]
    read = max(_scale(step), 1e-300)
    scale = weight_scale(np.abs(values).max(axis=over), np.abs(start) / read)
    wide = scale.reshape(scale.shape + (1,) * len(over))
    off = np.abs(np.rint(values / wide) * wide - values)
    flat = scale.reshape(-1)
    half = flat * read / 2  # the bias in whole numbers
    # multipliers share a shift: half a unit of the largest channel's last bit
    part = 2.0 ** (-MULTIPLIER_BITS) * flat.max() / flat * about.of(layer.name).largest
    return values, off, Error(half + part, (half**2 + part**2) / 3)


def _scale(dtype: str) -> float:
    found = int8_format(dtype)
    assert found is not None
    return found.scale


@spread.register
def _pool(layer: Pool, reads: list[Error], about: Numerics) -> Error:
    if layer.op != "sum":
        return reads[0]
    largest = layer.scale
    if layer.scales is not None:
        largest = float(np.abs(_stored(layer.scales, about.precision)[0]).max())
    return reads[0].scaled(layer.window.kh * layer.window.kw * largest)


@spread.register
def _row_reduce(layer: RowReduce, reads: list[Error], about: Numerics) -> Error:
    return reads[0] if layer.op != "sum" else reads[0].scaled(layer.window * layer.scale)


@spread.register
def _join(layer: Join, reads: list[Error], about: Numerics) -> Error:
    if sum(e.channels for e in reads) == layer.channels:
        return Error(
            np.concatenate([e.worst for e in reads]), np.concatenate([e.variance for e in reads])
        )
    most = [e.rows(1) for e in reads]
    both = Error(
        np.max([e.worst for e in most], axis=0), np.max([e.variance for e in most], axis=0)
    )
    return both.rows(layer.channels)


@spread.register
def _product(layer: Product, reads: list[Error], about: Numerics) -> Error:
    count, scale = layer.taps * layer.cin, layer.scale
    a, b = (e.rows(1) for e in reads)
    x, y = (about.of(use.edge) for use in layer.inputs)
    worst = count * (x.largest * b.worst + y.largest * a.worst + a.worst * b.worst)
    variance = count * (x.square * b.variance + y.square * a.variance + a.variance * b.variance)
    return Error(worst * scale, variance * scale * scale).rows(layer.channels)


@spread.register
def _lookup(layer: Lookup | Constant, reads: list[Error], about: Numerics) -> Error:
    return Error.none(layer.channels)


@spread.register
def _row_norm(layer: RowNorm, reads: list[Error], about: Numerics) -> Error:
    read = reads[0].rows(1)
    seen = about.of(layer.inputs[0].edge)
    if layer.op == "softmax":  # the absolute sum of a row of its Jacobian, 2 y (1 - y)
        return read.scaled(0.5).rows(layer.channels)
    if layer.op == "log_softmax":
        return read.scaled(2.0).rows(layer.channels)
    if layer.op == "lrn":
        lowest, largest = layer.k**-layer.beta, seen.largest
        slope = 2 * layer.alpha * layer.beta * lowest / layer.k * largest**2
        return read.scaled(lowest + slope).rows(layer.channels)
    spread_of_row = about.of(layer.name + DEVIATION)
    least = spread_of_row.low if np.isfinite(spread_of_row.low) else 0.0
    gain = 1.0 / np.sqrt(least * least + layer.eps)
    found = read.scaled(gain)
    if layer.op == "layer_norm":  # the mean takes part, and the deviation with the value itself
        worst = found.worst * (2.0 + np.sqrt(layer.taps * layer.cin))
        found = Error(worst, found.variance * 2.0)
    result = found.rows(layer.channels)
    for table, scales in ((layer.scale, True), (layer.shift, False)):
        if table is not None:
            values, off = _stored(table, about.precision)
            flat = values.reshape(layer.taps, -1).max(axis=0)
            wrong = off.reshape(layer.taps, -1).max(axis=0)
            reach = about.of(layer.name).largest if scales else 1.0
            result = result.scaled(flat) if scales else result
            result = result.added(wrong * reach, (wrong * reach) ** 2)
    return result


@spread.register
def _elementwise(layer: Elementwise, reads: list[Error], about: Numerics) -> Error:
    found, seen = reads[0].rows(layer.channels), about.of(layer.inputs[0].edge)
    low, high = seen.low, seen.high
    for step in layer.steps:
        if step.operand == "stream":
            other = about.of(layer.inputs[1].edge)
            found = _two(step, (found, seen), (reads[1].rows(layer.channels), other))
            low, high = _ends(step, (low, high), (other.low, other.high))
        elif step.operand == "table":
            found, (low, high) = _with_table(step, found, (low, high), about)
        else:
            slope, (low, high) = steepest(step, low, high, float(found.worst.max(initial=0.0)))
            found = found.scaled(slope)
    return found


def _two(step: MapStep, one: tuple[Error, Seen], other: tuple[Error, Seen]) -> Error:
    (a, x), (b, y) = one, other
    if step.op == "mul":
        worst = x.largest * b.worst + y.largest * a.worst + a.worst * b.worst
        return Error(worst, x.square * b.variance + y.square * a.variance + a.variance * b.variance)
    if step.op in ("add", "sub", "rsub", "max", "min"):
        return a.plus(b)
    if step.op == "div" and y.low * y.high > 0:
        least = min(abs(y.low), abs(y.high))
        return a.scaled(1 / least).plus(b.scaled(x.largest / least**2))
    return a.scaled(np.inf)


def _ends(step: MapStep, x: tuple[float, float], y: tuple[float, float]) -> tuple[float, float]:
    """The range of a step of two operands."""
    functions: dict[str, Callable[[float, float], float]] = {
        "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "rsub": lambda a, b: b - a,
        "mul": lambda a, b: a * b, "max": max, "min": min,
    }  # fmt: skip
    if step.op not in functions:
        return -np.inf, np.inf
    found = [functions[step.op](a, b) for a in x for b in y]
    return min(found), max(found)


def _with_table(
    step: MapStep, error: Error, ends: tuple[float, float], about: Numerics
) -> tuple[Error, tuple[float, float]]:
    values, off = _stored(step.table, about.precision)
    if step.op == "add":  # of what is masked, a softmax makes nothing in any type
        values, off = (np.where(values <= HIDDEN, 0.0, a) for a in (values, off))
    size, wrong = np.abs(values).max(axis=0), off.max(axis=0)
    reach = _ends(step, ends, (float(values.min()), float(values.max())))
    if step.op in ("add", "sub", "rsub"):
        return error.added(wrong, wrong**2), reach
    if step.op == "mul":
        largest = max(abs(v) for v in ends)
        return error.scaled(size).added(wrong * largest, (wrong * largest) ** 2), reach
    if step.op in ("max", "min"):
        return error.added(wrong, wrong**2), reach
    return error.scaled(np.inf), reach


def steepest(
    step: MapStep, low: float, high: float, error: float
) -> tuple[float, tuple[float, float]]:
    """The largest slope of a function of one operand over a range, and the range of its results.

    Args:
        step: The function.
        low: Least operand.
        high: Largest operand.
        error: By how much operands may lie outside.

    Example:
        >>> steepest(MapStep("relu"), -1.0, 3.0, 0.5)
        (1.0, (0.0, 3.5))
    """
    if not np.isfinite((low, high, error)).all() or low - error == high + error:
        return (1.0 if step.op in ("relu", "neg", "abs") else np.inf), (-np.inf, np.inf)
    x = torch.linspace(low - error, high + error, _GRID, dtype=torch.float64)
    y = function(step)(x).numpy()
    if not np.isfinite(y).all():
        return np.inf, (-np.inf, np.inf)
    slope = float(np.abs(np.diff(y)).max() / float(x[1] - x[0]))
    return round(slope, 12), (float(y.min()), float(y.max()))
