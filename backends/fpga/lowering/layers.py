"""Layers: what a stage computes, in stream order, before any unroll factor is chosen.

A layer reads *uses* of edges and writes one edge. An edge carries ``rows x channels`` elements;
a consumer may see the same elements in other rows (`Use`), which costs a width converter unless
the tokens fall together. Tables are closures over the model's weights that yield logical arrays
in stream order; folding later cuts them into tiles.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from numpy.typing import NDArray

from pipec.backends.fpga.nests import Swg
from pipec.backends.fpga.routing import Nest

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
    """A loop nest at one lane: a token is an element, one multiplier, tables on chip.

    Attributes:
        name: C identifier; also the name of the edge that it writes.
        node: Graph node that it came from.
        origin: That node in the user's words.
        inputs: Edges read, in port order.
        rows: Rows written per frame; ``channels`` elements each.
        nest: What it computes; folding widens it, and says which tables there are.
        window: The window generator in front of it, at one lane too; None where it needs none.
        tables: Role to table. ``weight`` is ``[groups][rows][taps][channels]`` of an `nests.Mvu`
            and ``[channels][taps]`` of a `nests.Vvu`, ``bias`` has its leading axes; ``scale`` of a
            pooling is ``[oh*ow]``, ``scale`` and ``shift`` of row units ``[taps*channels]``, and
            ``table`` has the rows that are looked up, or written.
        dtype: Element type written, if not that of the whole network.
        clamp: What its results are limited to before they are rounded (8-bit integers only).
        rescale: How its sums become 8-bit integers, where it computes in integers.
        used: Share of the weights that are not zero by construction.
        overlaps: Whether neighbouring windows may add to one pixel (`nests.Scatter`).
    """

    name: str
    node: str
    origin: str
    inputs: tuple[Use, ...]
    rows: int
    channels: int
    nest: Nest
    window: Swg | None = None
    tables: Mapping[str, Table] = field(default_factory=dict, hash=False)
    dtype: str = ""
    clamp: tuple[float, float] = UNCLAMPED
    rescale: Rescale | None = None
    used: float = 1.0
    overlaps: bool = False

    def with_tables(self, **tables: Table) -> Self:
        """The layer with other tables in some roles."""
        return dataclasses.replace(self, tables={**self.tables, **tables})


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
    """A chain of elementwise steps, on one or two edges; its nest has no steps yet."""

    steps: tuple[MapStep, ...] = ()
