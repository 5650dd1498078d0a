"""``stage.json``: a design as plain data, versioned, for people, scripts and RTL; and back."""

import dataclasses
import json
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from msgspec import convert
from numpy.typing import NDArray

from pipec.backends.fpga.design import DdrPort, Floorplan, Port, StageDesign, Stream
from pipec.backends.fpga.emit.source import port_names
from pipec.backends.fpga.engines.base import Engine, Nest, busy_cycles, run_table
from pipec.backends.fpga.engines.parts import Resources, Weight
from pipec.backends.fpga.engines.swg import Swg
from pipec.backends.fpga.fifo import busiest
from pipec.backends.fpga.runs import Run, Runs
from pipec.errors import BackendError
from pipec.files import read_data

T = TypeVar("T", Engine, Weight, Stream, Floorplan, StageDesign)
_TYPES: dict[type, dict[str, Any]] = {
    kind: get_type_hints(kind) for kind in (Engine, Weight, Stream, Floorplan, StageDesign)
}
SCHEMA = 1
"""Version of the format; a reader refuses a larger one."""

Json = dict[str, Any]

DAMAGE = (
    ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError,
    ValueError,
)  # fmt: skip
"""What formulas raise on figures that no design has."""


def stage_record(design: StageDesign) -> Json:
    """The whole design as JSON data: stable keys, no machine-dependent values."""
    cycles, engine = busiest(design)
    return {
        "schema": SCHEMA,
        "stage": design.name,
        **_fields(design, "device part clock_mhz precision"),
        "cycles": {
            **_fields(design, "interval latency simulated"),
            "bottleneck": {"engine": engine, "cycles": cycles},
        },
        "resources": {"estimate": _rounded(design.resources), "limit": _rounded(design.limits)},
        "regions": _regions(design.floorplan),
        "inputs": [_port(p, design) for p in design.inputs],
        "outputs": [_port(p, design) for p in design.outputs],
        "ports": {name: port.stream for name, port in port_names(design).items()},
        "engines": [
            {**_engine(e), "regions": list(design.floorplan.regions.get(e.name, ()))}
            for e in design.engines
        ],
        "fifos": [_fifo(s) for s in design.streams.values()],
        "ddr": [_ddr(p) for p in design.ddr],
    }


def _fields(of: object, names: str) -> Json:
    return {name: getattr(of, name) for name in names.split()}


def _rounded(resources: Resources) -> Json:
    return {k: round(v, 1) for k, v in dataclasses.asdict(resources).items()}


def _regions(plan: Floorplan) -> Json:
    """The super logic regions, if the chip has several: what is used of each, what crosses."""
    sides = [
        [{k: _rounded(each)[k] for k in ("dsp", "lut", "bram36", "uram")} for each in side]
        for side in (plan.used, plan.limits)
    ]
    slr = [{"estimate": used, "limit": limit} for used, limit in zip(*sides, strict=True)]
    return {"slr": slr, **_fields(plan, "wires wire_limit")}


def _port(port: Port, design: StageDesign) -> Json:
    found = dataclasses.asdict(port)
    if port.stream:
        found["bytes_per_frame"] = design.streams[port.stream].nbytes
    return found


def _fifo(stream: Stream) -> Json:
    return {
        "name": stream.name,
        "from": stream.producer,
        "to": stream.consumer,
        **_fields(stream, "rows channels lanes dtype"),
        "width_bits": stream.token_bits,
        **_fields(stream, "tokens depth initial"),
        **({} if stream.memory is None else {"memory": stream.memory.value}),
    }


def _ddr(port: DdrPort) -> Json:
    found = dataclasses.asdict(port)
    found["bytes_per_second"] = round(port.bytes_per_second)
    return {k: v for k, v in found.items() if v or k not in ("carries", "group")}


def _engine(engine: Engine) -> Json:
    nest = {k: _plain(v) for k, v in dataclasses.asdict(engine.nest).items()}
    return {
        **_fields(engine, "name kind node origin"),
        "nest": nest,
        **_fields(engine, "inputs outputs"),
        "numbers": {
            **_fields(engine, "dtype second result"),
            "narrowing": engine.narrowing and dataclasses.asdict(engine.narrowing),
        },
        **_fields(engine, "ii depth"),
        "busy_cycles": busy_cycles(engine),
        "runs": firing_rule(engine),
        "dsp": round(engine.resources.dsp, 1),
        "resources": _rounded(engine.resources),
        "buffer": {"bits": engine.buffer_bits, "memory": engine.memory.value},
        "weights": [_fields(w, "role shape dtype memory bits sources") for w in engine.weights],
    }


