"""Loop nests of the engines that only training needs; words as in `pipec.backends.fpga.nests`."""

from dataclasses import dataclass
from itertools import pairwise

from pipec.backends.fpga.nests import ceil_div


@dataclass(frozen=True)
class Outer:
    """Outer-product unit: gradient of a weight matrix, ``dW = sum over v of dy[v] x[v]^T``.

    ```text
    for v in n: for g in groups: for f in nf: for s in sf:
      if f == 0: x[s] = read in0                      # SIMD elements, windows of an SWG
      if s == 0: dy = read in1                        # PE elements
      acc[v % partial][g][f][s][pe][simd] += dy[pe] * x[s][simd]
    for g in groups: for m in rows: for s in sf: write total(acc)[g][m/PE][s][m%PE]    # SIMD
    ```

    Attributes:
        n: Vectors per frame; ``groups`` channel groups of each.
        rows: Output channels of one group; ``taps`` positions of ``channels`` inputs each.
        pe: Elements of dy per firing; ``simd`` of x, laid out ``[kp][lanes]``.
        kp: Kernel positions per input token; above 1 only if one token holds all channels.
        partial: Accumulators used in turn by v, where one pass over a vector is shorter than the
            adder's latency.
    """

    n: int
    rows: int
    taps: int
    channels: int
    pe: int = 1
    simd: int = 1
    kp: int = 1
    groups: int = 1
    partial: int = 1

    @property
    def nf(self) -> int:
        """Tokens of dy per vector and group."""
        return ceil_div(self.rows, self.pe)

    @property
    def sf(self) -> int:
        """Tokens of x per vector and group."""
        return self.taps // self.kp * ceil_div(self.channels, self.simd // self.kp)

    @property
    def writes(self) -> int:
        """Output tokens per frame."""
        return self.groups * self.rows * self.sf


@dataclass(frozen=True)
class Scatter:
    """Gradient of max pooling: every element of dy is added where its maximum came from.

    ```text
    for image in batch: for oy in oh:
      for ox in ow: for c in cf:
        dy = read in0; at = read in1; acc[at[lane]][c][lane] += dy[lane]
      for iy in rows that no later window covers: for ix in w: for c in cf:
        write acc[iy][ix][c]; clear it
    ```

    ``at`` is ``iy*w + ix`` of the maps of ``h x w`` pixels. Only the rows that open windows cover
    are held.
    """

    batch: int
    h: int
    w: int
    cf: int
    lanes: int
    kh: int
    sh: int
    pt: int
    oh: int
    ow: int

    @property
    def ring(self) -> int:
        """Rows held."""
        return min(max(self.kh, self.sh), self.h)

    def ends(self) -> list[int]:
        """Rows that are written after each row of windows."""
        final = [min(max((oy + 1) * self.sh - self.pt, 0), self.h) for oy in range(self.oh - 1)]
        edges = [0, *final, self.h]
        return [b - a for a, b in pairwise(edges)]


@dataclass(frozen=True)
class ArgMax:
    """Where the first maximum of each window lies, as ``iy*w + ix``; behind an SWG, ``kp`` 1.

    ```text
    for image in batch: for oy in oh: for ox in ow: for c in cf: for t in taps:
      x = read in0; keep t where x is larger than all before
      if t == taps-1: write (oy*sh - pt + t/kw*dh)*w + ox*sw - pl + t%kw*dw
    ```
    """

    batch: int
    w: int
    cf: int
    lanes: int
    kh: int
    kw: int
    sh: int
    sw: int
    dh: int
    dw: int
    pt: int
    pl: int
    oh: int
    ow: int


@dataclass(frozen=True)
class OneHot:
    """Class numbers to rows of zeros with a one: ``for row: i = read in0; for c in cf: write``.

    A row is zeros throughout where the number is ``ignored`` or no class.
    """

    rows: int
    channels: int
    lanes: int = 1
    ignored: int = -1

    @property
    def cf(self) -> int:
        """Tokens per row."""
        return ceil_div(self.channels, self.lanes)


@dataclass(frozen=True)
class RowGradient:
    """Row unit of two inputs: the gradient of softmax, log-softmax or layer normalisation.

    ```text
    for r in rows:
      for c in cf: dy[c] = read in0; y[c] = read in1; statistics
      (passes-2) silent passes
      for c in cf: write
    ```

    ======== =================================================================================
    softmax      2 passes, ``y`` the result: ``y * (dy - sum(dy * y))``
    log_softmax  2 passes, ``y`` the result: ``dy - exp(y) * sum(dy)``
    layer_norm   4 passes, ``y`` the operand x: ``(g - mean(g) - h * mean(g * h)) / std`` with
                 ``g = dy * scale`` and ``h = (x - mean) / std``
    ======== =================================================================================

    The other attributes are those of `pipec.backends.fpga.nests.Norm`.
    """

    rows: int
    channels: int
    taps: int = 1
    lanes: int = 1
    op: str = "softmax"
    passes: int = 2
    gap: int = 1
    eps: float = 0.0
    scale: bool = False

    @property
    def cf(self) -> int:
        """Tokens per row."""
        return self.taps * ceil_div(self.channels, self.lanes)


@dataclass(frozen=True)
class Spread:
    """Zeros between pixels: a pixel of ``oh x ow`` goes to every ``sh``-th row, ``sw``-th column.

    ```text
    for image in batch: for iy in h: for ix in w: for c in cf:
      if iy % sh == 0 and ix % sw == 0: write (read in0) else: write 0
    ```

    The gradient of a strided convolution of one pixel. ``oh = ceil(h/sh)``, ``ow = ceil(w/sw)``.
    """

    batch: int
    h: int
    w: int
    cf: int
    lanes: int
    sh: int
    sw: int


@dataclass(frozen=True)
class Store:
    """Writes frames into a ring in DDR: ``for i in tokens: memory[n % slots][i] = read in0``.

    Of microbatch n. `Fetch` reads the ring in the same way, in another kernel.
    """

    tokens: int
    lanes: int
    slots: int


@dataclass(frozen=True)
class Fetch:
    """Reads frames from a ring in DDR: ``for i in tokens: write memory[n % slots][i]``."""

    tokens: int
    lanes: int
    slots: int


@dataclass(frozen=True)
class Accumulate:
    """Adds frames in DDR, in float32, anew for every update of so many microbatches.

    ```text
    for i in tokens: memory[i] = (n % microbatches == 0 ? 0 : memory[i]) + read in0
    ```
    """

    tokens: int
    lanes: int


@dataclass(frozen=True)
class Spill:
    """The way into a FIFO in DDR: a ring of chunks, and a token for every chunk that lies there.

    ```text
    for i in tokens: memory[ring][i % chunk] = read in0; if chunk is full: write out0; next of ring
    ```

    Attributes:
        tokens: Per frame; ``chunk`` of them are counted together, a divisor.
        lanes: Elements of a token.
        slots: Chunks of the ring.
    """

    tokens: int
    lanes: int
    chunk: int
    slots: int


@dataclass(frozen=True)
class Refill:
    """The way out of a FIFO in DDR; its fields are those of `Spill`.

    ```text
    for i in tokens: if chunk begins: read in0; write memory[ring][i % chunk]
    ```
    """

    tokens: int
    lanes: int
    chunk: int
    slots: int


Mover = Store | Fetch | Accumulate | Spill | Refill
"""Engines between a stream and DDR."""
GradientNest = Outer | Scatter | ArgMax | OneHot | RowGradient | Spread | Mover
"""Any nest of this module."""
