"""Unroll factors of the layers that only training needs; see `pipec.backends.fpga.factors`."""

from pipec.backends.fpga.arithmetic import arithmetic
from pipec.backends.fpga.factors import (
    LOAD_SHARES,
    Factors,
    ceil_tiles,
    fold,
    gap_of,
    lanes_for,
    window_reads,
)
from pipec.backends.fpga.nests import ceil_div
from pipec.backends.fpga.training.layers import (
    OneHotRows,
    PoolGradient,
    PoolIndex,
    RowDerivative,
    WeightGradient,
    Windows,
    ZeroInsert,
)


@fold.register
def _weight_gradient(layer: WeightGradient, target: int, dtype: str, block: int = 0) -> Factors:
    """Cheapest PE and SIMD: products per vector, and the matrix written at the end."""
    best: tuple[tuple[float, ...], Factors] | None = None
    window, vectors = layer.window, layer.n * layer.groups
    sides = [(simd, 1) for simd in ceil_tiles(layer.cin)]
    if window is not None and layer.groups == 1:
        sides += [(kp * layer.cin, kp) for kp in sorted({window.kw, layer.taps} - {1})]
    for simd, kp in sides:
        lanes, sf = simd // kp, layer.taps // kp * ceil_div(layer.cin, simd // kp)
        drain = layer.groups * layer.out * sf
        reading = window_reads(window, layer.cin, lanes) * layer.groups if window else 0
        left = max(target - drain, 1)
        pe = ceil_div(layer.out, max(left // (vectors * sf), 1))
        pe = min(pe, layer.out)
        cycles = max(vectors * ceil_div(layer.out, pe) * sf + drain, reading)
        score = (max(cycles - target, 0), pe * simd, pe + simd)
        if best is None or score < best[0]:
            best = (score, Factors((lanes, pe), simd, pe, simd, kp))
    assert best is not None
    return best[1]


@fold.register
def _pool_gradient(layer: PoolGradient, target: int, dtype: str, block: int = 0) -> Factors:
    w = layer.window
    pixels = w.batch * (w.oh * w.ow + w.h * w.w)
    lanes = lanes_for(layer.channels, pixels, target)
    return Factors((lanes, lanes), lanes)


def scatter_interval(kw: int, sw: int, cf: int, dtype: str) -> int:
    """Cycles between two firings of a scatter: neighbouring windows may add to one pixel."""
    return 1 if kw <= sw else ceil_div(arithmetic(dtype).add_latency, cf)


@fold.register
def _pool_index(layer: PoolIndex, target: int, dtype: str, block: int = 0) -> Factors:
    w = layer.window
    rows = max(w.batch * w.oh * w.ow * w.kh * w.kw, w.batch * w.h * w.w)
    lanes = lanes_for(layer.channels, rows, target)
    return Factors((lanes,), lanes)


@fold.register
def _windows(layer: Windows, target: int, dtype: str, block: int = 0) -> Factors:
    # a product loads them in bursts, for which they would otherwise wait in a FIFO
    rows = max(layer.rows, layer.inputs[0].rows)
    lanes = lanes_for(layer.channels, rows, target // max(LOAD_SHARES))
    return Factors((lanes,), lanes)


@fold.register
def _one_hot(layer: OneHotRows, target: int, dtype: str, block: int = 0) -> Factors:
    return Factors((1,), lanes_for(layer.channels, layer.rows, target))


@fold.register
def _row_derivative(layer: RowDerivative, target: int, dtype: str, block: int = 0) -> Factors:
    gaps = layer.n * (layer.passes - 1) * gap_of(dtype)
    lanes = lanes_for(layer.cin, layer.n * layer.taps, max(target - gaps, 1), layer.passes)
    return Factors((lanes, lanes), lanes)


@fold.register
def _zero_insert(layer: ZeroInsert, target: int, dtype: str, block: int = 0) -> Factors:
    lanes = lanes_for(layer.channels, layer.rows, target)
    return Factors((lanes,), lanes)
