"""Unsigned 16, 32 and 64-bit integers: torch stores them but has few kernels for them."""

import torch
from torch import Tensor

_WIDE = {torch.uint16: torch.int32, torch.uint32: torch.int64, torch.uint64: torch.int64}
_LOWEST = -(2**63)


def widen(t: Tensor) -> Tensor:
    """The tensor in a signed type with kernels; 64-bit numbers keep their bits, not their value."""
    return t.to(_WIDE[t.dtype]) if t.dtype in _WIDE else t


def narrow(result: Tensor, like: Tensor) -> Tensor:
    """The result of computing on numbers from `widen`, back in the type of ``like``."""
    if like.dtype in _WIDE and result.dtype == _WIDE[like.dtype]:
        return result.to(like.dtype)
    return result


def to_ordered(t: Tensor) -> Tensor:
    """Unsigned 64-bit bits as signed numbers of the same order, and such numbers back."""
    return torch.bitwise_xor(t.to(torch.int64), _LOWEST)


def is_wide_unsigned(t: Tensor) -> bool:
    """Whether the tensor is of one of these types."""
    return t.dtype in _WIDE
