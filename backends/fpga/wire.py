"""Values of a stage in files, and tensors as they travel on a stream: axis order, rows, tokens."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipec.backends.fpga.cpp import cpp_type, identifier
from pipec.backends.fpga.design import Port, StageDesign, Stream
from pipec.backends.fpga.numbers import decode, encode, file_type
from pipec.backends.fpga.tables import pointers
from pipec.errors import BackendError

_LONGEST = 80
"""Characters of a port's name: files of data are called by it."""


@dataclass(frozen=True)
class Wire:
    """One value that a stage reads or writes, on a port or in memory.

    Attributes:
        name: Name of its C++ argument.
        is_input: Whether the stage reads it.
        port: What is on it.
        stream: In which tokens.
        in_memory: Whether it lies in memory that kernels share: a ring of frames, or a sum.
    """

    name: str
    is_input: bool
    port: Port
    stream: Stream
    in_memory: bool = False

    @property
    def file(self) -> str:
        """Name of the data file."""
        return f"{self.name}.bin"

    @property
    def kind(self) -> str:
        """Element type and lanes, as template arguments."""
        return stream_type(self.stream)

    def read(self, folder: Path) -> NDArray[Any]:
        """The elements in its data file, of any number of frames."""
        return np.fromfile(folder / self.file, dtype=file_type(self.stream.dtype))

    def tokens(self, tensor: Tensor) -> NDArray[np.generic]:
        """The tokens of one frame of the value, [rows, tokens per row * lanes].

        Raises:
            BackendError: The tensor has another shape than the port.
        """
        port, stream = self.port, self.stream
        if tuple(tensor.shape) != port.shape:
            raise BackendError(
                "a value has another shape than the stage was built for",
                where=port.value,
                got=tuple(tensor.shape),
                want=port.shape,
            )
        rows = tensor.detach().permute(port.order).reshape(stream.rows, stream.channels)
        padding = stream.tokens_per_row * stream.lanes - stream.channels
        known = rows.float() if rows.dtype == torch.bfloat16 else rows  # which numpy lacks
        found = np.pad(known.cpu().numpy(), ((0, 0), (0, padding)))
        return np.ascontiguousarray(encode(found, stream.dtype))

    def tensor(self, tokens: NDArray[np.generic]) -> Tensor:
        """The value that one frame of tokens in stream order carries, in the dtype of the model.

        Raises:
            BackendError: These are more or fewer than a frame has.
        """
        port, stream = self.port, self.stream
        values = decode(tokens, stream.dtype)
        if values.size != stream.tokens * stream.lanes:
            raise BackendError(
                "a stream has another length than its port says",
                where=port.value,
                got=f"{values.size} elements",
                want=stream.tokens * stream.lanes,
            )
        rows = values.reshape(stream.rows, stream.tokens_per_row * stream.lanes)
        dense = torch.from_numpy(np.ascontiguousarray(rows[:, : stream.channels]))
        on_wire = dense.reshape([port.shape[axis] for axis in port.order])
        back = [port.order.index(axis) for axis in range(len(port.shape))]
        dtype = getattr(torch, port.dtype)
        assert isinstance(dtype, torch.dtype)
        return on_wire.permute(back).contiguous().to(dtype)


def stream_type(stream: Stream) -> str:
    """Element type and lanes of a stream as template arguments."""
    return f"{cpp_type(stream.dtype)}, {stream.lanes}"


def ports_of(design: StageDesign) -> dict[str, Wire]:
    """Every stage port by its C++ name, inputs first.

    An input that nothing reads has no stream and no port.
    """
    found: dict[str, Wire] = {}
    taken = {identifier(name) for name in design.streams}
    for prefix, ports in (("in", design.inputs), ("out", design.outputs)):
        for k, port in enumerate(p for p in ports if p.stream):
            name = identifier(f"{prefix}_{port.value[:_LONGEST]}")
            name = f"{name}_{k}" if name in taken | set(found) else name
            found[name] = Wire(name, prefix == "in", port, design.streams[port.stream])
    return found


def wires_of(design: StageDesign) -> tuple[Wire, ...]:
    """The wires of a stage: its ports, inputs first, then values that move through memory."""
    found = [*ports_of(design).values()]
    for p in pointers(design):
        if p.port is None or p.port.carries is None or not p.crosses:
            continue
        stream = design.streams[p.port.carries.stream]
        if p.mover is not None and p.mover.stored:
            stream = dataclasses.replace(stream, dtype=p.mover.stored)
        found.append(Wire(p.name, not p.writes, p.port.carries, stream, in_memory=True))
    return tuple(found)
