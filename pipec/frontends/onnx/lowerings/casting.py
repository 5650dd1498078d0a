"""Casts and quantisation."""

import numpy as np
import onnx
import torch
from torch import Tensor

from pipec.frontends.onnx.context import Context, Result, lowering
from pipec.frontends.onnx.fold import fold
from pipec.frontends.onnx.lowerings.convolution import integer_conv
from pipec.frontends.onnx.refusals import Refused
from pipec.frontends.onnx.values import FLOAT8, Value, torch_dtype, type_of

_NAMED = {name.lower(): number for name, number in onnx.TensorProto.DataType.items()}


@lowering("Cast")
def cast(ctx: Context, x: Tensor) -> Result:
    """Another element type; the first opsets name it by a string."""
    to = ctx.attr("to")
    number = _NAMED.get(to.lower(), 0) if isinstance(to, str) else int(to)
    return converted(x, torch_dtype(number))


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
    return converted(ctx.tensor(x), torch_dtype(to))


def converted(x: Tensor, dtype: torch.dtype) -> Tensor:
    """``x`` in another type as ONNX wants it.

    Raises:
        Refused: To an 8-bit float: torch does not saturate as ONNX says.
    """
    if x.dtype == dtype:
        return x
    if dtype in FLOAT8:
        raise Refused(f"a cast to {dtype}: torch saturates differently")
    if x.is_floating_point() and dtype in (torch.uint8, torch.uint16, torch.uint32, torch.int8):
        return x.to(torch.int64).to(dtype)
    if x.is_floating_point() and dtype == torch.int16:
        return x.to(torch.int64).to(dtype)
    return x.to(dtype)


@lowering("BitCast")
def bit_cast(ctx: Context, x: Tensor) -> Result:
    """The same bits as another type of the same width."""
    dtype = torch_dtype(ctx.attr("to"))
    if dtype.itemsize != x.element_size():
        raise Refused("a type of another width")
    return x.view(dtype)


def _along(t: Tensor, axis: int, rank: int) -> Tensor:
    """A vector along one dimension of a tensor of ``rank``; others stay."""
    if t.dim() != 1 or t.numel() == 1:
        return t.reshape(()) if t.numel() == 1 and t.dim() <= 1 else t
    return t.reshape([-1 if k == axis % rank else 1 for k in range(rank)])


def _scale(ctx: Context, t: Tensor, x: Tensor) -> Tensor:
    """Scales or zero points spread over the elements that they belong to."""
    axis, block = ctx.attr("axis", 1), ctx.attr("block_size", 0)
    if block and t.dim() == x.dim():
        spread = t.repeat_interleave(block, axis % x.dim())
        return spread.narrow(axis % x.dim(), 0, x.shape[axis])
    return _along(t, axis, x.dim())


@lowering("QuantizeLinear")
def quantize_linear(ctx: Context, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Result:
    """Rounded multiples of a scale, saturated."""
    dtype = torch.uint8 if zero is None else zero.dtype
    if zero is None and ctx.attr("output_dtype", 0):
        dtype = torch_dtype(ctx.attr("output_dtype"))
    if dtype in FLOAT8 or dtype.is_floating_point:
        raise Refused(f"quantising to {dtype}")
    wide = x.to(torch.float32) if x.dtype in (torch.float16, torch.bfloat16) else x
    precision = ctx.attr("precision", 0)
    if precision:
        wide = x.to(torch_dtype(precision))
    ratio = wide / _scale(ctx, scale, x).to(wide.dtype)
    y = torch.round(ratio).to(torch.float32)
    if zero is not None:
        y = y + _scale(ctx, zero.to(torch.int32), x).to(torch.float32)
    info = torch.iinfo(dtype)
    return converted(torch.clamp(y, info.min, info.max), dtype)


@lowering("DequantizeLinear")
def dequantize_linear(ctx: Context, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Result:
    """Integers times a scale."""
    exact = torch.float32 if x.dtype in FLOAT8 else torch.int32
    y = x.to(exact)
    if zero is not None:
        y = y - _scale(ctx, zero.to(exact), x)
    out = torch_dtype(ctx.attr("output_dtype")) if ctx.attr("output_dtype", 0) else scale.dtype
    return (y.to(torch.float32) * _scale(ctx, scale, x).to(torch.float32)).to(out)


@lowering("DynamicQuantizeLinear")
def dynamic_quantize_linear(_: Context, x: Tensor) -> Result:
    """8-bit multiples of a scale that fits the data."""
    low, high = torch.clamp(x.amin(), max=0), torch.clamp(x.amax(), min=0)
    scale = (high - low) / 255
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    zero = torch.clamp(torch.round(-low / scale), 0, 255)
    y = torch.clamp(torch.round(x / scale) + zero, 0, 255)
    return y.to(torch.uint8), scale, zero.to(torch.uint8)


@lowering("QLinearMatMul")
def qlinear_matmul(
    _: Context,
    a: Tensor,
    a_scale: Tensor,
    a_zero: Tensor,
    b: Tensor,
    b_scale: Tensor,
    b_zero: Tensor,
    y_scale: Tensor,
    y_zero: Tensor,
) -> Result:
    """A product of quantised matrices, quantised again."""
    if a_zero.dtype in FLOAT8:
        raise Refused("8-bit floats")
    x = a.to(torch.int32) - _rows(a_zero.to(torch.int32))
    y = torch.matmul(x, b.to(torch.int32) - b_zero.to(torch.int32)).to(torch.float32)
    ratio = _rows(a_scale).to(torch.float32) * b_scale.to(torch.float32)
    return _requantized(y * (ratio / y_scale.to(torch.float32)), y_zero)


def _rows(t: Tensor) -> Tensor:
    return t.unsqueeze(-1) if t.dim() == 1 and t.numel() > 1 else t


@lowering("QLinearConv")
def qlinear_conv(
    ctx: Context,
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor,
    w: Tensor,
    w_scale: Tensor,
    w_zero: Tensor,
    y_scale: Tensor,
    y_zero: Tensor,
    bias: Tensor | None = None,
) -> Result:
    """A convolution of quantised tensors, quantised again."""
    y = integer_conv(ctx, x, w, x_zero, w_zero)
    channels = (1, -1) + (1,) * (x.dim() - 2)
    if bias is not None:
        y = y + bias.reshape(channels).to(y.dtype)
    ratio = (x_scale.to(torch.float32) * w_scale.to(torch.float32)) / y_scale.to(torch.float32)
    ratio = ratio.reshape(channels) if ratio.numel() > 1 else ratio
    return _requantized(y.to(torch.float32) * ratio, y_zero)


def _requantized(y: Tensor, zero: Tensor) -> Tensor:
    info = torch.iinfo(zero.dtype)
    shifted = torch.round(y) + zero.to(torch.float32)
    return torch.clamp(shifted, info.min, info.max).to(zero.dtype)
