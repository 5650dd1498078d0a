"""Matrix-vector unit: convolutions and linear layers, their weights on chip or streamed."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pipec.backends.fpga.arithmetic import MEMORY, N, arithmetic, sums_depth
from pipec.backends.fpga.engines.base import Engine, Folded, Layer, Nest, Tables, Unit
from pipec.backends.fpga.engines.integer import bias_of, limits, rescaling
from pipec.backends.fpga.engines.parts import PORT_BITS, Array, Weight, in_tokens, weight
from pipec.backends.fpga.engines.swg import convolve, window_cycles
from pipec.backends.fpga.engines.tiles import ceil_div, ceil_tiles
from pipec.backends.fpga.engines.window import Window
from pipec.backends.fpga.numbers import bits_of
from pipec.backends.fpga.runs import Loop, Run, Runs


class Dense(Nest):
    """Every element of a vector meets ``rows`` others, ``pe`` of them at a time."""

    rows: int
    pe: int

    @property
    def nf(self) -> int:
        """Neuron fold: ``ceil(rows/pe)``."""
        return ceil_div(self.rows, self.pe)

    @property
    def common(self) -> int:
        return self.rows


@dataclass(frozen=True)
class Product(Dense):
    """A matrix of ``rows`` times ``taps*channels`` for each of ``n`` vectors and of ``groups``.

    Attributes:
        n: Vectors per frame (output pixels, rows).
        rows: Output channels of one group (MH); ``pe`` of them at a time; ``nf = ceil(rows/pe)``.
        taps: Kernel positions of the reduction (``kh*kw`` of a window, pixels of a flattened map).
        channels: Channels of one position and group; the reduction (MW) is ``taps*channels``.
        pe: Processing elements: output channels per firing.
        simd: Input elements per firing: ``channels`` folded by ceiling, or ``kp*lanes`` of the
            SWG, laid out ``[kp][lanes]``.
        kp: Kernel positions per input token; above 1 only if one token holds all channels.
        groups: Independent matrices, one per channel group, innermost around the vector.
    """

    additions = 6
    updates = True

    n: int
    rows: int
    taps: int
    channels: int
    pe: int = 1
    simd: int = 1
    kp: int = 1
    groups: int = 1

    @property
    def sf(self) -> int:
        """Synapse fold: input tokens of one vector and group."""
        return self.taps // self.kp * ceil_div(self.channels, self.simd // self.kp)


@dataclass(frozen=True)
class Mvu(Product):
    """Matrix-vector unit: convolution (after an SWG) and linear layers, ``y = W x + b``.

    ```text
    order "A" (output stationary, one input vector buffered):
    for v in n: for g in groups: for f in nf: for s in sf:
      if f == 0: x[s] = read in0                      # SIMD elements
      if streamed: word = read in1                    # PE*SIMD elements, else from the table
      acc[s % partial][pe] += sum over simd of weight[g][f][s][simd][pe] * x[s][simd]
      if s == sf-1: write sum(acc)[pe] + bias[g][f][pe]                      # PE elements

    order "B" (input stationary, NF accumulator words):
    for v in n: for g in groups: for s in sf: for f in nf:
      if f == 0: x = read in0
      if streamed: word = read in1
      acc[f][pe] += sum over simd of weight[g][f][s][simd][pe] * x[simd]
      if s == sf-1: write acc[f][pe] + bias[g][f][pe]

    weights streamed and block V > 1 (one pass over the weights per V vectors), groups == 1:
    for b in n/V:
      for v in V: for s in sf: x[v][s] = read in0
      for f in nf: for s in sf: for v in V:
        if v == 0: word = read in1
        acc[v][pe] += ...                             # y[v][f] kept at s == sf-1
      for v in V: for f in nf: write y[v][f] (+ bias)
    ```

    Attributes:
        order: ``A`` or ``B`` as above (``A`` if ``block`` is above 1).
        partial: Order A: partial sums used in turn, so that an adder of that latency keeps an
            initiation interval of 1; they are added in a balanced tree at the end.
        block: V, vectors per pass over streamed weights; divides ``n``; 1 if weights are on chip.
        bias: Whether there is a bias table.
        streamed: Whether weights arrive by the second input stream.

    Weights: role ``weight`` of shape ``[groups][nf][sf][simd][pe]`` (zeros where a tile overhangs),
    in order B streamed as ``[groups][sf][nf][simd][pe]``; role ``bias`` ``[groups][nf][pe]``.
    """

    order: str = "A"
    partial: int = 1
    block: int = 1
    bias: bool = False
    streamed: bool = False

    @property
    def macs(self) -> int:
        return self.n * self.groups * self.rows * self.taps * self.channels

    @property
    def units(self) -> int:
        return self.pe * self.simd

    def fold(self, layer: Layer, target: int, dtype: str, block: int = 0) -> Folded:
        simd, kp, sf, reading = _input_sides(self, layer.window)
        vectors = self.n * self.groups
        if block == 0:
            folds = np.clip(target // (vectors * sf), 1, self.rows)
            pe = -(-self.rows // folds)
            cycles = vectors * -(-self.rows // pe) * sf
        else:
            tiles, busy = _cycles_of_streaming(self, layer.window, block, dtype)
            reached = busy <= target
            first = np.where(reached.any(axis=1), reached.argmax(axis=1), busy.argmin(axis=1))
            pe, cycles = tiles[first], busy[np.arange(len(sf)), first]
        late = np.maximum(np.maximum(cycles, reading) - target, 0)
        cost = arithmetic(dtype, layer.clock_mhz)
        partial = _partial_sums(self.rows, pe, sf, block, cost.add_latency)
        dsp, lut = products_logic(pe * simd, pe, dtype, pe, partial, bias="bias" in layer.tables)
        area = [lut, dsp]  # the last one counts first
        if cost.together > 1:
            few = block or dsp[late == late.min()].min() <= _FEW_DSPS
            area = [*([dsp, lut] if few else [lut, dsp]), pe * simd]
        best = np.lexsort((cycles, pe + simd, *area, late))[0]
        return self._wide(layer, (int(pe[best]), int(simd[best]), int(kp[best])), dtype, block)

    def _wide(self, layer: Layer, factors: tuple[int, int, int], dtype: str, block: int) -> Folded:
        """With these factors: PE, SIMD, kernel positions per token."""
        (pe, simd, kp), latency = factors, arithmetic(dtype, layer.clock_mhz).add_latency
        order = "B" if latency > 1 and ceil_div(self.rows, pe) >= latency and block <= 1 else "A"
        nest = dataclasses.replace(
            self, pe=pe, simd=simd, kp=kp, order=order, block=max(block, 1),
            bias="bias" in layer.tables or dtype == "int8", streamed=block > 0,
        )  # fmt: skip
        partial = int(_partial_sums(self.rows, pe, nest.sf, block, latency))
        nest = dataclasses.replace(nest, partial=partial)
        shape = (nest.groups, nest.nf, nest.pe)
        bias = bias_table(layer, shape, dtype, lambda a: in_tokens(a, nest.pe))
        # a product in the address of a weight; results that wait for those of other vectors
        more = 3 * (order == "B") + (MEMORY + 1) * (block > 1)
        depth = sums_depth(dtype, simd, partial, pe, clock_mhz=layer.clock_mhz,
                           bias=bool(bias), more=more)  # fmt: skip
        return Folded(nest, pe, depth, (_matrix(layer, nest, dtype), *bias), (simd // kp,), kp)

    def runs(self, ii: int, inputs: int) -> Runs:
        sf, nf, word = self.sf, self.nf, 2 if self.streamed else 0
        if self.block > 1:
            return (Loop(self.n // self.block, _block(self, ii)),)
        if self.order == "B":
            last = (Run(1, ii, 1 | word, 1), Run(nf - 1, ii, word, 1))
            first: Runs = (Loop(sf - 1, (Run(1, ii, 1 | word), Run(nf - 1, ii, word))),)
            if not self.streamed and sf > 1:
                first = (Run(1, ii, 1), Run(sf - 2, nf * ii, 1))
                last = (Run(1, nf * ii, 1, 1), Run(nf - 1, ii, 0, 1))
            return (Loop(self.n * self.groups, (*first, *last)),)
        if not self.streamed:
            return (Loop(self.n * self.groups, vector_runs(sf, nf, ii)),)
        rest = Loop(nf - 1, (Run(sf - 1, ii, 2), Run(1, ii, 2, 1)))
        return (Loop(self.n, (Run(sf - 1, ii, 3), Run(1, ii, 3, 1), rest)),)

    def buffer(self, bits: int, sums: int) -> tuple[int, int]:
        if self.block > 1:
            results = ceil_div(self.block * self.nf * self.pe, self.simd)
            return (self.simd * bits, self.block * self.sf + results)
        return (self.pe * sums, self.nf) if self.order == "B" else (self.simd * bits, self.sf)

    def logic(self, dtype: str) -> tuple[float, float]:
        return products_logic(self.units, self.pe, dtype, self.pe, self.partial, bias=self.bias)

    def unit(self, engine: Engine) -> Unit:
        constants = self.look_up("N GROUPS NF SF PE SIMD PARTIAL BLOCK") | limits(engine)
        function = "mvu_block" if self.block > 1 else f"mvu_{self.order.lower()}"
        tables = ("weight", bias_of(engine))[self.streamed :]
        return Unit(function, constants, tables=tables, leading=1)

    def compute(self, layer: Layer, reads: Sequence[Tensor], table: Tables) -> Tensor:
        weight, window = table(layer.tables["weight"]), layer.window
        if window is not None:
            kernel = weight.reshape(-1, window.kh, window.kw, self.channels).permute(0, 3, 1, 2)
            found = convolve(window, reads[0], kernel, self.groups)
        else:
            x = reads[0].reshape(self.n, self.groups, -1).transpose(0, 1)
            matrix = weight.reshape(self.groups, self.rows, -1).transpose(1, 2)
            found = (x @ matrix).transpose(0, 1)
        return add_bias(layer, found.reshape(self.n, self.groups, self.rows), table)


def input_tokens(nest: Product, window: Window | None) -> list[tuple[int, int]]:
    """The sizes that a token in front of a matrix may have: SIMD, and kernel positions."""
    tiles = [(simd, 1) for simd in ceil_tiles(nest.channels)]
    if window is None or nest.groups > 1:
        return tiles
    return [*tiles, *((k * nest.channels, k) for k in sorted({window.kw, nest.taps} - {1}))]


@lru_cache(maxsize=4096)
def _input_sides(nest: Mvu, window: Window | None) -> NDArray[np.int64]:
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


@lru_cache(maxsize=4096)
def _cycles_of_streaming(
    nest: Mvu, window: Window | None, block: int, dtype: str
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


Whole = int | NDArray[np.int64]
_FEW_DSPS = 16
"""An engine with no more of them that takes sums to 8 bits is chosen by its LUTs, as one is whose
weights are streamed: where such ones fill a board, LUTs run out first."""


def dense_cycles(
    vectors: int, nf: Whole, sf: Whole, block: int, units: Whole, dtype: str
) -> NDArray[np.int64]:
    """Busy cycles of an MVU: on chip (block 0), or streamed per vector (1) or block of vectors."""
    steps = np.asarray(nf) * np.asarray(sf)
    if block == 0:
        return np.asarray(vectors * steps)
    interval = word_interval(np.asarray(units), dtype)
    if block == 1:
        return np.asarray(vectors * steps * interval)
    ends = block * (np.asarray(sf) + nf)
    return np.asarray(vectors // block * (ends + steps * np.maximum(block, interval)))


def _partial_sums(rows: int, pe: Whole, sf: Whole, block: int, latency: int) -> NDArray[np.int64]:
    """Partial sums of a result: as many as an adder takes cycles, if too few results take turns."""
    in_turn = (block <= 1) & (rows > np.asarray(pe) * (latency - 1)) | (block > latency)
    return np.where(in_turn | (np.asarray(sf) == 1), 1, latency)


def word_interval(lanes: N, dtype: str) -> N:
    """Cycles per word of streamed weights on one port."""
    return -(-lanes * bits_of(dtype) // PORT_BITS)


def vector_runs(sf: int, nf: int, ii: int) -> Runs:
    """One vector, order A, weights on chip."""
    return (Run(sf - 1, ii, 1), Run(1, ii, 1, 1), Run(nf - 1, sf * ii, 0, 1))


def _block(nest: Mvu, ii: int) -> Runs:
    """V vectors in, one pass over the weights, V vectors out."""
    v, sf, nf = nest.block, nest.sf, nest.nf
    return (
        Run(v * sf, ii, 1),
        Run(1, ii, 2),
        Run(nf * sf - 1, v * ii, 2),
        Run(1, v * ii, 0, 1),
        Run(v * nf - 1, ii, 0, 1),
    )


def products_logic(
    units: N, results: N, dtype: str, common: N, turns: N, *, bias: bool = False
) -> tuple[Any, Any]:
    """DSPs and LUTs of products that are summed.

    Args:
        units: Multiply-accumulates per firing.
        results: Sums that are taken to the type of the results side by side.
        dtype: Arithmetic.
        common: Products that have one operand in common.
        turns: Partial sums of each result, added in a tree.
        bias: Whether each has something added to it.
    """
    cost = arithmetic(dtype)
    final = results * (turns - 1 + (bias and cost.real))
    lut = units * cost.mac_lut + 100 * final + results * cost.narrowing_lut
    return (units // common * cost.multipliers(common) * cost.mac_dsp + final * cost.add_dsp, lut)


def bias_table(
    layer: Layer, shape: tuple[int, ...], dtype: str, cut: Callable[[Array], Array]
) -> list[Weight]:
    """The table of what is added to a product's sums, or takes them to 8 bits."""
    if dtype == "int8":
        return [rescaling(layer, shape, cut)]
    found = layer.tables.get("bias")
    return [] if found is None else [weight("bias", shape, found, dtype, cut)]


