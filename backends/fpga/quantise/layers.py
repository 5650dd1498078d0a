"""Layers that compute in 8-bit integers: weights, biases and multipliers as whole numbers.

For ``y = sum of w x + b`` with raw numbers q, scales s and zero points z::

    raw y = z_y + (sum of q_w q_x + bias) * s_w s_x / s_y,   bias = b / (s_w s_x) - z_x sum of q_w

Weights are symmetric with a scale per output channel; those of a quantised file are its own, less
their zero point, which may take 9 bits. Sums are exact in 32 bits, the ratio of scales is a 17-bit
integer and a shift (`pipec.backends.fpga.numbers.multipliers`).
"""

import dataclasses
import math
from collections.abc import Mapping
from functools import singledispatch
from typing import cast

import numpy as np
from numpy.typing import NDArray

from pipec.backends.fpga.engines.base import Layer, Nest, Use
from pipec.backends.fpga.engines.map import Map, sum_multipliers
from pipec.backends.fpga.engines.matmul import Matmul
from pipec.backends.fpga.engines.memory import Gather
from pipec.backends.fpga.engines.mvu import Mvu
from pipec.backends.fpga.engines.network import Network
from pipec.backends.fpga.engines.parts import Array, Narrowing, Table
from pipec.backends.fpga.engines.reduce import Reduce
from pipec.backends.fpga.engines.steps import Mode, affine_steps, clamp_of, mode_of
from pipec.backends.fpga.engines.vvu import Vvu
from pipec.backends.fpga.numbers import (
    HIGHEST,
    LOWEST,
    WIDEST,
    Int8,
    int8_format,
    multipliers,
    pack,
)
from pipec.backends.fpga.quantise.formats import HIDDEN
from pipec.errors import BackendError

_SUM_LIMIT = 2**31 - 1
_SOME, _NEARLY = 8, 1e-4
"""Weights of a channel that are looked at first; how far from a whole number integers may be."""
_LARGEST_BIAS = 2**19
"""Steps of a bias: one shift for all channels leaves multipliers of fine scales few bits, so that a
larger one would be multiplied by a number that is rounded too far."""
_AFFINE_SHIFT = 22
"""Largest shift of ``x * table + table``: a bias of 500 steps of the result still fits 32 bits."""


def quantise(network: Network, formats: Mapping[str, Int8]) -> Network:
    """The network computing in 8-bit integers, in a format for every edge of real numbers.

    Raises:
        BackendError: A layer can't.
    """
    types = {edge: found.dtype for edge, found in formats.items()}
    layers = tuple(_layer(layer, types) for layer in network.layers)
    inputs, outputs = (
        tuple(dataclasses.replace(p, use=_retype(p.use, types)) for p in side)
        for side in (network.inputs, network.outputs)
    )
    return dataclasses.replace(network, layers=layers, inputs=inputs, outputs=outputs)


def _retype(use: Use, types: Mapping[str, str]) -> Use:
    return dataclasses.replace(use, dtype=types.get(use.edge, use.dtype))


def _layer(layer: Layer, types: Mapping[str, str]) -> Layer:
    inputs = tuple(_retype(use, types) for use in layer.inputs)
    plain = inputs[0].dtype if inputs else "int32"  # nobody reads it as a real number
    typed = dataclasses.replace(layer, inputs=inputs, dtype=types.get(layer.name, plain))
    if int8_format(typed.dtype) is None or isinstance(layer.nest, Gather):
        return typed
    if any(u.dtype == "int32" for u in inputs):
        raise _error(layer, "arithmetic of integers with real numbers has no 8-bit format")
    return integer(typed.nest, typed)


def _error(layer: Layer, what: str) -> BackendError:
    return BackendError(what, where=layer.origin, hint="choose another --precision")


@singledispatch
def integer(nest: Nest, layer: Layer) -> Layer:
    """The layer with the integers that it computes with; types are already set."""
    return layer


