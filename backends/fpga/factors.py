"""Unroll factors of a layer for a target interval: the cheapest that reach it.

Tiles are *ceil tiles*: any factor may be used, the last tile overhangs. Where tokens must end at a
boundary within a row (concatenation along channels), factors are divisors. Where the target can't
be reached the fastest factors are returned.
"""

import dataclasses
import math
from dataclasses import dataclass
from functools import lru_cache, singledispatch

import numpy as np
from numpy.typing import NDArray

from pipec.backends.fpga.arithmetic import arithmetic
from pipec.backends.fpga.design import bits_of
from pipec.backends.fpga.lowering.layers import Layer
from pipec.backends.fpga.nests import Map, Matmul, Mvu, Norm, Reduce, Swg, Vvu, ceil_div
from pipec.backends.fpga.routing import (
    Concat,
    Const,
    Gather,
    Nest,
    Perm,
    Repeat,
    Slice,
    is_transposition,
)
from pipec.backends.fpga.swg import line_cycles
from pipec.backends.fpga.training.nests import OneHot, Outer, RowGradient, Spread

Whole = int | NDArray[np.int64]
PORT_BITS = 512
"""Bits per cycle of one memory port: of a DDR controller or an HBM channel, as a kernel sees it."""
GAP = 40
"""Cycles between two passes of a floating-point row unit: its pipeline drains."""
SMALL_BLOCK = 4096
"""Elements up to which a reordered block is held in registers, any lane in any cycle; above it only
matrices are turned several lanes at a time (``transpose.h``)."""

LOAD_SHARES = (2, 8)
"""A product of two streams may load the one that it holds in one of these shares of a frame."""


@dataclass(frozen=True)
class Factors:
    """What folding decides about one layer.

    Attributes:
        lanes_in: Lanes that it reads, per input.
        lanes_out: Lanes that it writes.
        pe: Outputs per firing of a product.
        simd: Inputs per firing of a product.
        kp: Kernel positions per token.
        block: Vectors per pass over streamed weights; 0 if weights are on chip.
    """

    lanes_in: tuple[int, ...]
    lanes_out: int
    pe: int = 1
    simd: int = 1
    kp: int = 1
    block: int = 0


