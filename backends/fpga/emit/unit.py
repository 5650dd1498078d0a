"""One engine as C++: what its writer says."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from pipec.backends.fpga.design import Engine, Memory

MICROBATCH, MICROBATCHES = "microbatch", "microbatches"
"""Arguments of a kernel with movers: number of the first frame, frames of an update."""


@dataclass(frozen=True)
class Unit:
    """What an engine's writer decides.

    Attributes:
        header: The header that holds the engine.
        function: Its function in namespace ``engine``.
        constants: Constants of its configuration struct, besides ``II`` and ``DEPTH``.
        functions: Static functions of the struct, signature to lines.
        tables: Roles of the tables it takes, in order; ``role?stand_in`` where it may be missing.
        arguments: Further arguments, as C++.
        outputs_first: Whether the outputs come before the inputs (engines with many inputs).
        extra_inputs_last: Whether inputs after the first follow the outputs.
        in_memory: Whether the pointer of its memory port follows the streams.
    """

    header: str
    function: str
    constants: Mapping[str, int]
    functions: Mapping[str, Iterable[str]] = field(default_factory=dict)
    tables: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    outputs_first: bool = False
    extra_inputs_last: bool = False
    in_memory: bool = False


def in_memory(engine: Engine, role: str) -> bool:
    """Whether a table stays in off-chip memory, so that the engine reads it through a port."""
    weight = engine.weight(role)
    return weight is not None and weight.memory is Memory.DDR


def constants_of(nest: Any, names: str) -> dict[str, int]:
    """Constants from fields of a nest: of their names in lower case, or as ``C=channels`` says.

    ``*`` stands for all fields in order.
    """
    words = [w for n in names.split() for w in (_all(nest) if n == "*" else [n])]
    pairs = [name.partition("=") for name in words]
    return {name: getattr(nest, of or name.lower()) for name, _, of in pairs}


def _all(nest: Any) -> list[str]:
    return [field.name.upper() for field in fields(nest)]


Writer = Callable[[Engine, Any], Unit]
"""Writes an engine with its nest."""


def plain(header: str, function: str, names: str, **more: Any) -> Writer:
    """The writer of an engine whose constants are fields of its nest (`constants_of`)."""
    return lambda engine, nest: Unit(header, function, constants_of(nest, names), **more)