def _formats(layer: Layer) -> tuple[Int8, Int8]:
    """Formats of the first input and of the output."""
    return (
        cast("Int8", int8_format(layer.inputs[0].dtype)),
        cast("Int8", int8_format(layer.dtype)),
    )


def _rescale(
    layer: Layer, into: Int8, shift: int, *, multiplier: int | None = None,
    table: Table | None = None,
) -> Layer:  # fmt: skip
    """The layer with a last step to 8 bits, with its clamps."""
    low, high = into.quantise(np.array(layer.clamp))
    by = Narrowing(shift, int(low), int(high), multiplier)
    found = dataclasses.replace(layer, rescale=by)
    return found if table is None else found.with_tables(rescale=table)


@integer.register
def _product_with_constants(nest: Mvu | Vvu, layer: Layer) -> Layer:
    """Integers for weights whose leading axes are those of the bias."""
    shape = (nest.groups, nest.rows) if isinstance(nest, Mvu) else (nest.channels,)
    weight = np.asarray(layer.tables["weight"].values(), dtype=np.float64)
    table = layer.tables.get("bias", Table(lambda: np.zeros(shape)))
    bias = np.asarray(table.values()).reshape(shape)
    reads, writes = _formats(layer)
    over = tuple(range(bias.ndim, weight.ndim))
    scale = weight_scale(weight, over, np.abs(bias) / reads.scale)
    spread = scale.reshape(scale.shape + (1,) * len(over))
    whole = np.rint(weight / spread).astype(np.int64)
    kind = "int8" if whole.min() >= LOWEST and whole.max() <= HIGHEST else "int16"
    offset = np.rint(bias / (scale * reads.scale)).astype(np.int64) - reads.zero * whole.sum(over)
    if int((np.abs(whole).sum(over) * 128 + np.abs(offset)).max(initial=0)) > _SUM_LIMIT:
        raise _error(layer, "sums of 8-bit products do not fit 32 bits")
    factors, shift = multipliers(scale * (reads.scale / writes.scale))
    words = Table(lambda: pack(offset, factors), table.sources)
    raw = whole.astype(kind)
    whole_weight = Table(lambda: raw, layer.tables["weight"].sources, kind)
    return _rescale(layer, writes, shift, table=words).with_tables(weight=whole_weight)


