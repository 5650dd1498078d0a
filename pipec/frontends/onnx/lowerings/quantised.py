"""Quantised models: each ONNX node becomes one op of `pipec.graph.quantised`."""

import torch
from torch import Tensor

import pipec.graph.quantised  # noqa: F401 - defines the ops
from pipec.frontends.onnx.context import Context, Result, lowering
from pipec.frontends.onnx.lowerings.windows import conv_window
from pipec.frontends.onnx.refusals import Refused
from pipec.frontends.onnx.values import torch_dtype

_ops = torch.ops.pipec


@lowering("QuantizeLinear")
def quantize_linear(ctx: Context, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Result:
    """Rounded multiples of a scale, saturated."""
    dtype = torch.uint8 if zero is None else zero.dtype
    if zero is None and ctx.attr("output_dtype", 0):
        dtype = torch_dtype(ctx.attr("output_dtype"))
    if dtype.is_floating_point:
        raise Refused(f"quantising to {dtype}")
    precision = torch_dtype(ctx.attr("precision")) if ctx.attr("precision", 0) else None
    at = _axis(ctx, x)
    result: Tensor = _ops.quantize(x, scale, zero, *at, dtype=dtype, precision=precision)
    return result


@lowering("DequantizeLinear")
def dequantize_linear(ctx: Context, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Result:
    """Integers times a scale."""
    written = ctx.attr("output_dtype", 0)
    dtype = torch_dtype(written) if written else scale.dtype
    result: Tensor = _ops.dequantize(x, scale, zero, *_axis(ctx, x), dtype=dtype)
    return result


def _axis(ctx: Context, x: Tensor) -> tuple[int, int]:
    """The axis of scales and zero points, and how many of its elements share one."""
    return ctx.attr("axis", 1) % max(x.dim(), 1), ctx.attr("block_size", 0)


@lowering("DynamicQuantizeLinear")
def dynamic_quantize_linear(_: Context, x: Tensor) -> Result:
    """8-bit multiples of a scale that fits the data."""
    result: tuple[Tensor, ...] = _ops.dynamic_quantize(x)
    return result


@lowering("MatMulInteger")
def matmul_integer(
    _: Context, a: Tensor, b: Tensor, a_zero: Tensor | None = None, b_zero: Tensor | None = None
) -> Result:
    """A product of 8-bit integers in 32 bits; zero points per row of A and per column of B."""
    result: Tensor = _ops.integer_matmul(a, b, a_zero, b_zero)
    return result


@lowering("ConvInteger")
def conv_integer(
    ctx: Context, x: Tensor, w: Tensor, x_zero: Tensor | None = None, w_zero: Tensor | None = None
) -> Result:
    """A convolution of 8-bit integers in 32 bits."""
    result: Tensor = _ops.integer_conv(x, w, x_zero, w_zero, *_window(ctx, x, w))
    return result


def _window(ctx: Context, x: Tensor, w: Tensor) -> tuple[object, ...]:
    """Strides, pads, dilations and groups of a convolution."""
    shape = conv_window(ctx, x, w)
    return shape.strides, (*shape.begin, *shape.end), shape.dilations, ctx.attr("group", 1)


@lowering("QLinearMatMul")
def qlinear_matmul(_: Context, *operands: Tensor) -> Result:
    """A product of quantised matrices, quantised again."""
    if operands[2].dtype.is_floating_point:
        raise Refused("8-bit floats")
    result: Tensor = _ops.qlinear_matmul(*operands)
    return result


@lowering("QGemm", domain="com.microsoft")
def qgemm(ctx: Context, *operands: Tensor | None) -> Result:
    """A product of quantised matrices and biases, quantised again."""
    a, a_scale, a_zero, b, b_scale, b_zero, bias, *last = operands
    if len(last) < 2 or last[0] is None or ctx.attr("alpha", 1.0) != 1:
        raise Refused("a result in floating point, or a factor")
    a, b = (
        t.t() if t is not None and ctx.attr(k, 0) else t for t, k in ((a, "transA"), (b, "transB"))
    )
    result: Tensor = _ops.qlinear_matmul(a, a_scale, a_zero, b, b_scale, b_zero, *last, bias)
    return result


@lowering("QLinearConv")
def qlinear_conv(
    ctx: Context, x: Tensor, x_scale: Tensor, x_zero: Tensor, w: Tensor, *others: Tensor
) -> Result:
    """A convolution of quantised tensors, quantised again."""
    *scales, bias = others if len(others) == 5 else (*others, None)
    result: Tensor = _ops.qlinear_conv(x, x_scale, x_zero, w, *scales, bias, *_window(ctx, x, w))
    return result