@lru_cache(maxsize=4096)
def divisors(n: int) -> tuple[int, ...]:
    """Divisors, ascending.

    Example:
        >>> divisors(12)
        (1, 2, 3, 4, 6, 12)
    """
    low = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return tuple(sorted({*low, *(n // d for d in low)}))


@lru_cache(maxsize=4096)
def ceil_tiles(n: int) -> tuple[int, ...]:
    """Smallest tile for every distinct number of tiles, ascending.

    Example:
        >>> ceil_tiles(7)
        (1, 2, 3, 4, 7)
    """
    return tuple(sorted({ceil_div(n, ceil_div(n, t)) for t in range(1, n + 1)}))


def lanes_for(channels: int, rows: int, target: int, passes: int = 1) -> int:
    """Fewest lanes with ``rows * ceil(channels/lanes) * passes <= target``; at most channels."""
    tokens = target // max(rows * passes, 1)
    return channels if tokens < 1 else ceil_div(channels, min(tokens, channels))


def divisor_for(allowed: int, channels: int, rows: int, target: int) -> int:
    """The same among the divisors of ``allowed``."""
    least = lanes_for(channels, rows, target)
    return next((d for d in divisors(allowed) if d >= least), allowed)


def fold(layer: Layer, target: int, dtype: str, block: int = 0) -> Factors:
    """The cheapest factors with which ``layer`` takes at most ``target`` cycles per frame.

    Args:
        layer: Any layer.
        target: Cycles.
        dtype: Arithmetic.
        block: For an `Mvu`: stream the weights, so many vectors per pass; 0 keeps them on chip.
    """
    return factors_of(layer.nest, layer, target, dtype, block)


@singledispatch
def factors_of(nest: Nest, layer: Layer, target: int, dtype: str, block: int) -> Factors:
    """The factors of a layer by its nest; see `fold`."""
    raise TypeError(f"no factors for {type(nest).__name__}")


def window_reads(window: Swg, channels: int, lanes: int) -> int:
    """Cycles that a window generator needs at least to read a frame."""
    return window.batch * window.h * window.w * ceil_div(channels, lanes)


def window_cycles(window: Swg, cf: int, kp: int) -> int:
    """Cycles that a window generator needs for a frame; of a ring an upper bound."""
    w, nest = window, dataclasses.replace(window, cf=cf, groups=cf, kp=kp)
    if nest.is_line:
        return nest.batch * line_cycles(nest)
    fill = max((w.kh - 1) * w.dh - w.pt, 0) * w.w + w.kw
    paced = max(w.oh * max(w.sh * w.w, w.ow * nest.taps), w.h * w.w)
    return (w.batch * (paced + fill) + 4) * cf


def input_tokens(nest: Mvu | Outer, window: Swg | None) -> list[tuple[int, int]]:
    """What a token in front of a matrix may hold: SIMD, and kernel positions."""
    tiles = [(simd, 1) for simd in ceil_tiles(nest.channels)]
    if window is None or nest.groups > 1:
        return tiles
    return [*tiles, *((k * nest.channels, k) for k in sorted({window.kw, nest.taps} - {1}))]


@lru_cache(maxsize=4096)
def _input_sides(nest: Mvu, window: Swg | None) -> NDArray[np.int64]:
    """Input side of a matrix's lattice, a column per choice.

    Rows: SIMD, kp, SF, and the cycles that reading takes: of the windows with their fill, and of
    the maps.
    """
    rows = []
    for simd, kp in input_tokens(nest, window):
        cf = ceil_div(nest.channels, simd // kp)
        reading = 0 if window is None else window_cycles(window, cf * nest.groups, kp)
        rows.append((simd, kp, nest.taps // kp * cf, reading))
    return np.array(rows, dtype=np.int64).T


@factors_of.register
def _mvu(nest: Mvu, layer: Layer, target: int, dtype: str, block: int) -> Factors:
    simd, kp, sf, reading = _input_sides(nest, layer.window)
    vectors = nest.n * nest.groups
    if block == 0:
        folds = np.clip(target // (vectors * sf), 1, nest.rows)
        pe = -(-nest.rows // folds)
        cycles = vectors * -(-nest.rows // pe) * sf
    else:
        tiles, busy = _streamed_cycles(nest, layer.window, block, dtype)
        reached = busy <= target
        first = np.where(reached.any(axis=1), reached.argmax(axis=1), busy.argmin(axis=1))
        pe, cycles = tiles[first], busy[np.arange(len(sf)), first]
    late = np.maximum(np.maximum(cycles, reading) - target, 0)
    cost = arithmetic(dtype)
    sums = (-(-nest.rows // pe) < cost.add_latency) * pe  # final adders of partial sums
    dsp = pe * simd * cost.mac_dsp + sums * cost.add_dsp
    narrowing = pe * cost.narrowing_lut
    best = np.lexsort((cycles, pe + simd, narrowing, dsp, late))[0]
    outputs, inputs, positions = int(pe[best]), int(simd[best]), int(kp[best])
    return Factors((inputs // positions,), outputs, outputs, inputs, positions, block)


@lru_cache(maxsize=4096)
def _streamed_cycles(
    nest: Mvu, window: Swg | None, block: int, dtype: str
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """PEs that may be chosen, [PEs], and busy cycles with streamed weights, [input sides, PEs].

    Words so wide that a port takes longer for one than a block of vectors keeps it busy four
    times over are left out but for the first.
    """
    simd, _, sf, _ = _input_sides(nest, window)
    tiles = np.array(ceil_tiles(nest.rows), dtype=np.int64)
    units = simd[:, None] * tiles
    busy = dense_cycles(nest.n, -(-nest.rows // tiles), sf[:, None], block, units, dtype)
    wide = np.pad(units * bits_of(dtype) > 4 * block * PORT_BITS, ((0, 0), (1, 0)))[:, :-1]
    return tiles, np.where(wide, np.iinfo(np.int64).max >> 1, busy)


def word_interval(lanes: int, dtype: str) -> int:
    """Cycles per word of streamed weights on one port."""
    return ceil_div(lanes * bits_of(dtype), PORT_BITS)


def dense_cycles(
    vectors: int, nf: Whole, sf: Whole, block: int, units: Whole, dtype: str
) -> NDArray[np.int64]:
    """Busy cycles of an MVU: on chip (block 0), streamed per vector (1), or per block of vectors.

    Example:
        >>> int(dense_cycles(10, 8, 8, 0, 32, "int8"))
        640
    """
    steps = np.asarray(nf) * np.asarray(sf)
    if block == 0:
        return np.asarray(vectors * steps)
    interval = -(-np.asarray(units) * bits_of(dtype) // PORT_BITS)
    if block == 1:
        return np.asarray(vectors * steps * interval)
    passes = vectors // block
    ends = block * (np.asarray(sf) + nf)
    return np.asarray(passes * (ends + steps * np.maximum(block, interval)))


@factors_of.register
def _channelwise(nest: Vvu | Reduce, layer: Layer, target: int, dtype: str, block: int) -> Factors:
    if isinstance(nest, Reduce) and layer.window is None:
        lanes = lanes_for(layer.channels, layer.rows * nest.window, target)
        return Factors((lanes,), lanes)
    assert layer.window is not None
    lanes, kp = _window_factors(layer.window, layer.channels, target)
    return Factors((lanes,), lanes, kp=kp)


def _window_factors(window: Swg, channels: int, target: int) -> tuple[int, int]:
    """Fewest lanes times kernel positions for a channel-wise window operation."""
    taps = window.kh * window.kw
    best: tuple[tuple[int, ...], int, int] | None = None
    for kp in sorted({1, window.kw, taps}):
        for lanes in ceil_tiles(channels):
            cf = ceil_div(channels, lanes)
            cycles = window_cycles(window, cf, kp)
            score = (max(cycles - target, 0), lanes * kp, kp)
            if best is None or score < best[0]:
                best = (score, lanes, kp)
    assert best is not None
    return best[1], best[2]


@factors_of.register
def _by_rows(
    nest: Map | Repeat | Spread | Gather | OneHot | Const,
    layer: Layer, target: int, dtype: str, block: int,
) -> Factors:  # fmt: skip
    lanes = lanes_for(layer.channels, layer.rows, target)
    return Factors(tuple(min(lanes, use.channels) for use in layer.inputs), lanes)


@factors_of.register
def _row_unit(
    nest: Norm | RowGradient, layer: Layer, target: int, dtype: str, block: int
) -> Factors:
    gaps = nest.rows * (nest.passes - 1) * gap_of(dtype)
    lanes = lanes_for(nest.channels, nest.rows * nest.taps, max(target - gaps, 1), nest.passes)
    return Factors((lanes,) * len(layer.inputs), lanes)


def gap_of(dtype: str) -> int:
    """Cycles between two passes of a row unit."""
    return GAP if dtype.startswith(("float", "int8")) else 4


@factors_of.register
def _matmul(nest: Matmul, layer: Layer, target: int, dtype: str, block: int) -> Factors:
    vectors = nest.vectors
    *outer, channels = nest.b_sizes
    rows = math.prod(outer)
    best: tuple[tuple[int, ...], Factors] | None = None
    for simd in ceil_tiles(nest.channels):
        sf = nest.taps * ceil_div(nest.channels, simd)
        for share in LOAD_SHARES:
            lanes = divisor_for(channels, channels, rows, target // nest.blocks // share)
            load = rows * ceil_div(channels, lanes)
            left = max(target // nest.blocks - load, 1)
            pe = lanes_for(nest.rows, vectors * sf, left)
            cycles = nest.blocks * (load + vectors * sf * ceil_div(nest.rows, pe))
            score = (max(cycles - target, 0), pe * simd, lanes, pe + simd)
            if best is None or score < best[0]:
                best = (score, Factors((simd, lanes), pe, pe, simd))
    assert best is not None
    return best[1]


@factors_of.register
def _concat(nest: Concat, layer: Layer, target: int, dtype: str, block: int) -> Factors:
    rows = layer.rows
    if all(u.channels == layer.channels for u in layer.inputs):
        lanes = lanes_for(layer.channels, rows, target)
    else:
        lanes = divisor_for(math.gcd(*nest.sizes), layer.channels, rows, target)
    return Factors((lanes,) * len(layer.inputs), lanes)


@factors_of.register
def _slice(nest: Slice, layer: Layer, target: int, dtype: str, block: int) -> Factors:
    use = layer.inputs[0]
    if nest.inner % use.channels == 0:
        lanes = lanes_for(use.channels, use.rows, target)
    else:
        unit = nest.inner
        if nest.step == 1:
            unit *= math.gcd(nest.size, nest.start, nest.stop)
        lanes = divisor_for(unit, use.channels, use.rows, target)
    return Factors((lanes,), lanes)


@factors_of.register
def _perm(nest: Perm, layer: Layer, target: int, dtype: str, block: int) -> Factors:
    use, elements = layer.inputs[0], nest.elements
    if nest.order[-1] == len(nest.order) - 1:
        allowed = math.gcd(nest.sizes[-1], use.channels, layer.channels)
        lanes = divisor_for(allowed, use.channels, 2 * use.rows, target)
        return Factors((lanes,), lanes)
    if elements > SMALL_BLOCK:
        lanes = 1
        if is_transposition(nest.sizes, nest.order, (layer.channels, use.channels)):
            lanes = lanes_for(
                min(use.channels, layer.channels), 2 * max(use.rows, layer.rows), target
            )
        return Factors((lanes,), lanes)
    first = lanes_for(use.channels, 2 * use.rows, target)
    return Factors((first,), lanes_for(layer.channels, 2 * layer.rows, target))