def _plain(value: object) -> object:
    """A nest's field as JSON: infinities by name."""
    if value in (float("inf"), float("-inf")):
        return str(value)
    return value


def firing_rule(engine: Engine) -> object:
    """The run table as nested lists; of a window generator its rule, whose rows repeat.

    A run is ``[count, delta, reads, writes]``, a loop ``{"times": n, "body": [...]}``.
    """
    if isinstance(engine.nest, Swg):
        return "swg"
    return _table(run_table(engine))


def _table(table: Runs) -> list[object]:
    return [
        [item.count, item.delta, item.reads, item.writes]
        if isinstance(item, Run)
        else {"times": item.times, "body": _table(item.body)}
        for item in table
    ]


def write_record(record: Json, stage: Path) -> None:
    """Write ``stage.json``."""
    (stage / "stage.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def read_record(stage: Path) -> Json:
    """``stage.json`` of an emitted stage.

    Raises:
        BackendError: It cannot be read.
    """
    path = stage / "stage.json"
    try:
        record: Json = json.loads(read_data(path))
    except (OSError, ValueError, RecursionError) as error:
        raise BackendError("stage.json cannot be read", where=path, got=error) from error
    return record


def design_of(record: Json) -> StageDesign:
    """The design that a ``stage.json`` tells of; its tables have no values.

    Raises:
        BackendError: It has another version, or is damaged.
    """
    if record.get("schema") != SCHEMA:
        raise BackendError("stage.json has another version", got=record.get("schema"), want=SCHEMA)
    try:
        return _design(record)
    except DAMAGE as error:
        raise BackendError("stage.json is damaged", got=repr(error)) from error


def read_design(stage: Path) -> StageDesign:
    """The design of an emitted stage; its tables have no values.

    Raises:
        BackendError: Its ``stage.json`` cannot be read, or is damaged.
    """
    return design_of(read_record(stage))


def _design(record: Json) -> StageDesign:
    resources, regions = record["resources"], record["regions"]
    return _made(
        StageDesign,
        {**record, **record["cycles"]},
        name=record["stage"],
        engines=tuple(map(_read_engine, record["engines"])),
        streams={s["name"]: _read_stream(s) for s in record["fifos"]},
        resources=convert(resources["estimate"], Resources),
        limits=convert(resources["limit"], Resources),
        floorplan=_made(
            Floorplan,
            {
                **regions,
                "regions": {e["name"]: e["regions"] for e in record["engines"]},
                "used": [slr["estimate"] for slr in regions["slr"]],
                "limits": [slr["limit"] for slr in regions["slr"]],
            },
        ),
    )


def _read_engine(record: Json) -> Engine:
    buffer = record["buffer"]
    return _made(
        Engine,
        {**record, **record["numbers"], "memory": buffer["memory"], "buffer_bits": buffer["bits"]},
        nest=nest_of(record),
        weights=tuple(map(_read_weight, record["weights"])),
    )


def _made(kind: type[T], record: Json, **known: Any) -> T:
    """An object of the keys of a record that are called as its fields, each of the field's type."""
    types = _TYPES[kind]
    names = types.keys() & record.keys() - known.keys()
    return kind(**{name: convert(record[name], types[name]) for name in names}, **known)


def nest_of(record: Json) -> Nest:
    """The nest of an engine in ``stage.json``."""
    values = record["nest"].items()
    given = {k: float(v) if v in ("inf", "-inf") else v for k, v in values}
    found: Nest = convert(given, Nest.KINDS[record["kind"]])
    return found


def _read_weight(record: Json) -> Weight:
    def values() -> NDArray[Any]:
        raise BackendError("stage.json has no tables", where=record["role"])

    return _made(Weight, record, values=values)


def _read_stream(record: Json) -> Stream:
    return _made(Stream, record, producer=record["from"], consumer=record["to"])
