"""Which SystemVerilog module an engine of ``stage.json`` is, and its parameters."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pipec.errors import BackendError

Json = Mapping[str, Any]
Parameters = dict[str, int | str]

BITS = 16
"""Bits of an element: integers that wrap around stand for every type of the stage."""
OPS = {"add": 1, "sub": 2, "mul": 3, "max": 4, "min": 5}
"""Two-operand steps that the map unit computes; others pass their first operand on."""
REDUCTIONS = {"sum": 0, "max": 1, "min": 2}


@dataclass(frozen=True)
class Unit:
    """A module and its parameters (numbers, or SystemVerilog text)."""

    module: str
    parameters: Parameters


def unit_of(engine: Json, lanes: Mapping[str, int]) -> Unit:
    """The module of an engine.

    Args:
        engine: Its record in ``stage.json``.
        lanes: Elements per token of each stream.

    Raises:
        BackendError: There is no module for its kind.
    """
    kind = str(engine["kind"])
    if kind not in _UNITS:
        raise BackendError(
            "no SystemVerilog for this kind of engine",
            where=str(engine["name"]),
            got=kind,
            want=", ".join(sorted(_UNITS)),
        )
    module, parameters = _UNITS[kind]
    found = parameters(engine["nest"], engine, lanes)
    found |= {"BITS": BITS, "II": engine["ii"], "DEPTH": engine["depth"]}
    return Unit(module, found)


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def _vector(values: list[int]) -> str:
    """A packed parameter of 32-bit numbers, the first one lowest."""
    return "{" + ", ".join(f"32'd{v}" for v in reversed(values)) + "}"


def _swg(nest: Json, engine: Json, lanes: Mapping[str, int]) -> Parameters:
    names = "batch h w cf lanes kh kw sh sw dh dw pt pl oh ow groups kp"
    found: Parameters = {name.upper(): nest[name] for name in names.split()}
    lowest = nest["pad_value"] == "-inf"
    return found | {"PAD": -(1 << (BITS - 1)) if lowest else 0}


def _mvu(nest: Json, engine: Json, lanes: Mapping[str, int]) -> Parameters:
    nf = _ceil(nest["rows"], nest["pe"])
    per_tap = _ceil(nest["channels"], nest["simd"] // nest["kp"])
    return {
        "N": nest["n"],
        "GROUPS": nest["groups"],
        "NF": nf,
        "SF": nest["taps"] // nest["kp"] * per_tap,
        "PE": nest["pe"],
        "SIMD": nest["simd"],
        "ORDER": 2 if nest["block"] > 1 else int(nest["order"] == "B"),
        "BLOCK": nest["block"],
        "STREAMED": int(nest["streamed"]),
        "BIAS": int(nest["bias"]),
    }


def _vvu(nest: Json, engine: Json, lanes: Mapping[str, int]) -> Parameters:
    return {
        "N": nest["n"],
        "CF": _ceil(nest["channels"], nest["lanes"]),
        "STEPS": nest["taps"] // nest["kp"],
        "KP": nest["kp"],
        "LANES": nest["lanes"],
        "BIAS": int(nest["bias"]),
    }


def _reduce(nest: Json, engine: Json, lanes: Mapping[str, int]) -> Parameters:
    return {
        "N": nest["n"],
        "WINDOW": nest["window"],
        "CF": nest["cf"],
        "KP": nest["kp"],
        "LANES": nest["lanes"],
        "OP": REDUCTIONS[nest["op"]],
    }


def _map(nest: Json, engine: Json, lanes: Mapping[str, int]) -> Parameters:
    steps = nest["steps"]
    streamed = [OPS.get(s["op"], 0) for s in steps if s["operand"] == "stream"]
    return {
        "TOKENS": nest["rows"] * _ceil(nest["channels"], nest["lanes"]),
        "LANES": nest["lanes"],
        "NI": len(engine["inputs"]),
        "OP": streamed[0] if streamed else 0,
        "RELU": int(any(s["op"] == "relu" for s in steps)),
    }


def _norm(nest: Json, engine: Json, lanes: Mapping[str, int]) -> Parameters:
    return {
        "ROWS": nest["rows"],
        "CF": nest["taps"] * _ceil(nest["channels"], nest["lanes"]),
        "LANES": nest["lanes"],
        "PASSES": nest["passes"],
        "GAP": nest["gap"],
    }


def _fork(nest: Json, engine: Json, lanes: Mapping[str, int]) -> Parameters:
    return {
        "TOKENS": nest["tokens"],
        "LANES": lanes[engine["inputs"][0]],
        "NO": nest["outputs"],
    }


def _concat(nest: Json, engine: Json, lanes: Mapping[str, int]) -> Parameters:
    return {
        "OUTER": nest["outer"],
        "LANES": lanes[engine["outputs"][0]],
        "NI": len(engine["inputs"]),
        "SIZES": _vector(list(nest["sizes"])),
    }


def _slice(nest: Json, engine: Json, lanes: Mapping[str, int]) -> Parameters:
    return {
        "OUTER": nest["outer"],
        "SIZE": nest["size"],
        "FIRST": nest["start"],
        "STOP": nest["stop"],
        "STRIDE": nest["step"],
        "INNER": nest["inner"],
        "LANES": lanes[engine["outputs"][0]],
    }


def _dwc(nest: Json, engine: Json, lanes: Mapping[str, int]) -> Parameters:
    return {
        "ROWS_IN": nest["rows_in"],
        "C_IN": nest["channels_in"],
        "L_IN": nest["lanes_in"],
        "ROWS_OUT": nest["rows_out"],
        "C_OUT": nest["channels_out"],
        "L_OUT": nest["lanes_out"],
        "REPEAT": nest["repeat"],
    }


def _perm(nest: Json, engine: Json, lanes: Mapping[str, int]) -> Parameters:
    sizes, order = list(nest["sizes"]), list(nest["order"])
    strides = [math.prod(sizes[k + 1 :]) for k in range(len(sizes))]
    out_sizes = [sizes[axis] for axis in order]
    out_strides = [math.prod(out_sizes[k + 1 :]) for k in range(len(order))]
    return {
        "BLOCKS": nest["blocks"],
        "ELEMENTS": math.prod(sizes),
        "RANK": len(sizes),
        "OUT_SIZE": _vector(out_sizes),
        "OUT_STRIDE": _vector(out_strides),
        "IN_STRIDE": _vector([strides[axis] for axis in order]),
        "C_IN": nest["channels_in"],
        "L_IN": nest["lanes_in"],
        "C_OUT": nest["channels_out"],
        "L_OUT": nest["lanes_out"],
    }


def _repeat(nest: Json, engine: Json, lanes: Mapping[str, int]) -> Parameters:
    names = ("outer", "inner", "times")
    found: Parameters = {name.upper(): nest[name] for name in names}
    return found | {"LANES": lanes[engine["outputs"][0]]}


def _gather(nest: Json, engine: Json, lanes: Mapping[str, int]) -> Parameters:
    cf = _ceil(nest["channels"], nest["lanes"])
    return {"N": nest["n"], "ENTRIES": nest["entries"], "CF": cf, "LANES": nest["lanes"]}


def _load(nest: Json, engine: Json, lanes: Mapping[str, int]) -> Parameters:
    found: Parameters = {
        "WORDS": nest["words"],
        "REPEAT": nest["repeat"],
        "LANES": nest["lanes"],
    }
    slots = engine.get("slots")
    if slots is None:
        return found
    mine = sum(1 << offset for offset in slots["mine"])
    return found | {"SLOTS": slots["of"], "MINE": f"64'd{mine}"}


def _const(nest: Json, engine: Json, lanes: Mapping[str, int]) -> Parameters:
    tokens = nest["rows"] * _ceil(nest["channels"], nest["lanes"])
    return {"WORDS": tokens, "LANES": nest["lanes"]}


def _matmul(nest: Json, engine: Json, lanes: Mapping[str, int]) -> Parameters:
    *outer, channels = nest["b_sizes"]
    return {
        "BLOCKS": nest["blocks"],
        "VECTORS": nest["outer"] * nest["groups"] * nest["inner"],
        "NF": _ceil(nest["rows"], nest["pe"]),
        "SF": nest["taps"] * _ceil(nest["channels"], nest["simd"]),
        "PE": nest["pe"],
        "SIMD": nest["simd"],
        "LOAD": math.prod(outer) * _ceil(channels, nest["b_lanes"]),
        "B_LANES": nest["b_lanes"],
    }


_UNITS: dict[str, tuple[str, Callable[[Json, Json, Mapping[str, int]], Parameters]]] = {
    "swg": ("swg", _swg),
    "mvu": ("mvu", _mvu),
    "vvu": ("vvu", _vvu),
    "reduce": ("reduce", _reduce),
    "map": ("map", _map),
    "norm": ("norm", _norm),
    "fork": ("fork_unit", _fork),
    "concat": ("concat", _concat),
    "slice": ("slice", _slice),
    "dwc": ("dwc", _dwc),
    "perm": ("perm", _perm),
    "repeat": ("repeat_unit", _repeat),
    "gather": ("gather", _gather),
    "load": ("fetch", _load),
    "const": ("fetch", _const),
    "matmul": ("matmul", _matmul),
}

SALTED = {"mvu", "vvu", "gather", "load", "const"}
"""Kinds with tables: each gets its own ``SALT``."""
