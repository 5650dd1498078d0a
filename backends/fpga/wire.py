"""Values of a stage in files, and tensors as they travel on a stream: axis order, rows, tokens."""

import dataclasses
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from pipec.backends.fpga.design import Port, StageDesign, Stream
from pipec.backends.fpga.emit.source import port_names
from pipec.backends.fpga.emit.tables import pointers
from pipec.backends.fpga.engines.mover import Accumulate
from pipec.backends.fpga.numbers import decoded, encoded
from pipec.errors import BackendError


def to_tokens(tensor: torch.Tensor, port: Port, stream: Stream) -> NDArray[np.generic]:
    """The tokens of one frame.

    Args:
        tensor: The value, of the port's shape.
        port: The stage input or output.
        stream: Its stream.

    Returns:
        Array of the stream's element type, shape [rows, tokens per row * lanes].

    Raises:
        BackendError: The tensor has another shape.
    """
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
    return np.ascontiguousarray(encoded(found, stream.dtype))


def from_tokens(tokens: NDArray[np.generic], port: Port, stream: Stream) -> torch.Tensor:
    """The value that one frame of tokens carries, in the dtype of the model.

    Args:
        tokens: The frame's elements in stream order.
        port: The stage input or output.
        stream: Its stream.
    """
    values = decoded(tokens, stream.dtype)
    want = stream.rows * stream.tokens_per_row * stream.lanes
    if values.size != want:
        raise BackendError(
            "a stream has another length than its port says",
            where=port.value,
            got=f"{values.size} elements",
            want=want,
        )
    rows = values.reshape(stream.rows, stream.tokens_per_row * stream.lanes)
    dense = torch.from_numpy(np.ascontiguousarray(rows[:, : stream.channels]))
    on_wire = dense.reshape([port.shape[axis] for axis in port.order])
    back = [port.order.index(axis) for axis in range(len(port.shape))]
    dtype = getattr(torch, port.dtype)
    assert isinstance(dtype, torch.dtype)
    return on_wire.permute(back).contiguous().to(dtype)


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
    for p in pointers(design):
        if p.port is None or p.port.carries is None or not p.crosses:
            continue
        stream = design.streams[p.port.carries.stream]
        if isinstance(p.mover, Accumulate):
            stream = dataclasses.replace(stream, dtype="float32")
        found.append(Wire(f"{p.name}.bin", not p.writes, p.port.carries, stream, in_memory=True))
    return tuple(found)
