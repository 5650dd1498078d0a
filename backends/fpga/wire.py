"""Tensors as they travel on a stream, and back: axis order, rows, padded tokens."""

import numpy as np
import torch
from numpy.typing import NDArray

from pipec.backends.fpga.design import Port, Stream
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
    found = np.pad(rows.cpu().numpy(), ((0, 0), (0, padding)))
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
