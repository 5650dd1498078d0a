"""The update of a stage's weights: SGD with momentum, streamed from memory and back.

```text
g  = scale * gradient + decay * w
m' = momentum * m + g
w' = w - rate * m'
```

All parameters of a stage lie one after the other, each from a new row of 16 numbers on, in the
order of their gradients' tokens (`layout`); the gradients are the sums that the backward kernel
leaves in memory. Rates are tables of the engines, so that the host can change them between steps.
As in torch.optim.SGD, nesterov and dampening aside.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from pipec.backends.fpga.design import StageDesign
from pipec.backends.fpga.engines.base import Engine, Layer, Use
from pipec.backends.fpga.engines.map import Map
from pipec.backends.fpga.engines.network import NetPort, Network
from pipec.backends.fpga.engines.parts import Table
from pipec.backends.fpga.engines.steps import MapStep
from pipec.backends.fpga.engines.tiles import ceil_div
from pipec.backends.fpga.fifo import size_fifos
from pipec.backends.fpga.folding import design_at, wire_lanes
from pipec.backends.fpga.training.movers import SUMS, Place
from pipec.backends.fpga.training.phases import gradient_name

ROW = 16
"""Parameters of a row: one beat of 512 bits in float32."""
WORDS_MOVED = 5
"""Words read and written per parameter: w, g, m in; w, m out."""


@dataclass(frozen=True)
class Sgd:
    """Settings of the update.

    Attributes:
        rate: Learning rate.
        momentum: Share of the momentum that stays.
        decay: Weight decay.
        scale: Factor on the gradients: one over the microbatches of an update.
    """

    rate: float = 0.01
    momentum: float = 0.9
    decay: float = 0.0
    scale: float = 1.0


class Slice(Struct, frozen=True, rename={"parameter": "name", "first": "first_row"}):
    """Where a parameter lies among those of its stage; in files by the names of its row.

    Attributes:
        parameter: Name of the parameter.
        first: Its first row; ``rows`` rows.
    """

    parameter: str
    first: int
    rows: int


def layout(backward: Network, trained: Sequence[str]) -> tuple[Slice, ...]:
    """The trained parameters of a stage in memory, in order; B's outputs are their gradients."""
    uses, found, first = {p.value: p.use for p in backward.outputs}, list[Slice](), 0
    for name in trained:
        use = uses[gradient_name(name)]
        lanes = wire_lanes(use.channels, use.dtype)
        rows = ceil_div(use.rows * ceil_div(use.channels, lanes) * lanes, ROW)
        found.append(Slice(name, first, rows))
        first += rows
    return tuple(found)


def put_tokens(image: NDArray[np.float32], part: Slice, tokens: NDArray[Any]) -> None:
    """Write a parameter, as tokens of its gradient's stream, into ``[rows, 16]`` of the stage."""
    image[part.first : part.first + part.rows].reshape(-1)[: tokens.size] = tokens.reshape(-1)


UPDATED = {
    "w": Place("w", 1, "w"),
    "gradient": Place(SUMS, 1, SUMS),
    "m": Place("m", 1, "m"),
    "new_w": Place("new_w", 1, "w"),
    "new_m": Place("new_m", 1, "m"),
}
"""Ports of the update to the buffers in memory; the new values may overwrite the old ones."""

_LAYERS = (
    ("decayed", ("in_w",), "decay", 1.0),
    ("total", ("in_gradient", "decayed"), "scale", 1.0),
    ("new_m", ("in_m", "total"), "momentum", 1.0),
    ("new_w", ("new_m", "in_w"), "rate", -1.0),
)
"""Layer, what it reads, which setting the first of it is multiplied by, with which sign; the second
is added."""


def update_network(parameters: int) -> Network:
    """The network that updates so many parameters, with the default settings.

    Inputs ``w``, ``gradient``, ``m``, outputs ``new_w``, ``new_m``, all ``[rows, 16]``; what is
    behind the last parameter is updated too, and means nothing.
    """
    rows, add = ceil_div(parameters, ROW), MapStep("add", "stream")

    def use(edge: str) -> Use:
        return Use(edge, rows, ROW, "float32")

    layers = []
    for name, edges, setting, sign in _LAYERS:
        factor = Table(partial(np.full, (1, ROW), sign * getattr(Sgd(), setting)))
        steps = (MapStep("mul", "table", table=factor), add)[: len(edges)]
        uses, nest = tuple(map(use, edges)), Map(rows, ROW)
        layers.append(Layer(name, "update", "SGD", uses, rows, ROW, nest, steps=steps))
    inputs, outputs = (
        tuple(NetPort(n, n, use(way + n), (rows, ROW), (0, 1), "float32") for n in names)
        for way, names in (("in_", ("w", "gradient", "m")), ("", ("new_w", "new_m")))
    )
    return Network(tuple(layers), inputs, outputs)


def update_kernel(parameters: int, bytes_per_cycle: float) -> StageDesign:
    """The update of so many parameters as a kernel whose engines are no slower than memory."""
    per_row = max(int(4 * WORDS_MOVED * ROW / bytes_per_cycle), 1)
    return size_fifos(design_at(update_network(parameters), ceil_div(parameters, ROW) * per_row))


def set_rates(kernel: StageDesign, sgd: Sgd) -> StageDesign:
    """The update with other settings: the same engines with other tables."""
    factors = {f"{name}_map": sign * getattr(sgd, of) for name, _, of, sign in _LAYERS}

    def with_factor(engine: Engine) -> Engine:
        (table,) = engine.weights
        values = partial(np.full, table.shape, factors[engine.name])
        return dataclasses.replace(engine, weights=(dataclasses.replace(table, values=values),))

    engines = (with_factor(e) if e.name in factors else e for e in kernel.engines)
    return dataclasses.replace(kernel, engines=tuple(engines))
