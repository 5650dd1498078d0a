"""Which SystemVerilog module an engine of ``stage.json`` is, and its parameters."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipec.backends.fpga.engines.base import Nest
from pipec.backends.fpga.engines.window import ring_of
from pipec.backends.fpga.stagejson import nest_of
from pipec.errors import BackendError

Json = Mapping[str, Any]
Parameters = dict[str, int | str]

BITS = 16
"""Bits of an element: integers that wrap around stand for every type of the stage; factors of
products of 8-bit integers are the lower halves."""
OPS = {"add": 1, "sub": 2, "mul": 3, "max": 4, "min": 5}
"""Two-operand steps that the map unit computes; others pass their first operand on."""
REDUCTIONS = {"sum": 0, "max": 1, "min": 2}


@dataclass(frozen=True)
class Unit:
    """A module and its parameters (numbers, or SystemVerilog text)."""

    module: str
    parameters: Parameters


@dataclass(frozen=True)
class _Kind:
    """How a kind of engine becomes a module.

    Attributes:
        module: Its name.
        same: Parameters that are called as what they are of the nest, in lower case.
        other: Parameters that follow from the nest and the engine's record.
        lanes: Stream whose elements per token are the parameter ``LANES``: ``inputs`` or
            ``outputs``, the first one; empty where the nest says it.
    """

    module: str
    same: str
    other: Mapping[str, Callable[[Any, Json], int | str]] = field(default_factory=dict)
    lanes: str = ""


def unit_of(engine: Json, lanes: Mapping[str, int]) -> Unit:
    """The module of an engine.

    Args:
        engine: Its record in ``stage.json``.
        lanes: Elements per token of each stream.

    Raises:
        BackendError: There is no module for its kind.
    """
    kind = str(engine["kind"])
    known = Nest.KINDS.get(kind)
    if kind not in _UNITS and known is not None and (own := round_nest(engine).rtl()):
        texts = {k: _vector(v) if isinstance(v, tuple) else v for k, v in own.items()}
        return Unit(kind, texts | _slots(engine) | _timing(engine))
    if kind not in _UNITS:
        raise BackendError(
            "no SystemVerilog for this kind of engine",
            where=str(engine["name"]),
            got=kind,
            want=", ".join(sorted(_UNITS)),
        )
    unit, nest = _UNITS[kind], nest_of(dict(engine))
    found: Parameters = {name: int(getattr(nest, name.lower())) for name in unit.same.split()}
    found |= {name: value(nest, engine) for name, value in unit.other.items()}
    found |= {"LANES": lanes[engine[unit.lanes][0]]} if unit.lanes else {}
    return Unit(unit.module, found | _slots(engine) | _timing(engine))


def round_nest(engine: Json) -> Nest:
    """The nest of an engine with its numbers rounded, as elements of the RTL are integers."""
    nest = nest_of(dict(engine))
    numbers = {f.name: getattr(nest, f.name) for f in dataclasses.fields(nest)}
    rounded = {k: float(round(v)) for k, v in numbers.items() if isinstance(v, float)}
    return dataclasses.replace(nest, **rounded)


def _timing(engine: Json) -> Parameters:
    return {"BITS": BITS, "II": engine["ii"], "DEPTH": engine["depth"]}


def _slots(engine: Json) -> Parameters:
    """Of a port that is shared: its round, and which of its slots are the engine's."""
    slots = engine.get("slots")
    if slots is None:
        return {}
    mask = sum(1 << offset for offset in slots["mine"])
    return {"SLOTS": slots["of"], "MINE": f"64'd{mask}"}


def _vector(values: Sequence[int]) -> str:
    """A packed parameter of 32-bit numbers, the first one lowest."""
    return "{" + ", ".join(f"32'd{v & 0xFFFFFFFF}" for v in reversed(values)) + "}"


def _find_stream_op(nest: Any, engine: Json) -> int:
    """The operation on two streams, if there is one."""
    found = [OPS.get(step.op, 0) for step in nest.steps if step.operand == "stream"]
    return found[0] if found else 0


def _strides(sizes: list[int]) -> list[int]:
    return [math.prod(sizes[k + 1 :]) for k in range(len(sizes))]


