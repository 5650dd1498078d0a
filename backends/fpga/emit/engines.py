"""Every kind of engine: which writer it has, and the struct and call that follow from it."""

from pipec.backends.fpga import nests, routing
from pipec.backends.fpga.design import Engine, Weight, bits_of
from pipec.backends.fpga.emit import compute
from pipec.backends.fpga.emit.cpp import comment, cpp_type, identifier, struct
from pipec.backends.fpga.emit.unit import (
    MICROBATCH,
    MICROBATCHES,
    Unit,
    Writer,
    in_memory,
    plain,
)
from pipec.backends.fpga.training import nests as gradients
from pipec.errors import BackendError

WRITERS: dict[type, Writer] = {
    nests.Swg: compute.swg,
    nests.Mvu: compute.mvu,
    nests.Vvu: compute.vvu,
    nests.Reduce: compute.reduce,
    nests.Map: compute.elementwise,
    nests.Norm: compute.norm,
    nests.Matmul: compute.matmul,
    routing.Fork: plain("route.h", "fork", "TOKENS"),
    routing.Concat: compute.concat,
    routing.Slice: plain("route.h", "slice", "OUTER SIZE START STOP STEP INNER"),
    routing.Repeat: plain("route.h", "repeat", "OUTER INNER TIMES"),
    routing.Const: plain("route.h", "source", "LANES TOKENS", tables=("table",)),
    routing.Dwc: plain(
        "gear.h", "dwc", "REPEAT ROWS_OUT C_IN=channels_in LANES_IN C_OUT=channels_out LANES_OUT"
    ),
    routing.Perm: compute.perm,
    routing.Gather: plain("memory.h", "gather", "N CF LANES ENTRIES", tables=("table",)),
    routing.Load: plain("memory.h", "load", "WORDS LANES REPEAT", tables=("weight",)),
    gradients.Outer: plain("outer.h", "outer", "N GROUPS ROWS NF SF PE SIMD PARTIAL"),
    gradients.ArgMax: plain("poolgrad.h", "argmax", "*"),
    gradients.Scatter: plain("poolgrad.h", "scatter", "* RING"),
    gradients.Spread: plain("expand.h", "spread", "*"),
    gradients.OneHot: plain("expand.h", "one_hot", "*"),
    gradients.RowGradient: compute.row_gradient,
    gradients.Store: plain("mover.h", "store", "*", arguments=(MICROBATCH,), in_memory=True),
    gradients.Fetch: plain("mover.h", "fetch", "*", arguments=(MICROBATCH,), in_memory=True),
    gradients.Accumulate: plain(
        "mover.h", "accumulate", "*", arguments=(MICROBATCH, MICROBATCHES), in_memory=True
    ),
    gradients.Spill: plain("mover.h", "spill", "*", in_memory=True),
    gradients.Refill: plain("mover.h", "refill", "*", in_memory=True),
}
"""Nest class to the function that writes it."""


def unit_of(engine: Engine) -> Unit:
    """The unit that writes an engine.

    Raises:
        BackendError: Its kind has no writer.
    """
    writer = WRITERS.get(type(engine.nest))
    if writer is None:
        raise BackendError("no C++ is written for this engine", where=engine.name, got=engine.kind)
    return writer(engine, engine.nest)


def struct_of(engine: Engine) -> str:
    """The configuration struct of an engine."""
    unit, name = unit_of(engine), engine.name
    about = f"{name}: {engine.origin}" if engine.origin else name
    constants = {**unit.constants, "II": engine.ii, "DEPTH": engine.depth}
    return struct(identifier(name), about, cpp_type(engine.dtype), constants, unit.functions)


def table_name(engine: Engine, role: str) -> str:
    """The C++ name of a table, without its namespace."""
    return identifier(engine.name) + "_" + role


def word_type(engine: Engine, weight: Weight) -> str:
    """C++ type of one word of a table that stays in memory, as its port is read.

    Words of an AXI port have a power of two of bytes, four at least; HLS pads others to it.
    """
    element = cpp_type(weight.dtype)
    if engine.kind == "gather":
        return f"vec<{element}, {padded_lanes(weight)}>"
    return f"engine::beat<{element}>"


def padded_lanes(weight: Weight) -> int:
    """Lanes of a table's token where it is a word of memory."""
    return max(32 // bits_of(weight.dtype), 1 << (weight.shape[-1] - 1).bit_length())


def call_of(engine: Engine, memory: str | None = None) -> str:
    """The call of an engine, as a task of the dataflow.

    Args:
        engine: The engine.
        memory: Name of its memory port's pointer, if it has one.
    """
    unit = unit_of(engine)
    inputs, outputs = ([identifier(s) for s in group] for group in (engine.inputs, engine.outputs))
    if unit.outputs_first:
        streams = [*outputs, *inputs]
    elif unit.extra_inputs_last:
        streams = [*inputs[:1], *outputs, *inputs[1:]]
    else:
        streams = [*inputs, *outputs]
    tables = [_table(engine, role, memory) for role in unit.tables]
    tables += [memory] if unit.in_memory and memory is not None else []
    arguments = ", ".join(["frames", *streams, *tables, *unit.arguments])
    name = f"engine::{unit.function}<cfg::{identifier(engine.name)}>"
    return f"TASK({name}({arguments}));  // {comment(engine.origin or engine.name)}"


def _table(engine: Engine, role: str, memory: str | None) -> str:
    role, _, stand_in = role.partition("?")
    if engine.weight(role) is None:
        if not stand_in:
            raise BackendError("an engine lacks a table", where=engine.name, got=role)
        return f"engine::{stand_in}()"
    if in_memory(engine, role) and memory is not None:
        return memory
    return f"table::{table_name(engine, role)}"