def _matrix(layer: Layer, nest: Mvu, dtype: str) -> Weight:
    """The weight matrix as ``[groups][nf][sf][simd][pe]`` (streamed order B: sf before nf)."""
    lanes = nest.simd // nest.kp
    cf = ceil_div(nest.channels, lanes)
    swap = nest.streamed and nest.order == "B"

    def arrange(w: Array) -> Array:
        """The matrix in the order in which the engine reads it, zeros behind."""
        pad_out, pad_in = nest.nf * nest.pe - nest.rows, cf * lanes - nest.channels
        if pad_out or pad_in:
            w = np.pad(w, ((0, 0), (0, pad_out), (0, 0), (0, pad_in)))
        steps = nest.taps // nest.kp * cf
        w = w.reshape(nest.groups, nest.nf, nest.pe, steps, nest.simd)
        return np.ascontiguousarray(w.transpose((0, 3, 1, 4, 2) if swap else (0, 1, 3, 4, 2)))

    first = (nest.sf, nest.nf) if swap else (nest.nf, nest.sf)
    shape = (nest.groups, *first, nest.simd, nest.pe)
    return weight("weight", shape, layer.tables["weight"], dtype, arrange)


def add_bias(layer: Layer, found: Tensor, table: Tables) -> Tensor:
    """Results of a product with the layer's bias, if it has one."""
    return found + table(layer.tables["bias"]) if "bias" in layer.tables else found