def _out_sizes(nest: Any) -> list[int]:
    return [nest.sizes[axis] for axis in nest.order]


_BYTES: Mapping[str, Callable[[Any, Json], int | str]] = {
    "BYTES": lambda n, e: int(e.get("numbers", {}).get("dtype", "").startswith("int8"))
}
_UNITS = {
    "swg": _Kind(
        "swg", "BATCH H W CF LANES KH KW SH SW DH DW PT PL OH OW GROUPS KP",
        {"PAD": lambda n, e: -(1 << (BITS - 1)) if n.pad_value == float("-inf") else 0,
         "LEAD": lambda n, e: 0 if n.is_line else ring_of(n).lead,
         "START": lambda n, e: 0 if n.is_line else ring_of(n).start,
         "SLOTS": lambda n, e: 1 if n.is_line else ring_of(n).slots},
    ),
    "mvu": _Kind(
        "mvu", "N GROUPS NF SF PE SIMD BLOCK STREAMED BIAS",
        {"ORDER": lambda n, e: 2 if n.block > 1 else int(n.order == "B"), **_BYTES},
    ),
    "vvu": _Kind("vvu", "N CF KP LANES BIAS", {"STEPS": lambda n, e: n.taps // n.kp, **_BYTES}),
    "reduce": _Kind("reduce", "N WINDOW CF KP LANES", {"OP": lambda n, e: REDUCTIONS[n.op]}),
    "map": _Kind(
        "map", "TOKENS LANES",
        {"NI": lambda n, e: len(e["inputs"]), "OP": _find_stream_op,
         "RELU": lambda n, e: int(any(step.op == "relu" for step in n.steps))},
    ),
    "norm": _Kind(
        "norm", "ROWS CF LANES PASSES",
        {"GAPS": lambda n, e: _vector([max(g, e["ii"]) for g in n.gaps or (1,) * n.passes])},
    ),
    "fork": _Kind("fork_unit", "TOKENS", {"NO": lambda n, e: n.outputs}, "inputs"),
    "concat": _Kind(
        "concat", "OUTER",
        {"NI": lambda n, e: len(e["inputs"]), "SIZES": lambda n, e: _vector(list(n.sizes))},
        "outputs",
    ),
    "slice": _Kind(
        "slice", "OUTER SIZE STOP INNER",
        {"FIRST": lambda n, e: n.start, "STRIDE": lambda n, e: n.step}, "outputs",
    ),
    "dwc": _Kind(
        "dwc", "ROWS_IN ROWS_OUT REPEAT",
        {"C_IN": lambda n, e: n.channels_in, "L_IN": lambda n, e: n.lanes_in,
         "C_OUT": lambda n, e: n.channels_out, "L_OUT": lambda n, e: n.lanes_out},
    ),
    "perm": _Kind(
        "perm", "BLOCKS ELEMENTS",
        {"RANK": lambda n, e: len(n.sizes),
         "OUT_SIZE": lambda n, e: _vector(_out_sizes(n)),
         "OUT_STRIDE": lambda n, e: _vector(_strides(_out_sizes(n))),
         "IN_STRIDE": lambda n, e: _vector([_strides(list(n.sizes))[axis] for axis in n.order]),
         "C_IN": lambda n, e: n.channels_in, "L_IN": lambda n, e: n.lanes_in,
         "C_OUT": lambda n, e: n.channels_out, "L_OUT": lambda n, e: n.lanes_out},
    ),
    "repeat": _Kind("repeat_unit", "OUTER INNER TIMES", lanes="outputs"),
    "gather": _Kind("gather", "ENTRIES CF LANES", {"N": lambda n, e: n.rows}),
    "load": _Kind("fetch", "WORDS REPEAT LANES"),
    "const": _Kind("fetch", "LANES", {"WORDS": lambda n, e: n.tokens}),
    "matmul": _Kind("matmul", "BLOCKS VECTORS NF SF PE SIMD LOAD B_LANES", _BYTES),
}  # fmt: skip

SALTED = {"mvu", "vvu", "gather", "load", "const"}
"""Kinds with tables: each gets its own ``SALT``."""
