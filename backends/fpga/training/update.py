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
from pipec.backends.fpga.engines.base import Use
from pipec.backends.fpga.engines.map import Elementwise, Map
from pipec.backends.fpga.engines.parts import Table
from pipec.backends.fpga.engines.steps import MapStep
from pipec.backends.fpga.engines.tiles import ceil_div
from pipec.backends.fpga.fifo import sized
from pipec.backends.fpga.folding import design_at, wire_lanes
from pipec.backends.fpga.lowering.network import NetPort, Network
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
        parameter: Its name.
        first: Its first row; ``rows`` rows.
    """

    parameter: str
    first: int
    rows: int


def layout(backward: Network, trained: Sequence[str]) -> tuple[Slice, ...]:
    """The parameters of a stage in memory.

    Args:
        backward: The network of B, whose outputs are their gradients.
        trained: Names of the parameters in order.
    """
    uses, found, first = {p.value: p.use for p in backward.outputs}, list[Slice](), 0
    for name in trained:
        use = uses[gradient_name(name)]
        lanes = wire_lanes(use.channels, use.dtype)
        rows = ceil_div(use.rows * ceil_div(use.channels, lanes) * lanes, ROW)
        found.append(Slice(name, first, rows))
        first += rows
    return tuple(found)


def put(image: NDArray[np.float32], part: Slice, tokens: NDArray[Any]) -> None:
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


def update_network(parameters: int, sgd: Sgd) -> Network:
    """The network that updates so many parameters.

    Inputs ``w``, ``gradient``, ``m``, outputs ``new_w``, ``new_m``, all ``[rows, 16]``; what is
    behind the last parameter is updated too, and means nothing.
    """
    rows = ceil_div(parameters, ROW)

    def times(factor: float) -> MapStep:
        table = Table(lambda: np.full((1, ROW), factor))
        return MapStep("mul", "table", table=table)

    def layer(name: str, inputs: tuple[str, ...], *steps: MapStep) -> Elementwise:
        uses = tuple(Use(edge, rows, ROW, "float32") for edge in inputs)
        nest = Map(rows, ROW)
        return Elementwise(name, "update", "SGD", uses, rows, ROW, nest, steps=steps)

    add = MapStep("add", "stream")
    layers = (
        layer("decayed", ("in_w",), times(sgd.decay)),
        layer("total", ("in_gradient", "decayed"), times(sgd.scale), add),
        layer("new_m", ("in_m", "total"), times(sgd.momentum), add),
        layer("new_w", ("new_m", "in_w"), times(-sgd.rate), add),
    )
    inputs = tuple(_port(name, f"in_{name}", rows) for name in ("w", "gradient", "m"))
    outputs = tuple(_port(name, name, rows) for name in ("new_w", "new_m"))
    return Network(layers, inputs, outputs)


def _port(name: str, edge: str, rows: int) -> NetPort:
    use = Use(edge, rows, ROW, "float32")
    return NetPort(name, name, use, (rows, ROW), (0, 1), "float32")


def update_kernel(
    parameters: int, bytes_per_cycle: float, sgd: Sgd, name: str = "stage0_update"
) -> StageDesign:
    """The update as a kernel whose engines are no slower than memory.

    Args:
        parameters: Of the stage.
        bytes_per_cycle: That the board's memory moves.
        sgd: Settings.
        name: Of the kernel.
    """
    per_row = max(int(4 * WORDS_MOVED * ROW / bytes_per_cycle), 1)
    target = ceil_div(parameters, ROW) * per_row
    return sized(design_at(update_network(parameters, sgd), target, name=name))


RATES = {
    "rate": ("new_w_map", -1.0),
    "momentum": ("new_m_map", 1.0),
    "decay": ("decayed_map", 1.0),
    "scale": ("total_map", 1.0),
}
"""Setting to the engine that multiplies by it, and the sign."""


def rated(kernel: StageDesign, sgd: Sgd) -> StageDesign:
    """The update with other settings: the same engines with other tables."""
    engines = {e.name: e for e in kernel.engines}
    for setting, (name, sign) in RATES.items():
        engine, value = engines[name], sign * getattr(sgd, setting)
        (table,) = engine.weights
        values = partial(np.full, table.shape, value)
        engines[name] = dataclasses.replace(
            engine, weights=(dataclasses.replace(table, values=values),)
        )
    return dataclasses.replace(kernel, engines=tuple(engines.values()))
