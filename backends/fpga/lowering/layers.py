"""Layers: what a stage computes, in stream order, before any unroll factor is chosen.

A layer reads *uses* of edges and writes one edge. An edge carries ``rows x channels`` elements;
a consumer may see the same elements in other rows (`Use`), which costs a width converter unless
the tokens fall together. Tables are closures over the model's weights that yield logical arrays
in stream order; folding later cuts them into tiles.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class Table:
    """A constant: how to compute it, and the model's weights that it comes from."""

    values: Callable[[], Array] = field(compare=False, repr=False)
    sources: tuple[str, ...] = ()


@dataclass(frozen=True)
class Use:
    """How a consumer sees an edge: ``rows x channels`` elements of type ``dtype``."""

    edge: str
    rows: int
    channels: int
    dtype: str = "float32"


@dataclass(frozen=True)
class Window:
    """Geometry of a sliding window over ``batch`` maps of ``h x w``; see `nests.Swg`."""

    batch: int
    h: int
    w: int
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

    @property
    def trivial(self) -> bool:
        """Whether every pixel is its own window: no window generator needed."""
        return (self.kh, self.kw, self.sh, self.sw, self.pt, self.pl) == (1, 1, 1, 1, 0, 0) and (
            self.oh,
            self.ow,
        ) == (self.h, self.w)


@dataclass(frozen=True)
class Rescale:
    """How a layer's exact sums become 8-bit integers; see `design.Narrowing`.

    Attributes:
        shift: Of all results.
        low: Least raw number; ``high`` the largest.
        table: Words of type ``rescale`` (bias and multiplier), shaped as a bias or as the layer's
            own table; None where ``multiplier`` serves all results.
    """

    shift: int
    low: int
    high: int
    multiplier: int | None = None
    table: Table | None = None


UNCLAMPED = (-math.inf, math.inf)


@dataclass(frozen=True)
class Layer:
    """What all layers have.

    Attributes:
        name: C identifier; also the name of the edge that it writes.
        node: Graph node that it came from.
        origin: That node in the user's words.
        inputs: Edges read, in port order.
        rows: Rows written per frame; ``channels`` elements each.
        dtype: Element type written, if not that of the whole network.
        clamp: What its results are limited to before they are rounded (8-bit integers only).
        rescale: How its sums become 8-bit integers, where it computes in integers.
    """

    name: str
    node: str
    origin: str
    inputs: tuple[Use, ...]
    rows: int
    channels: int
    dtype: str = field(default="", kw_only=True)
    clamp: tuple[float, float] = field(default=UNCLAMPED, kw_only=True)
    rescale: Rescale | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class Dense(Layer):
    """Convolution or linear layer on an `nests.Mvu`.

    Attributes:
        window: Geometry of a convolution; None where rows arrive as vectors.
        groups: Channel groups; ``n`` vectors per frame, each read and written as one row per group.
        out: Output channels of one group; ``taps`` positions of ``cin`` channels each.
        weight: ``[groups][out][taps][cin]``; ``bias`` ``[groups][out]``.
        used: Share of the weights that are not zero by construction.
    """

    n: int
    groups: int
    out: int
    taps: int
    cin: int
    weight: Table
    bias: Table | None = None
    window: Window | None = None
    used: float = 1.0


@dataclass(frozen=True)
class Depthwise(Layer):
    """Depthwise convolution on a `nests.Vvu`: weight ``[channels][taps]``, bias ``[channels]``."""

    window: Window
    weight: Table
    bias: Table | None = None


@dataclass(frozen=True)
class Pool(Layer):
    """Pooling over windows: ``op`` max or sum; factor ``scale`` or one per position ``[oh*ow]``."""

    window: Window
    op: str
    scale: float = 1.0
    scales: Table | None = None


@dataclass(frozen=True)
class RowReduce(Layer):
    """Reduction over ``window`` consecutive rows, for each of ``rows`` results."""

    window: int
    op: str
    scale: float = 1.0


@dataclass(frozen=True)
class MapStep:
    """One elementwise step; a table is ``[period rows][channels]``. See `nests.Step`."""

    op: str
    operand: str = "none"
    value: float = 0.0
    table: Table | None = None
    period: int = 1


@dataclass(frozen=True)
class Elementwise(Layer):
    """A chain of elementwise steps, on one or two edges."""

    steps: tuple[MapStep, ...]


@dataclass(frozen=True)
class RowNorm(Layer):
    """Softmax, normalisation or LRN over a row of ``taps x cin``; tables ``[taps*cin]``."""

    n: int
    taps: int
    cin: int
    op: str
    eps: float = 0.0
    size: int = 0
    alpha: float = 0.0
    beta: float = 0.0
    k: float = 0.0
    scale: Table | None = None
    shift: Table | None = None

    @property
    def passes(self) -> int:
        """Passes over a row, reading and writing included."""
        return {"softmax": 3, "log_softmax": 3, "layer_norm": 3, "rms_norm": 2, "lrn": 2}[self.op]


@dataclass(frozen=True)
class Product(Layer):
    """Matrix product of two activations; see `nests.Matmul` for the axes."""

    blocks: int
    outer: int
    groups: int
    inner: int
    out: int
    taps: int
    cin: int
    b_sizes: tuple[int, ...]
    b_roles: tuple[str, ...]
    scale: float = 1.0


@dataclass(frozen=True)
class Join(Layer):
    """Concatenation: ``outer`` times ``sizes[k]`` elements of each input."""

    outer: int
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Cut(Layer):
    """Slice of one axis: ``outer x size x inner`` elements, positions start:stop:step kept."""

    outer: int
    size: int
    start: int
    stop: int
    step: int
    inner: int


@dataclass(frozen=True)
class Reorder(Layer):
    """Permutation of the axes ``sizes`` (in stream order) within each of ``blocks`` blocks."""

    blocks: int
    sizes: tuple[int, ...]
    order: tuple[int, ...]


@dataclass(frozen=True)
class Lookup(Layer):
    """Embedding: row ``index`` of ``table`` ``[entries][channels]``."""

    entries: int
    table: Table


@dataclass(frozen=True)
class Constant(Layer):
    """A constant stream, ``table`` ``[rows][channels]``."""

    table: Table


@dataclass(frozen=True)
class Broadcast(Layer):
    """Repeats blocks of ``inner`` rows ``times`` times, ``outer`` blocks per frame."""

    outer: int
    inner: int
    times: int
