"""The update of a stage's weights: SGD with momentum, streamed from memory and back.

```text
g  = scale * gradient + decay * w
m' = momentum * m + g
w' = w - rate * m'
```

All parameters of a stage lie one after the other; a row is 16 of them. Rates are tables of the
engines, so that the host can change them between steps. As in torch.optim.SGD, nesterov and
dampening aside.
"""

from dataclasses import dataclass

import numpy as np

from pipec.backends.fpga.design import StageDesign
from pipec.backends.fpga.fifo import sized
from pipec.backends.fpga.folding import design_at
from pipec.backends.fpga.lowering.layers import Elementwise, MapStep, Table, Use
from pipec.backends.fpga.lowering.network import NetPort, Network
from pipec.backends.fpga.nests import ceil_div

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
        return Elementwise(name, "update", "SGD", uses, rows, ROW, steps)

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
    """The update as a kernel with as many lanes as memory feeds.

    Args:
        parameters: Of the stage.
        bytes_per_cycle: That the board's memory moves.
        sgd: Settings.
        name: Of the kernel.
    """
    lanes = min(max(int(bytes_per_cycle / (4 * WORDS_MOVED)), 1), ROW)
    target = ceil_div(parameters, ROW) * ceil_div(ROW, lanes)
    return sized(design_at(update_network(parameters, sgd), target, name=name))


def update_seconds(parameters: int, kernel: StageDesign, bytes_per_second: float) -> float:
    """Seconds of one update: the kernel's cycles, or its traffic."""
    traffic = 4 * WORDS_MOVED * parameters / bytes_per_second
    return max(kernel.interval / (kernel.clock_mhz * 1e6), traffic)
