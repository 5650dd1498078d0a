"""Tensors on their way: types with strides, and many tensors in one buffer."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, zip_longest
from math import prod

import torch

from pipec.graph.torch_private import is_held_once


@dataclass(frozen=True)
class TensorType:
    """What is known of a tensor before it exists.

    Attributes:
        shape: Sizes of its dimensions.
        dtype: As torch writes it without ``torch.``.
        stride: In elements; None for contiguous.
    """

    shape: tuple[int, ...]
    dtype: str
    stride: tuple[int, ...] | None = None

    @classmethod
    def of(cls, t: torch.Tensor) -> "TensorType":
        """The type of a tensor."""
        return cls(tuple(t.shape), str(t.dtype).removeprefix("torch."), tuple(t.stride()))

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype."""
        found: torch.dtype = getattr(torch, self.dtype)
        return found

    def empty(self, device: torch.device | str = "cpu") -> torch.Tensor:
        """A tensor of this type with unspecified contents."""
        if self.stride is None:
            return torch.empty(self.shape, dtype=self.torch_dtype, device=device)
        return torch.empty_strided(self.shape, self.stride, dtype=self.torch_dtype, device=device)

    @property
    def strides(self) -> tuple[int, ...]:
        """In elements, also where it is contiguous."""
        return self.stride or tuple(torch.empty(self.shape, device="meta").stride())

    def is_of(self, t: torch.Tensor) -> bool:
        """Whether a tensor is of this type; the stride of a dimension of size 1 is nobody's."""
        alike = tuple(t.shape) == self.shape and t.dtype == self.torch_dtype
        strides = zip(self.shape, t.stride(), self.strides, strict=True) if alike else ()
        return alike and all(a == b or n == 1 for n, a, b in strides)

    @property
    def kept(self) -> tuple[int, ...]:
        """The shape without what stride 0 repeats."""
        strides = zip(self.shape, self.stride or self.shape, strict=True)
        return tuple(min(n, 1) if s == 0 else n for n, s in strides)

    @property
    def nbytes(self) -> int:
        """Bytes in a packed buffer."""
        return prod(self.kept) * self.torch_dtype.itemsize


_ALIGNMENT = 16


def _offsets(types: Iterable[TensorType]) -> list[int]:
    sizes = (-(-t.nbytes // _ALIGNMENT) * _ALIGNMENT for t in types)
    return [*accumulate(sizes, initial=0)]


def buffer_bytes(types: Sequence[TensorType]) -> int:
    """Size of the buffer that `pack` makes."""
    return _offsets(types)[-1]


def pack(
    tensors: Sequence[torch.Tensor],
    types: Sequence[TensorType],
    buffer: torch.Tensor | None = None,
    *,
    waits: bool = True,
) -> torch.Tensor:
    """All tensors in one buffer of bytes, each without repetition, as it lies in memory.

    Args:
        tensors: What to copy.
        types: Types of the tensors.
        buffer: Where to; `buffer_bytes` long. One on the device of the tensors if absent.
        waits: Whether copies from a GPU to host memory have ended on return.
    """
    offsets = _offsets(types)
    if buffer is None:
        device = tensors[0].device if tensors else None
        buffer = torch.empty(offsets[-1], dtype=torch.uint8, device=device)
    for t, kind, begin in zip(tensors, types, offsets, strict=False):
        for dim, n in enumerate(kind.kept):
            t = t.narrow(dim, 0, n) if n != t.shape[dim] else t  # noqa: PLW2901
        _part(buffer, kind, begin).copy_(t, non_blocking=not waits)
    return buffer


def unpack(buffer: torch.Tensor, types: Sequence[TensorType]) -> list[torch.Tensor]:
    """What `pack` was given, bit for bit, with the strides that the types say.

    Backward kernels were chosen for these strides; contiguous stand-ins would not do. What lies
    densely in memory, in any order of its dimensions, is a view of the buffer.
    """
    return restore(parts(buffer, types), types)


def parts(buffer: torch.Tensor, types: Sequence[TensorType]) -> list[torch.Tensor]:
    """The place of each tensor in a buffer of `pack`, without repetition."""
    offsets = zip(types, _offsets(types), strict=False)
    return [_part(buffer, kind, begin) for kind, begin in offsets]


def restore(places: Sequence[torch.Tensor], types: Sequence[TensorType]) -> list[torch.Tensor]:
    """Tensors as the types say; what has no gaps lies where its part lay."""
    found = []
    for part, kind in zip(places, types, strict=True):
        gaps = replace(kind, shape=kind.kept).empty(part.device) if not dense(kind) else None
        found.append((part if gaps is None else gaps.copy_(part)).expand(kind.shape))
    return found


def lying(types: Iterable[TensorType], strides: Iterable[Iterable[int]]) -> tuple[TensorType, ...]:
    """Types with the strides that kernels gave, of what has no gaps; without any as they are.

    Traces can tell other strides, and a backward adds up in the order in which its values lie.
    """
    pairs = [
        (t, replace(t, stride=tuple(s) if s else t.stride)) for t, s in zip_longest(types, strides)
    ]
    return tuple(new if dense(new) and new.nbytes == old.nbytes else old for old, new in pairs)


def places_of(
    left: list[torch.Tensor], types: Sequence[TensorType], device: torch.device
) -> list[torch.Tensor]:
    """Where the parts of a set of values can be written: where another set was, or else anew.

    Args:
        left: Another set of the same values, no longer read, or none; empty afterwards. Memory is
            taken of those without gaps that nobody else holds.
        types: What comes.
        device: The device to put it on.
    """
    found = []
    for k, kind in enumerate(types):
        place = TensorType(kind.kept, kind.dtype, kind.stride if dense(kind) else None)
        if left and dense(kind) and kind.is_of(left[k]) and is_held_once(left, k):
            found.append(left[k].as_strided(place.shape, place.strides))
        else:
            found.append(place.empty(device))
    left.clear()
    return found


def _part(buffer: torch.Tensor, kind: TensorType, begin: int) -> torch.Tensor:
    """A value's place in a buffer, in the order of its strides where it is dense."""
    part = buffer[begin : begin + kind.nbytes].view(kind.torch_dtype)
    if kind.stride is not None and dense(kind):
        return part.as_strided(kind.kept, kind.stride)
    return part.view(kind.kept)


def dense(kind: TensorType) -> bool:
    """Whether what is kept fills its memory without gaps, in some order of the dimensions."""
    if kind.stride is None:
        return True
    step = 1
    for stride, n in sorted(zip(kind.stride, kind.kept, strict=True)):
        if n > 1 and stride != step:
            return False
        step *= max(n, 1)
    return True
