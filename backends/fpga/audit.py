"""Whether an emitted stage is what its ``stage.json`` says, to the last character.

``stage.json`` says all that the kernel is made of, so both are made anew from it: the record, every
figure in it that follows from others, and the configurations, the kernel, and what stands around it
in ``mover/`` and ``link/``. Headers are the library's own.
"""

import dataclasses
import json
import re
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeVar, get_args

from numpy.typing import NDArray

from pipec.backends.fpga.design import (
    DdrPort,
    Engine,
    Floorplan,
    Memory,
    Narrowing,
    Port,
    Resources,
    StageDesign,
    Stream,
    Weight,
)
from pipec.backends.fpga.emit import mover, share
from pipec.backends.fpga.emit.headers import own_header
from pipec.backends.fpga.emit.source import port_names, stage_top_cpp, stage_top_h, types_h
from pipec.backends.fpga.nests import Step
from pipec.backends.fpga.routing import Nest
from pipec.backends.fpga.stagejson import SCHEMA, Json, read_record, stage_record
from pipec.backends.fpga.training import engines  # noqa: F401  (registers their run tables)
from pipec.errors import BackendError, PipecError

T = TypeVar("T", Engine, Weight, Stream, Port, DdrPort, StageDesign)
KINDS = {kind.__name__.lower(): kind for kind in get_args(Nest)}
"""Kind of engine to its nest."""
_DAMAGE = (
    ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError,
    ValueError,
)  # fmt: skip
"""What formulas raise on figures that no design has."""


def design_of(record: Json) -> StageDesign:
    """The design that a ``stage.json`` tells of; its tables have no values.

    Raises:
        BackendError: It has another version. What a damaged one raises is caught by `check`.
    """
    if record.get("schema") != SCHEMA:
        raise BackendError("stage.json has another version", got=record.get("schema"), want=SCHEMA)
    resources, regions = record["resources"], record["regions"]
    return _made(
        StageDesign,
        {**record, **record["cycles"]},
        name=record["stage"],
        engines=tuple(map(_engine, record["engines"])),
        streams={s["name"]: _stream(s) for s in record["fifos"]},
        inputs=tuple(map(_port, record["inputs"])),
        outputs=tuple(map(_port, record["outputs"])),
        ddr=tuple(map(_memory_port, record["ddr"])),
        resources=Resources(**resources["estimate"]),
        limits=Resources(**resources["limit"]),
        floorplan=Floorplan(
            {e["name"]: tuple(e["regions"]) for e in record["engines"]},
            tuple(Resources(**slr["estimate"]) for slr in regions["slr"]),
            tuple(Resources(**slr["limit"]) for slr in regions["slr"]),
            tuple(regions["wires"]),
            regions["wire_limit"],
        ),
    )


def _engine(record: Json) -> Engine:
    numbers, buffer, narrowing = record["numbers"], record["buffer"], record["numbers"]["narrowing"]
    return _made(
        Engine,
        {**record, **numbers},
        nest=nest_of(record),
        weights=tuple(map(_weight, record["weights"])),
        narrowing=None if narrowing is None else Narrowing(**narrowing),
        memory=Memory(buffer["memory"]),
        buffer_bits=buffer["bits"],
        resources=Resources(**record["resources"]),
    )


def _made(kind: type[T], record: Json, **known: Any) -> T:
    """An object of the keys of a record that are called as its fields, lists as tuples."""
    names = {f.name for f in dataclasses.fields(kind)} & record.keys() - known.keys()
    return kind(**{name: _tuples(record[name]) for name in names}, **known)


def _tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def nest_of(record: Json) -> Nest:
    """The nest of an engine in ``stage.json``."""
    found: Nest = KINDS[record["kind"]](**{k: _field(v) for k, v in record["nest"].items()})
    return found


