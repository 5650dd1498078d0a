"""Loop nests: what each kind of engine does, as integers; the contract of simulator and C++.

A *nest* fixes an engine's arithmetic, the order of its firings and what every firing reads and
writes. A **firing** is one iteration of the innermost pipelined loop; it reads at most one token
per input stream and writes at most one token per output stream. Loops are written outer to inner.

Words used throughout:

- A **token** is ``lanes`` (P) consecutive elements of one **row** (one pixel, window position or
  sequence position; channels innermost). A row of C channels has ``CF = ceil(C/P)`` tokens. The
  elements of the last token beyond C are *padding*: every engine writes them as zero.
- A **frame** is one call of the stage: one microbatch. The batch is folded into the rows. Every
  engine repeats its nest once per frame, for ever.
- Sizes are those of one frame; cycles assume an initiation interval of 1 unless said otherwise.

The firing tables that follow from these nests are in `pipec.backends.fpga.runs`.
"""

import math
from dataclasses import dataclass


def ceil_div(a: int, b: int) -> int:
    """``ceil(a / b)`` of integers.

    Example:
        >>> ceil_div(7, 2)
        4
    """
    return -(-a // b)


@dataclass(frozen=True)
class Swg:
    """Sliding-window generator: line buffer that turns pixels into windows (im2col).

    ```text
    for image in batch: for oy in oh: for ox in ow: for g in groups:
      for t in taps/kp: for c in cf/groups:            # taps: ky, kx, row-major
        write token: kp positions (t*kp .. t*kp+kp-1) x `lanes` channels of token g*(cf/groups)+c
    ```

    A position outside the image yields ``pad_value``. Input: ``batch*h*w`` rows of ``cf`` tokens
    of ``lanes``; output tokens have ``kp*lanes`` elements, laid out ``[kp][lanes]``. When tokens
    are read is the pacing rule of `pipec.backends.fpga.swg`; it never depends on data.

    Attributes:
        batch: Images per frame.
        h: Input rows; ``w`` input columns; ``cf`` tokens per pixel; ``lanes`` elements per token.
        kh: Kernel height; ``kw`` width; ``sh``, ``sw`` strides; ``dh``, ``dw`` dilations.
        pt: Padding on top; ``pl`` on the left (bottom and right follow from ``oh`` and ``ow``).
        oh: Output rows; ``ow`` output columns.
        groups: Channel groups emitted one after the other; divides ``cf``. ``cf`` for depthwise
            convolution and pooling (each group is one token), the convolution's groups, or 1.
        kp: Kernel positions per output token; divides ``kh*kw``; above 1 only if ``cf == groups``.
        pad_value: What lies outside the image: 0, or ``-inf`` for max pooling.
    """

    batch: int
    h: int
    w: int
    cf: int
    lanes: int
    kh: int
    kw: int
    sh: int = 1
    sw: int = 1
    dh: int = 1
    dw: int = 1
    pt: int = 0
    pl: int = 0
    oh: int = 1
    ow: int = 1
    groups: int = 1
    kp: int = 1
    pad_value: float = 0.0

    @property
    def taps(self) -> int:
        """Kernel positions ``kh*kw``."""
        return self.kh * self.kw

    @property
    def reads(self) -> int:
        """Input tokens of one image."""
        return self.h * self.w * self.cf

    @property
    def writes(self) -> int:
        """Output tokens of one image."""
        return self.oh * self.ow * self.taps // self.kp * self.cf

    @property
    def is_line(self) -> bool:
        """Whether it moves a token on per firing, and not through a ring in memory."""
        return self.kp > 1 or self.taps == 1

    @property
    def trivial(self) -> bool:
        """Whether every pixel is its own window, so that no generator is needed."""
        return (self.taps, self.sh, self.sw, self.pt, self.pl, self.oh, self.ow) == (
            1, 1, 1, 0, 0, self.h, self.w
        )  # fmt: skip


@dataclass(frozen=True)
class Mvu:
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
        n: Vectors per frame (output pixels, rows).
        groups: Independent matrices, one per channel group, innermost around the vector.
        rows: Output channels of one group (MH); ``pe`` of them at a time; ``nf = ceil(rows/pe)``.
        taps: Kernel positions of the reduction (``kh*kw`` of a window, pixels of a flattened map).
        channels: Channels of one position and group; the reduction (MW) is ``taps*channels``.
        pe: Processing elements: output channels per firing.
        simd: Input elements per firing: ``channels`` folded by ceiling, or ``kp*lanes`` of the
            SWG, laid out ``[kp][lanes]``.
        kp: Kernel positions per input token; above 1 only if one token holds all channels.
        order: ``A`` or ``B`` as above (``A`` if ``block`` is above 1).
        partial: Order A: partial sums used in turn, so that an adder of that latency keeps an
            initiation interval of 1; they are added in a balanced tree at the end.
        block: V, vectors per pass over streamed weights; divides ``n``; 1 if weights are on chip.
        bias: Whether there is a bias table.
        streamed: Whether weights arrive by the second input stream.

    Weights: role ``weight`` of shape ``[groups][nf][sf][simd][pe]`` (zeros where a tile overhangs),
    in order B streamed as ``[groups][sf][nf][simd][pe]``; role ``bias`` ``[groups][nf][pe]``.
    """

    n: int
    rows: int
    taps: int
    channels: int
    pe: int = 1
    simd: int = 1
    kp: int = 1
    groups: int = 1
    order: str = "A"
    partial: int = 1
    block: int = 1
    bias: bool = False
    streamed: bool = False

    @property
    def nf(self) -> int:
        """Neuron fold: ``ceil(rows/pe)``."""
        return ceil_div(self.rows, self.pe)

    @property
    def sf(self) -> int:
        """Synapse fold: input tokens of one vector and group."""
        return self.taps // self.kp * ceil_div(self.channels, self.simd // self.kp)

    @property
    def macs(self) -> int:
        """Multiply-accumulates per frame, overhang not counted."""
        return self.n * self.groups * self.rows * self.taps * self.channels


@dataclass(frozen=True)
class Vvu:
    """Vector-vector unit: depthwise convolution; each channel has its own kernel.

    ```text
    for v in n: for c in cf: for t in taps/kp:
      x = read in0                                     # [kp][lanes]
      acc[lane] += sum over kp of weight[c][t][kp][lane] * x[kp][lane]       # acc = 0 at t == 0
      if t == taps/kp-1: write acc[lane] + bias[c][lane]
    ```

    ``partial`` sums are used in turn by t, as in `Mvu`.
    Weights: role ``weight`` ``[cf][taps/kp][kp][lanes]``, role ``bias`` ``[cf][lanes]``.
    """

    n: int
    channels: int
    taps: int
    lanes: int = 1
    kp: int = 1
    partial: int = 1
    bias: bool = False

    @property
    def cf(self) -> int:
        """Tokens per output pixel."""
        return ceil_div(self.channels, self.lanes)


@dataclass(frozen=True)
class Reduce:
    """Reduction over a window or over rows: pooling after an SWG, global pooling, mean over rows.

    ```text
    for v in n: for j in window: for c in cf:
      x = read in0                                     # [kp][lanes]
      acc[c][lane] = op(acc[c][lane], x[..][lane])     # over kp; acc starts at j == 0
      if j == window-1: write acc[c] * scale           # scale: number, or table[v % period]
    ```

    Attributes:
        n: Results per frame; ``window`` inputs each; ``cf`` partial results side by side.
        op: ``max``, ``min`` or ``sum`` (a mean is a sum with ``scale = 1/count``).
        scale: Factor on the result (1 for max and min).
        table: Period of a table of scales, role ``scale`` ``[period]``, used instead of
            ``scale``; 0 if there is none (average pooling that does not count its padding).
        partial: Partial results used in turn by j, as in `Mvu` (sums in floating point).
    """

    n: int
    window: int
    cf: int
    lanes: int = 1
    kp: int = 1
    op: str = "max"
    scale: float = 1.0
    table: int = 0
    partial: int = 1


UNARY = (
    "abs", "ceil", "cos", "erf", "exp", "floor", "gelu", "gelu_tanh", "log", "neg", "reciprocal",
    "relu", "round", "rsqrt", "sigmoid", "sign", "silu", "sin", "softplus", "sqrt", "square",
    "tanh",
)  # fmt: skip
"""Map ops of one operand."""
BINARY = ("add", "div", "max", "min", "mul", "pow", "rdiv", "rpow", "rsub", "sub")
"""Map ops of two operands ``x op y``; ``rsub`` is ``y - x``, ``rdiv`` is ``y / x``."""
GRADIENTS = (
    "gelu_grad", "gelu_tanh_grad", "relu_grad", "sigmoid_grad", "silu_grad", "tanh_grad",
)  # fmt: skip
"""Map ops ``f_grad``: ``x f'(.)``, x being a gradient and y the result of f (relu, sigmoid, tanh)
or its operand (gelu, silu)."""


@dataclass(frozen=True)
class Step:
    """One elementwise step ``x = op(x)`` or ``x = op(x, y)`` of a `Map`.

    Attributes:
        op: One of `UNARY`, `BINARY` or `GRADIENTS`, or ``leaky_relu`` (slope ``value``) or ``elu``
            (alpha).
        operand: Where y comes from: ``none``, ``scalar`` (``value``), ``table`` (role ``tableK``
            for step K, ``[period][lanes]``, entry ``token % period``), or ``stream`` (in1).
        value: The scalar, or the slope.
        period: Entries of the table.
    """

    op: str
    operand: str = "none"
    value: float = 0.0
    period: int = 0


@dataclass(frozen=True)
class Map:
    """Elementwise: ``for i in tokens: x = read in0 (y = read in1); steps; write x``.

    Both inputs are read in the same firing, and only one step may read ``in1``. No steps: a copy.
    ``rows * ceil(channels/lanes)`` tokens.
    """

    rows: int
    channels: int
    lanes: int = 1
    steps: tuple[Step, ...] = ()

    @property
    def tokens(self) -> int:
        """Firings per frame."""
        return self.rows * ceil_div(self.channels, self.lanes)


@dataclass(frozen=True)
class Norm:
    """Row unit: needs the whole row before it can write the first result.

    ```text
    for r in rows:
      for c in cf: x[c] = read in0; statistics
      (passes-2) silent passes over x
      for c in cf: write
    ```

    Every pass after the first starts ``gap`` cycles after the last firing of the one before (the
    pipeline drains between passes). A row has ``taps`` positions of ``channels`` elements each:
    ``cf = taps*ceil(channels/lanes)``; padding lanes take no part.

    Attributes:
        op: ``softmax``, ``log_softmax`` (3 passes: max, sum of exp, write), ``layer_norm``,
            ``rms_norm`` (3: mean, variance, write; rms 2), ``lrn`` (2: squares, write).
        eps: Epsilon of layer_norm and rms_norm.
        size: Window of lrn: ``y = x / (k + alpha/size * sum x^2 over c-(size-1)//2 .. c+size//2)``
            to the power ``beta``.
        scale: Whether there is a table of factors, role ``scale`` ``[cf][lanes]``.
        shift: Whether there is a table of summands, role ``shift`` ``[cf][lanes]``.
    """

    rows: int
    channels: int
    taps: int = 1
    lanes: int = 1
    op: str = "softmax"
    passes: int = 3
    gap: int = 1
    eps: float = 0.0
    size: int = 0
    alpha: float = 0.0
    beta: float = 0.0
    k: float = 0.0
    scale: bool = False
    shift: bool = False

    @property
    def cf(self) -> int:
        """Tokens per row."""
        return self.taps * ceil_div(self.channels, self.lanes)


@dataclass(frozen=True)
class Matmul:
    """Product of two activations: the second operand is loaded into a RAM first, then as `Mvu`.

    ```text
    for b in blocks:
      for i in load: read in1                          # operand B of all groups
      for v in outer: for g in groups: for u in inner:
        for f in nf: for s in sf:
          if f == 0: a[s] = read in0
          acc[s % partial][pe] += sum over simd of B[g][f*PE+pe][s*SIMD+simd] * a[s][simd]
          if s == sf-1: write sum(acc) * scale         # PE elements
    ```

    Vectors of A come in the order ``outer, groups, inner`` (one of outer, inner is usually 1); a
    vector has ``taps`` positions of ``channels``. B arrives row-major over the axes ``b_sizes``
    (the last is split into tokens of ``b_lanes``); axis k of B is an axis of the group, of the
    output (``rows``) or of the reduction, as ``b_roles[k]`` (``g``, ``n``, ``k``) says, axes of
    one role being row-major among themselves.
    """

    blocks: int
    outer: int
    groups: int
    inner: int
    rows: int
    taps: int
    channels: int
    b_sizes: tuple[int, ...]
    b_roles: tuple[str, ...]
    b_lanes: int = 1
    pe: int = 1
    simd: int = 1
    partial: int = 1
    scale: float = 1.0

    @property
    def nf(self) -> int:
        """Neuron fold."""
        return ceil_div(self.rows, self.pe)

    @property
    def sf(self) -> int:
        """Synapse fold."""
        return self.taps * ceil_div(self.channels, self.simd)

    @property
    def load(self) -> int:
        """Tokens of operand B per block."""
        *outer, channels = self.b_sizes
        return math.prod(outer) * ceil_div(channels, self.b_lanes)

    @property
    def vectors(self) -> int:
        """Vectors of A per block, groups included."""
        return self.outer * self.groups * self.inner
