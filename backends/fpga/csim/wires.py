"""What the ``.bin`` files of a test bench hold."""

import dataclasses
from dataclasses import dataclass

from pipec.backends.fpga.cpp import identifier
from pipec.backends.fpga.design import Port, StageDesign, Stream
from pipec.backends.fpga.emit.source import crosses, moving, port_names
from pipec.backends.fpga.engines.mover import Accumulate, Fetch


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