def _field(value: Any) -> Any:
    """A field of a nest, as it was before it was written down."""
    if isinstance(value, list | tuple):
        return tuple(Step(**v) if isinstance(v, dict) else v for v in value)
    return float(value) if value in ("inf", "-inf") else value


def _weight(record: Json) -> Weight:
    def values() -> NDArray[Any]:
        raise BackendError("stage.json has no tables", where=record["role"])

    return _made(Weight, record, memory=Memory(record["memory"]), values=values)


def _stream(record: Json) -> Stream:
    memory = Memory(record["memory"]) if "memory" in record else None
    return _made(Stream, record, producer=record["from"], consumer=record["to"], memory=memory)


def _port(record: Json) -> Port:
    return _made(Port, record)


def _memory_port(record: Json) -> DdrPort:
    carries = record.get("carries")
    return _made(DdrPort, record, carries=None if carries is None else _port(carries))


def differences(stage: Path) -> Iterator[str]:
    """What is not as it was written, the first place of every file.

    Args:
        stage: An emitted directory, ``stage.json`` included.

    Raises:
        BackendError: A file cannot be read.
    """
    record = read_record(stage)
    design = design_of(record)
    made = json.loads(json.dumps(stage_record(design)))
    for key, want in made.items():
        if record.get(key) != want:
            yield f"stage.json: {key} is not what the rest of it gives"
    writers = {s: e.name for e in design.engines for s in e.outputs}
    readers = {s: e.name for e in design.engines for s in e.inputs}
    for stream in design.streams.values():
        ends = writers.get(stream.name), readers.get(stream.name)
        if ends != (stream.producer, stream.consumer):
            yield f"stage.json: {stream.name} is not between the engines that it says"
    for name, text in _code(stage, design).items():
        lines = zip_longest(_read(stage / name).splitlines(), text.splitlines())
        for number, (got, want) in enumerate(lines, 1):
            if got != want:
                yield f"{name}:{number}: {_said(got)}, want {_said(want)}"
                break


def _said(line: str | None) -> str:
    return "no line" if line is None else line.strip()


def _code(stage: Path, design: StageDesign) -> dict[str, str]:
    """File to what it must be."""
    found = {
        "src/types.h": types_h(design),
        "src/stage_top.h": stage_top_h(design),
        "src/stage_top.cpp": stage_top_cpp(design),
    }
    folders = (stage / name for name in ("src/engines", "mover", "link"))
    for path in sorted(p for folder in folders for p in folder.glob("*")):
        name = path.relative_to(stage).as_posix()
        if path.suffix == ".h":
            found[name] = _header(name)
        elif path.suffix == ".cpp":
            found[name] = _around(path, design)
    return found


def _header(name: str) -> str:
    try:
        return own_header(name.removeprefix("src/"))
    except FileNotFoundError:
        return "// this version has no such header"


def _around(path: Path, design: StageDesign) -> str:
    """The kernel of a file in ``mover/`` or ``link/``."""
    names = port_names(design)
    if path.parent.name == "mover":
        (kernel,) = mover.movers(design, [path.stem], [""])
        return mover.source(design, kernel) if path.stem in names else "// there is no such port"
    led = [name for name in names if re.search(rf"\b{name}\b", _read(path))]
    return share.source(design, share.shared(design, led, path.stem.removeprefix("link_")))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise BackendError("an emitted file cannot be read", where=path, got=error) from error


def check(stage: Path) -> None:
    """Refuse a stage that is not as it was written.

    Raises:
        BackendError: It is not; the first differences are listed.
    """
    try:
        found = list(differences(stage))
    except PipecError:
        raise
    except _DAMAGE as error:
        raise BackendError("stage.json is damaged", where=stage, got=repr(error)) from error
    if found:
        raise BackendError(
            f"{len(found)} files of an emitted stage are not as they were written",
            where=stage.name,
            got="".join(f"\n    {difference}" for difference in found[:20]),
            hint="emit the stage anew if another version wrote it",
        )
