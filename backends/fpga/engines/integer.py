"""8-bit integers in engines: how exact sums become 8 bits."""

from collections.abc import Callable

from pipec.backends.fpga.cpp import cpp_type, identifier
from pipec.backends.fpga.engines.base import Engine, Layer
from pipec.backends.fpga.engines.parts import Array, Table, Weight, weight
from pipec.errors import BackendError


def limits(engine: Engine) -> dict[str, int]:
    """Constants of the last step from a sum to 8 bits, of an engine that has one."""
    by = engine.narrowing
    return {} if by is None else {"SHIFT": by.shift, "LOW": by.low, "HIGH": by.high}


def narrow(engine: Engine) -> str:
    """The C++ function that takes a sum to 8 bits."""
    return f"narrowed<{cpp_type(engine.result)}, {identifier(engine.name)}>"


def multiplier(engine: Engine) -> int:
    """The multiplier of all results of an engine without a table of them."""
    assert engine.narrowing is not None
    assert engine.narrowing.multiplier is not None
    return engine.narrowing.multiplier


def bias_of(engine: Engine) -> str:
    """The C++ table of biases; with 8-bit integers the one that rescales sums to 8 bits."""
    return "rescale" if engine.narrowing is not None else "bias?no_bias"


def rescaling(layer: Layer, shape: tuple[int, ...], cut: Callable[[Array], Array]) -> Weight:
    """The table that takes a layer's exact sums to 8 bits."""

    def unknown() -> Array:
        raise BackendError(
            "a layer of 8-bit integers has no scales", where=layer.origin, want="calibration"
        )

    table = layer.tables.get("rescale", Table(unknown))
    return weight("rescale", shape, table, "rescale", cut)


def real_type(dtype: str) -> str:
    """Element type of the tables of an engine that computes in float32 between 8-bit integers."""
    return "float32" if dtype == "int8" else dtype
