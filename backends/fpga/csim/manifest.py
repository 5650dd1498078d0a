"""``tb/ports.json``: what the ``.bin`` files of a test bench hold."""

import json
from dataclasses import dataclass
from pathlib import Path

from pipec.backends.fpga.design import Port, StageDesign, Stream
from pipec.backends.fpga.emit.source import port_names
from pipec.errors import BackendError

PORTS = "tb/ports.json"


@dataclass(frozen=True)
class Wire:
    """One stage port with its stream.

    Attributes:
        file: Name of the data file.
        is_input: Whether the stage reads it.
        port: What is on it.
        stream: In which tokens.
    """

    file: str
    is_input: bool
    port: Port
    stream: Stream


def ports_json(design: StageDesign) -> str:
    """The text of ``tb/ports.json``: one entry per port, inputs first."""
    entries = []
    for name, port in port_names(design).items():
        stream = design.streams[port.stream]
        entries.append(
            {
                "file": f"{name}.bin",
                "direction": "in" if name.startswith("in_") else "out",
                "value": port.value,
                "node": port.node,
                "shape": list(port.shape),
                "order": list(port.order),
                "dtype": port.dtype,
                "stream": stream.name,
                "rows": stream.rows,
                "channels": stream.channels,
                "lanes": stream.lanes,
                "element": stream.dtype,
            }
        )
    return json.dumps(entries, indent=1) + "\n"


def read_wires(stage: Path) -> tuple[Wire, ...]:
    """The ports of an emitted stage.

    Raises:
        BackendError: The file is missing or damaged.
    """
    path = stage / PORTS
    try:
        return tuple(_wire(entry) for entry in json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BackendError("the stage's ports cannot be read", where=path, got=error) from error


def _wire(entry: dict[str, object]) -> Wire:
    shape, order = (_integers(entry[key]) for key in ("shape", "order"))
    rows, channels, lanes = _integers([entry[key] for key in ("rows", "channels", "lanes")])
    stream = Stream(str(entry["stream"]), rows, channels, lanes, str(entry["element"]))
    value, node, dtype = (str(entry[key]) for key in ("value", "node", "dtype"))
    port = Port(value, node, stream.name, shape, order, dtype)
    return Wire(Path(str(entry["file"])).name, entry["direction"] == "in", port, stream)


def _integers(values: object) -> tuple[int, ...]:
    if not isinstance(values, list) or not all(isinstance(v, int) for v in values):
        raise TypeError(f"want a list of integers, got {values!r}")
    return tuple(values)
