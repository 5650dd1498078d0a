"""Loop bounds, unroll factors, intervals and depths in ``types.h`` are those of ``stage.json``."""

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from pipec.backends.fpga.cpp import cpp_type, identifier
from pipec.backends.fpga.engines.base import Nest
from pipec.backends.fpga.engines.window import image_cycles, ring_of
from pipec.backends.fpga.stagejson import Json
from tests.fpga.lint.source import Block, Finding

OTHER_NAMES: dict[str, Callable[[Any], int]] = {
    "ks": lambda n: n.taps // n.kp,
    "c": lambda n: n.channels,
    "n": lambda n: n.rows,
    "c_in": lambda n: n.channels_in,
    "c_out": lambda n: n.channels_out,
    "b_c": lambda n: n.b_sizes[-1],
    "by_row": lambda n: int(n.b_roles[-1] == "n"),
    "tokens": lambda n: sum(n.sizes),
    "before": lambda n: (n.size - 1) // 2,
    "after": lambda n: n.size // 2,
    "log": lambda n: n.op.startswith("log_softmax"),
    "firings": image_cycles,
    "lead": lambda n: ring_of(n).lead,
    "start": lambda n: ring_of(n).start,
    "slots": lambda n: ring_of(n).slots,
}
"""Constant of a configuration struct to what it is of the nest, where the nest has no such name."""


KINDS = Nest.KINDS


def check_bounds(file: str, root: Block, record: Json) -> Iterator[Finding]:
    """Every constant of every configuration struct, as computed from ``stage.json``."""
    structs = {b.head.split()[-1]: b for b in root.all() if b.head.startswith("struct ")}
    wanted = constants(record)
    for name in sorted(structs.keys() ^ wanted.keys()):
        where = structs[name].line if name in structs else 1
        yield Finding(file, where, "bound", f"{name} is in one of stage.json and the code alone")
    types = _element_types(record)
    for name in structs.keys() & wanted.keys():
        for number, line in structs[name].lines:
            match = re.fullmatch(r"static constexpr \w+ (\w+) = (\S+)", line)
            if match is None and line.startswith("static constexpr"):
                yield Finding(file, number, "bound", f"{name}: no number: {line}")
            want = wanted[name](match.group(1)) if match is not None else None
            element = re.fullmatch(r"using T = (.+)", line)
            if element is not None and element.group(1) not in types[name]:
                yield Finding(file, number, "bound", f"{name} has no elements {element.group(1)}")
            if match is not None and want is not None and match.group(2) != want:
                text = f"{name}::{match.group(1)} is {match.group(2)}, stage.json gives {want}"
                yield Finding(file, number, "bound", text)


def _element_types(record: Json) -> dict[str, set[str]]:
    """C++ name of an engine or port to the element types of its streams."""
    kinds = {s["name"]: cpp_type(s["dtype"]) for s in record["fifos"]}
    found = {name: {kinds[stream]} for name, stream in record["ports"].items()}
    for engine in record["engines"]:
        streams = (*engine["inputs"], *engine["outputs"])
        found[identifier(engine["name"])] = {kinds[s] for s in streams if s in kinds}
    return found


def constants(record: Json) -> dict[str, Callable[[str], str | None]]:
    """C++ name of an engine or port to a function from a constant's name to its value.

    The function returns None for a constant that is no number of the nest.
    """
    fifos = {s["name"]: s for s in record["fifos"]}
    found: dict[str, Callable[[str], str | None]] = {
        name: partial(_port_constant, fifos[stream]) for name, stream in record["ports"].items()
    }
    for engine in record["engines"]:
        found[identifier(engine["name"])] = partial(_constant, engine, _nest(engine))
    return found


def _port_constant(fifo: Json, name: str) -> str | None:
    values = {"TOKENS": fifo["tokens"], "LANES": fifo["lanes"], "II": 1, "DEPTH": 1}
    return str(values[name]) if name in values else None


def _nest(engine: Json) -> object:
    """The nest, as far as integers go; nothing of a kind that is not known here."""
    if engine["kind"] not in KINDS:
        return None
    fields = {k: tuple(v) if isinstance(v, list) else v for k, v in engine["nest"].items()}
    return KINDS[engine["kind"]](**fields)


def _constant(engine: Json, nest: object, name: str) -> str | None:
    key = name.lower()
    if key in ("ii", "depth"):
        return str(engine[key])
    if key in OTHER_NAMES and not hasattr(nest, key):
        return str(OTHER_NAMES[key](nest)).lower()
    return str(getattr(nest, key)).lower() if hasattr(nest, key) else None
