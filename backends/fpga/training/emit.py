"""How the engines that only training needs are written; see `pipec.backends.fpga.emit.compute`."""

from dataclasses import asdict

from pipec.backends.fpga.design import Engine
from pipec.backends.fpga.emit.cpp import literal
from pipec.backends.fpga.emit.unit import Unit
from pipec.backends.fpga.training.nests import (
    Accumulate,
    ArgMax,
    Fetch,
    OneHot,
    Outer,
    Refill,
    RowGradient,
    Scatter,
    Spill,
    Spread,
    Store,
)

MICROBATCH, MICROBATCHES = "microbatch", "microbatches"
"""Arguments of a kernel with movers: number of the first frame, frames of an update."""


def outer(engine: Engine, nest: Outer) -> Unit:
    """Outer-product unit."""
    constants = {
        "N": nest.n,
        "GROUPS": nest.groups,
        "ROWS": nest.rows,
        "NF": nest.nf,
        "SF": nest.sf,
        "PE": nest.pe,
        "SIMD": nest.simd,
        "PARTIAL": nest.partial,
    }
    return Unit("outer.h", "outer", constants)


def _integers(nest: ArgMax | OneHot | Scatter | Spread | Spill | Refill) -> dict[str, int]:
    return {name.upper(): value for name, value in asdict(nest).items()}


def arg_max(engine: Engine, nest: ArgMax) -> Unit:
    """Places of maxima."""
    return Unit("poolgrad.h", "argmax", _integers(nest))


def scatter(engine: Engine, nest: Scatter) -> Unit:
    """Gradient of max pooling."""
    return Unit("poolgrad.h", "scatter", {**_integers(nest), "RING": nest.ring})


def spread(engine: Engine, nest: Spread) -> Unit:
    """Zeros between pixels."""
    return Unit("expand.h", "spread", _integers(nest))


def one_hot(engine: Engine, nest: OneHot) -> Unit:
    """Class numbers to rows."""
    return Unit("expand.h", "one_hot", _integers(nest))


def row_gradient(engine: Engine, nest: RowGradient) -> Unit:
    """Gradients of softmax and layer normalisation."""
    constants: dict[str, int] = {
        "ROWS": nest.rows,
        "TAPS": nest.taps,
        "C": nest.channels,
        "LANES": nest.lanes,
        "GAP": nest.gap,
    }
    if nest.op != "layer_norm":
        return Unit("rowgrad.h", "softmax_gradient", {**constants, "LOG": nest.op == "log_softmax"})
    eps = {"T eps()": [f"return {literal(nest.eps, engine.dtype)};"]}
    return Unit("rowgrad.h", "layer_norm_gradient", constants, eps, tables=("scale?no_table",))


def store(engine: Engine, nest: Store) -> Unit:
    """Frames into a ring in memory."""
    return _ring("store", nest)


def fetch(engine: Engine, nest: Fetch) -> Unit:
    """Frames from a ring in memory."""
    return _ring("fetch", nest)


def _ring(function: str, nest: Store | Fetch) -> Unit:
    constants = {"TOKENS": nest.tokens, "LANES": nest.lanes, "SLOTS": nest.slots}
    return Unit("mover.h", function, constants, arguments=(MICROBATCH,), in_memory=True)


def spill(engine: Engine, nest: Spill) -> Unit:
    """Into a FIFO in memory."""
    return Unit("mover.h", "spill", _integers(nest), in_memory=True)


def refill(engine: Engine, nest: Refill) -> Unit:
    """Out of a FIFO in memory."""
    return Unit("mover.h", "refill", _integers(nest), in_memory=True)


def accumulate(engine: Engine, nest: Accumulate) -> Unit:
    """Sums of frames in memory."""
    constants = {"TOKENS": nest.tokens, "LANES": nest.lanes}
    arguments = (MICROBATCH, MICROBATCHES)
    return Unit("mover.h", "accumulate", constants, arguments=arguments, in_memory=True)
