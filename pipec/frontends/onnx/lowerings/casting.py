"""Casts; unsigned 16, 32 and 64-bit integers, which torch stores but has few kernels for."""

import numpy as np
import onnx
import torch
from torch import Tensor

from pipec.frontends.onnx.context import Context, Result, lowering
from pipec.frontends.onnx.mini import fold
from pipec.frontends.onnx.refusals import Refused
from pipec.frontends.onnx.values import FLOAT8, Value, torch_dtype, type_of

_WIDE = {torch.uint16: torch.int32, torch.uint32: torch.int64, torch.uint64: torch.int64}
_LOWEST = -(2**63)
_SMALL = (torch.uint8, torch.uint16, torch.uint32, torch.int8, torch.int16)


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


_NAMED = {name.lower(): number for name, number in onnx.TensorProto.DataType.items()}


@lowering("Cast")
def cast(ctx: Context, x: Tensor) -> Result:
    """Another element type; the first opsets name it by a string."""
    to = ctx.attr("to")
    number = _NAMED.get(to.lower(), 0) if isinstance(to, str) else int(to)
    return convert(x, torch_dtype(number))


@lowering("CastLike", raw=None)
def cast_like(ctx: Context, x: Value, like: Value) -> Result:
    """The element type of another tensor, whatever its numbers; known values stay known."""
    if not isinstance(like, Tensor | np.ndarray):
        raise Refused("the type of a sequence")
    to = type_of(like).dtype
    if isinstance(x, np.ndarray):
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in ctx.node.attribute}
        node = onnx.helper.make_node("Cast", ["x"], ["y"], to=to, **attributes)
        return fold(node, ctx.frame, [x])
    return convert(ctx.tensor(x), torch_dtype(to))


def convert(x: Tensor, dtype: torch.dtype) -> Tensor:
    """``x`` in another type as ONNX wants it.

    Raises:
        Refused: To an 8-bit float: torch does not saturate as ONNX says.
    """
    if x.dtype == dtype:
        return x
    if dtype in FLOAT8:
        raise Refused(f"a cast to {dtype}: torch saturates differently")
    if x.is_floating_point() and dtype in _SMALL:
        return x.to(torch.int64).to(dtype)
    return x.to(dtype)


@lowering("BitCast")
def bit_cast(ctx: Context, x: Tensor) -> Result:
    """The same bits as another type of the same width."""
    dtype = torch_dtype(ctx.attr("to"))
    if dtype.itemsize != x.element_size():
        raise Refused("a type of another width")
    return x.view(dtype)
