"""``stage.json``: a design as plain data, versioned, for people, scripts and RTL; and back."""

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from msgspec import convert
from numpy.typing import NDArray

from pipec.backends.fpga.design import DdrPort, StageDesign, Stream
from pipec.backends.fpga.engines.base import Engine, Nest, busy_cycles, run_table
from pipec.backends.fpga.engines.parts import Resources, Weight
from pipec.backends.fpga.engines.swg import Swg
from pipec.backends.fpga.fifo import busiest
from pipec.backends.fpga.runs import Run, Runs
from pipec.backends.fpga.wire import ports_of
from pipec.errors import BackendError
from pipec.files import read_data

T = TypeVar("T", Engine, Weight, Stream, StageDesign)
SCHEMA = 2
"""Version of the format; a reader refuses every other one."""

Json = dict[str, Any]

DAMAGE = (
    ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError,
    ValueError,
)  # fmt: skip
"""Errors that formulas raise on figures that no design has."""

_LAYOUT: dict[type, str] = {
    StageDesign: """
        stage=name device part clock_mhz precision
        cycles.interval cycles.latency cycles.simulated cycles.bottleneck
        resources.estimate=resources resources.limit=limits
        inputs outputs ports engines fifos ddr""",
    Engine: """
        name kind node origin nest inputs outputs
        numbers.dtype numbers.second numbers.result numbers.narrowing
        ii depth busy_cycles runs dsp resources buffer.bits=buffer_bits buffer.memory weights""",
    Weight: "role shape dtype memory bits sources",
    Stream: """
        name from=producer to=consumer rows channels lanes dtype width_bits=token_bits tokens
        depth initial memory?""",
    DdrPort: """
        name engine word_bits bytes_per_frame bytes_per_second bank slots period carries? group?""",
}
"""Where everything is written: ``path=attribute``, or just the path if it ends as the attribute is
called; ``?`` where it is left out if it is empty."""

_TYPES: dict[type, dict[str, Any]] = {kind: get_type_hints(kind) for kind in _LAYOUT}


def _words(kind: type) -> Iterator[tuple[list[str], str, bool]]:
    """Path, attribute, and whether it may be missing."""
    for word in _LAYOUT[kind].split():
        path, _, attribute = word.removesuffix("?").partition("=")
        yield path.split("."), attribute or path.rpartition(".")[2], word.endswith("?")


def stage_record(design: StageDesign) -> Json:
    """The whole design as JSON data: stable keys, no machine-dependent values."""
    found = {"schema": SCHEMA, **_record(design)}
    for port in (*found["inputs"], *found["outputs"]):
        if port["stream"]:
            port["bytes_per_frame"] = design.streams[port["stream"]].nbytes
    return found


def _record(of: object) -> Json:
    kind, found = type(of), Json()
    for (*outer, last), attribute, optional in _words(kind):
        inside = found
        for key in outer:
            inside = inside.setdefault(key, {})
        write = _WRITERS.get((kind, attribute))
        value = getattr(of, attribute) if write is None else write(of)
        if value or not optional:
            inside[last] = _plain(value)
    return found


def _plain(value: object) -> object:
    """Anything as JSON: infinities by name."""
    if type(value) in _LAYOUT:
        return _record(value)
    if isinstance(value, Resources):
        return {k: round(v, 1) for k, v in dataclasses.asdict(value).items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return str(value) if value in (float("inf"), float("-inf")) else value


def _table(table: Runs) -> list[object]:
    """As nested lists: a run ``[count, delta, reads, writes]``, a loop its times and body."""
    return [
        [item.count, item.delta, item.reads, item.writes]
        if isinstance(item, Run)
        else {"times": item.times, "body": _table(item.body)}
        for item in table
    ]


_WRITERS: dict[tuple[type, str], Callable[[Any], object]] = {
    (StageDesign, "bottleneck"): lambda design: dict(
        zip(("engine", "cycles"), reversed(busiest(design)), strict=True)
    ),
    (StageDesign, "ports"): lambda d: {n: p.port.stream for n, p in ports_of(d).items()},
    (StageDesign, "fifos"): lambda d: list(d.streams.values()),
    (Engine, "busy_cycles"): busy_cycles,
    (Engine, "runs"): lambda e: "swg" if isinstance(e.nest, Swg) else _table(run_table(e)),
    (Engine, "dsp"): lambda engine: round(engine.resources.dsp, 1),
    (DdrPort, "bytes_per_second"): lambda port: round(port.bytes_per_second),
}
"""Entries that are no attribute, or are written otherwise."""


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
    """The design that a ``stage.json`` describes; its tables have no values.

    Raises:
        BackendError: It has another version, or is damaged.
    """
    if (got := record.get("schema")) != SCHEMA:
        raise BackendError("stage.json has another version", got=got, want=SCHEMA, hint="recompile")
    try:
        resources = record["resources"]
        return _make(
            StageDesign,
            record,
            engines=tuple(
                _make(Engine, e, nest=nest_of(e), weights=tuple(map(_read_weight, e["weights"])))
                for e in record["engines"]
            ),
            streams={s["name"]: _make(Stream, s) for s in record["fifos"]},
            resources=convert(resources["estimate"], Resources),
            limits=convert(resources["limit"], Resources),
        )
    except DAMAGE as error:
        raise BackendError("stage.json is damaged", got=repr(error)) from error


def read_design(stage: Path) -> StageDesign:
    """The design of an emitted stage; its tables have no values.

    Raises:
        BackendError: Its ``stage.json`` cannot be read, or is damaged.
    """
    return design_of(read_record(stage))


def _make(kind: type[T], record: Json, **known: Any) -> T:
    """An object of what its layout reads in a record, each of its attribute's type."""
    types, found = _TYPES[kind], dict(known)
    for path, attribute, optional in _words(kind):
        if attribute not in types or attribute in known:
            continue
        value: Any = record
        for key in path:
            value = value.get(key) if optional else value[key]
        found[attribute] = convert(value, types[attribute])
    return kind(**found)


def nest_of(record: Json) -> Nest:
    """The nest of an engine in ``stage.json``."""
    values = record["nest"].items()
    fields = {k: float(v) if v in ("inf", "-inf") else v for k, v in values}
    return convert(fields, Nest.KINDS[record["kind"]])


def _read_weight(record: Json) -> Weight:
    def values() -> NDArray[Any]:
        raise BackendError("stage.json has no tables", where=record["role"])

    return _make(Weight, record, values=values)
