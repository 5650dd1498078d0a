"""A tensor's type as short text: ``float32[4,64]``, and back to a tensor without data."""

import hashlib
import re
from collections.abc import Iterable, Mapping
from contextlib import nullcontext

import torch

from pipec.errors import GraphError
from pipec.graph.torch_private import FakeTensor, FakeTensorMode, fake_like

DTYPES: dict[str, torch.dtype] = {
    str(d).removeprefix("torch."): d for d in vars(torch).values() if isinstance(d, torch.dtype)
}
"""Name to dtype of all dtypes of torch."""

_TYPE = re.compile(r"(\w+)\[([\d,]*)\](?:\{([\d,]*)\})?(?:@([a-z]+(?::\d+)?))?", re.ASCII)
LARGEST_DIMENSION = 2**48
"""Elements and strides beyond this are a damaged file, not a model."""


def type_text(t: torch.Tensor) -> str:
    """Dtype and shape; strides where ``t`` is not contiguous, the device where it is not the CPU.

    Example:
        >>> type_text(torch.empty(4, 64))
        'float32[4,64]'
        >>> type_text(torch.empty(4, 64, device="meta").t())
        'float32[64,4]{1,64}@meta'
    """
    text = _plain_text(t)
    if t.stride() != dense_strides(tuple(t.shape)):
        text += f"{{{','.join(map(str, t.stride()))}}}"
    return text if t.device.type == "cpu" else f"{text}@{t.device}"


def dtype_text(dtype: torch.dtype) -> str:
    """Name of a dtype without ``torch.``: ``float32``."""
    return str(dtype).removeprefix("torch.")


def has_data(tensor: torch.Tensor) -> bool:
    """Whether ``tensor`` has values, and not only a type (``meta`` and fake tensors)."""
    return tensor.device.type != "meta" and not isinstance(tensor, FakeTensor)


def weights_digest(weights: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 over names, types and bytes of all weights, in hexadecimal.

    Weights without data count by name and type only.

    Example:
        >>> a, b = torch.zeros(2), torch.zeros(2, device="meta")
        >>> weights_digest({"w": a}) == weights_digest({"w": b})
        False
    """
    digest = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name].detach()
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        if has_data(tensor) and tensor.numel():
            flat = tensor.cpu().contiguous().reshape(-1).view(torch.uint8)
            digest.update(flat.numpy().data)
    return digest.hexdigest()


def dense_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides, in elements, of a contiguous tensor as torch makes it.

    Example:
        >>> dense_strides((2, 3, 4))
        (12, 4, 1)
    """
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(int(size), 1)
    return tuple(reversed(strides))


def empty_of_type(text: str, mode: FakeTensorMode | None = None) -> torch.Tensor:
    """A tensor of the type ``text``: fake, or uninitialised where no mode is given.

    Raises:
        GraphError: The text is not a type.
    """
    match = _TYPE.fullmatch(text)
    dtype = DTYPES.get(match.group(1)) if match else None
    if match is None or dtype is None:
        raise GraphError("not a tensor type", got=text, want="such as float32[4,64]")
    shape = _numbers(match.group(2))
    strides = dense_strides(shape) if match.group(3) is None else _numbers(match.group(3))
    if len(strides) != len(shape) or max((*shape, *strides), default=0) > LARGEST_DIMENSION:
        raise GraphError("not a tensor type", got=text, want="as many strides as dimensions")
    try:
        device = torch.device(match.group(4) or "cpu")
        if mode is None or device.type == "meta":
            with mode or nullcontext():
                return torch.empty_strided(shape, strides, dtype=dtype, device=device)
        meta = torch.empty_strided(shape, strides, dtype=dtype, device="meta")
        return fake_like(meta, device, mode)
    except RuntimeError as error:
        raise GraphError("not a tensor type", got=text, want=error) from error


def types_text(tensors: Iterable[torch.Tensor]) -> str:
    """Dtypes and shapes of some tensors, without strides and devices.

    Example:
        >>> types_text([torch.zeros(4, 8), torch.zeros((), dtype=torch.int64)])
        'float32[4,8];int64[]'
    """
    return ";".join(_plain_text(t) for t in tensors)


def metas_of_types(text: str) -> list[torch.Tensor]:
    """Tensors on ``meta`` of the types that `types_text` wrote.

    Raises:
        GraphError: The text is not of that form.
    """
    return [empty_of_type(f"{part}@meta") for part in text.split(";") if part]


def _plain_text(t: torch.Tensor) -> str:
    return f"{dtype_text(t.dtype)}[{','.join(map(str, t.shape))}]"


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(","))) if text else ()
