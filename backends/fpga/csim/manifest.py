"""``tb/ports.json``: what the ``.bin`` files of a test bench hold."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from pipec.backends.fpga.design import Port, StageDesign, Stream
from pipec.backends.fpga.emit.cpp import identifier
from pipec.backends.fpga.emit.source import crosses, moving, port_names
from pipec.backends.fpga.training.nests import Accumulate, Fetch
from pipec.errors import BackendError

PORTS = "tb/ports.json"


@dataclass(frozen=True)
class Wire:
    """One value that a stage reads or writes, on a port or in memory.

    Attributes:
        file: Name of the data file.
        is_input: Whether the stage reads it.
        port: What is on it.
        stream: In which tokens.
        in_memory: Whether it lies in memory that kernels share: a ring of frames, or a sum.
    """

    file: str
    is_input: bool
    port: Port
    stream: Stream
    in_memory: bool = False


def wires_of(design: StageDesign) -> tuple[Wire, ...]:
    """What a stage reads and writes: ports, inputs first, then what moves through memory."""
    found = [
        Wire(f"{name}.bin", name.startswith("in_"), port, design.streams[port.stream])
        for name, port in port_names(design).items()
    ]
    for moved in moving(design):
        if not crosses(design, moved):
            continue
        nest, port = design.engine(moved.engine).nest, moved.carries
        assert port is not None
        stream = design.streams[port.stream]
        if isinstance(nest, Accumulate):
            stream = dataclasses.replace(stream, dtype="float32")
        file = f"{identifier(moved.name)}.bin"
        found.append(Wire(file, isinstance(nest, Fetch), port, stream, in_memory=True))
    return tuple(found)


def ports_json(design: StageDesign) -> str:
    """The text of ``tb/ports.json``: one entry per wire."""
    entries = [
        {
            "file": wire.file,
            "direction": "in" if wire.is_input else "out",
            **({"in_memory": True} if wire.in_memory else {}),
            **{k: getattr(wire.port, k) for k in ("value", "node", "shape", "order", "dtype")},
            "stream": wire.stream.name,
            **{k: getattr(wire.stream, k) for k in ("rows", "channels", "lanes")},
            "element": wire.stream.dtype,
        }
        for wire in wires_of(design)
    ]
    return json.dumps(entries, indent=1) + "\n"


def read_wires(stage: Path) -> tuple[Wire, ...]:
    """The ports of an emitted stage.

    Raises:
        BackendError: The file is missing or damaged.
    """
    path = stage / PORTS
    try:
        return tuple(_wire(entry) for entry in json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise BackendError("the stage's ports cannot be read", where=path, got=error) from error


def _wire(entry: dict[str, object]) -> Wire:
    shape, order = (_integers(entry[key]) for key in ("shape", "order"))
    rows, channels, lanes = _integers([entry[key] for key in ("rows", "channels", "lanes")])
    stream = Stream(str(entry["stream"]), rows, channels, lanes, str(entry["element"]))
    value, node, dtype = (str(entry[key]) for key in ("value", "node", "dtype"))
    port = Port(value, node, stream.name, shape, order, dtype)
    file, reads = Path(str(entry["file"])).name, entry["direction"] == "in"
    return Wire(file, reads, port, stream, in_memory=bool(entry.get("in_memory", False)))


def _integers(values: object) -> tuple[int, ...]:
    if not isinstance(values, list) or not all(isinstance(v, int) for v in values):
        raise TypeError(f"want a list of integers, got {values!r}")
    return tuple(values)