def weight_scale(
    weight: NDArray[np.float64], over: tuple[int, ...], bias: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Scale of the weights of every output channel: 127 steps, and a bias that fits.

    Weights of a channel that are 8-bit integers already, as in a quantised file, less a zero point,
    keep a step of which all are multiples: none of them is rounded again.

    Args:
        weight: The weights of all channels.
        over: Axes of the weights of one channel.
        bias: Magnitude of its bias, over the scale of what is multiplied with the weights.
    """
    step = _own_steps(weight.reshape(bias.size, -1)).reshape(bias.shape)
    own = np.where(step > 0, step, np.abs(weight).max(axis=over) / HIGHEST)
    scale = np.maximum(own, bias / _LARGEST_BIAS)
    return np.where(scale > 0, scale, 1.0)


def _own_steps(weight: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of every row a step that its weights are multiples of, of 8 bits if they can be, else of 9.

    It is 0 where there is none.
    """
    largest, found = np.abs(weight).max(axis=1), np.zeros(len(weight))
    some = weight[:, :: -(-weight.shape[1] // _SOME)]
    for count in (*range(-LOWEST, 0, -1), *range(1 - LOWEST, WIDEST + 1)):
        most = HIGHEST if count <= -LOWEST else WIDEST
        rows = np.flatnonzero((found == 0) & (largest > 0))
        rows = rows[_are_integers(some[rows] * count / largest[rows, None])]
        steps = weight[rows] * count / largest[rows, None]
        rows = rows[_are_integers(steps) & (steps.max(axis=1) < most + 0.5)]
        found[rows] = largest[rows] / count
    return found


def _are_integers(rows: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which rows are integers, but for what float32 rounds off."""
    return np.asarray((np.abs(rows - np.rint(rows)) < _NEARLY).all(axis=1))


@integer.register
def _product(nest: Matmul, layer: Layer) -> Layer:
    reads, writes = _formats(layer)
    second = cast("Int8", int8_format(layer.inputs[1].dtype))
    ratio = reads.scale * second.scale * nest.scale / writes.scale
    return _scale_by(layer, writes, ratio)


def _scale_by(layer: Layer, writes: Int8, ratio: float) -> Layer:
    factor, shift = multipliers(np.array([ratio]))
    return _rescale(layer, writes, shift, multiplier=int(factor[0]))


@integer.register
def _reduce(nest: Reduce, layer: Layer) -> Layer:
    reads, writes = _formats(layer)
    if nest.op != "sum":
        return layer
    if (scales := layer.tables.get("scale")) is None:
        return _scale_by(layer, writes, reads.scale * nest.scale / writes.scale)
    ratios = np.asarray(scales.values()) * (reads.scale / writes.scale)
    factors, shift = multipliers(ratios)
    words = Table(lambda: pack(np.zeros_like(factors), factors), scales.sources)
    return _rescale(layer, writes, shift, table=words)


@integer.register
def _elementwise(nest: Map, layer: Layer) -> Layer:
    reads, writes = _formats(layer)
    mode = mode_of(layer.steps)
    if mode is Mode.AFFINE:
        return _affine(layer, reads, writes)
    for step in layer.steps:
        if step.table is not None:
            _refuse_infinity(layer, np.asarray(step.table.values(), dtype=np.float64))
    if mode not in (Mode.SUM, Mode.PRODUCT):
        return layer
    second = cast("Int8", int8_format(layer.inputs[1].dtype))
    layer = dataclasses.replace(layer, clamp=_limits(layer, 1))
    if mode is Mode.PRODUCT:
        return _scale_by(layer, writes, reads.scale * second.scale / writes.scale)
    _, shift = sum_multipliers(layer.steps[0].op, (reads, second), writes)
    return _rescale(layer, writes, shift)


def _refuse_infinity(layer: Layer, table: NDArray[np.float64]) -> None:
    if not np.isfinite(table).all() or (table <= HIDDEN).any():
        raise _error(layer, "8-bit integers hold no infinity, so they can't mask attention")


def _limits(layer: Layer, first: int) -> tuple[float, float]:
    found = clamp_of(layer.steps[first:])
    assert found is not None
    return found


def _affine(layer: Layer, reads: Int8, writes: Int8) -> Layer:
    """``q_y = z_y + ((q_x - z_x) * multiplier + bias >> shift)`` per element of the tables."""
    count = affine_steps(layer.steps)
    period = math.lcm(*(s.period for s in layer.steps[:count]))
    tables = {s.op: s.table for s in layer.steps[:count] if s.table is not None}

    def rows(op: str, default: float) -> Array:
        """A table over the common period, ``[period][channels]``."""
        found = tables.get(op)
        values = np.full((1, layer.channels), default) if found is None else found.values()
        return np.resize(np.asarray(values, dtype=np.float64), (period, layer.channels))

    factor, shift_by = rows("mul", 1.0), rows("add", 0.0)
    for table in (factor, shift_by):
        _refuse_infinity(layer, table)
    ratios = factor * (reads.scale / writes.scale)
    factors, shift = multipliers(ratios)
    if shift > _AFFINE_SHIFT:
        shift = _AFFINE_SHIFT
        factors = np.rint(ratios * 2.0**shift).astype(np.int64)
    bias = np.rint(shift_by / writes.scale * 2.0**shift)
    words = Table(
        lambda: pack(np.clip(bias, -(2.0**31), 2.0**31 - 1), factors),
        tuple(dict.fromkeys(name for t in tables.values() for name in t.sources)),
    )
    typed = dataclasses.replace(layer, clamp=_limits(layer, count))
    return _rescale(typed, writes, shift, table=words)
