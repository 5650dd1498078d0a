"""Engines in C++: the struct and the call of each, as its kind says (`Nest.unit`)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pipec.backends.fpga.cpp import comment, cpp_type, identifier
from pipec.backends.fpga.engines.base import Engine
from pipec.errors import BackendError


@dataclass(frozen=True)
class Struct:
    """A configuration struct of namespace ``cfg``.

    Attributes:
        name: Its name.
        about: Comment above it.
        element: C++ type ``T``.
        constants: Integer (or bool) constants in order.
        functions: Bodies of static member functions by signature.
    """

    name: str
    about: str
    element: str
    constants: Mapping[str, int]
    functions: Mapping[str, Iterable[str]]


def struct_of(engine: Engine) -> Struct:
    """The configuration struct of an engine."""
    unit, name = engine.nest.unit(engine), engine.name
    about = f"{name}: {engine.origin}" if engine.origin else name
    constants = {**unit.constants, "II": engine.ii, "DEPTH": engine.depth}
    return Struct(identifier(name), about, cpp_type(engine.dtype), constants, unit.functions)


def table_name(engine: Engine, role: str) -> str:
    """The C++ name of a table, without its namespace."""
    return identifier(engine.name) + "_" + role


def call_of(engine: Engine, memory: str | None = None) -> str:
    """The call of an engine, as a task of the dataflow.

    Args:
        engine: The engine.
        memory: Name of its memory port's pointer, which follows the streams, if it has one.
    """
    unit = engine.nest.unit(engine)
    inputs, outputs = ([identifier(s) for s in group] for group in (engine.inputs, engine.outputs))
    streams = [*inputs[: unit.leading], *outputs, *inputs[unit.leading :]]
    pointers = [memory] if memory is not None else []
    tables = [_table(engine, role) for role in unit.tables]
    arguments = ", ".join(["frames", *streams, *pointers, *tables, *unit.arguments])
    name = f"engine::{unit.function}<cfg::{identifier(engine.name)}>"
    return f"TASK({name}({arguments}));  // {comment(engine.origin or engine.name)}"


def _table(engine: Engine, role: str) -> str:
    role, _, stand_in = role.partition("?")
    if engine.weight(role) is None:
        if not stand_in:
            raise BackendError("an engine lacks a table", where=engine.name, got=role)
        return f"engine::{stand_in}()"
    return f"table::{table_name(engine, role)}"
