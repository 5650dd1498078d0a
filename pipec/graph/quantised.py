"""The ops of quantised models, one node each: ``pipec::quantize``, ``qlinear_conv`` and so on.

A raw integer ``q`` stands for ``scale * (q - zero)``. Scales and zero points are tensors of one
element, of one per index of an axis, or of one per block of it. Each op is the ONNX operator that
it is named after, in the integers that onnxruntime computes: sums are exact in 32 bits, rounding
is half to even in float32, and what does not fit saturates. There are no gradients.

```text
%q = pipec.quantize(%x, %scale, %zero, 1, 0, dtype=uint8)        QuantizeLinear
%y = pipec.dequantize(%q, %scale, %zero, 1, 0, dtype=float32)    DequantizeLinear
%q, %scale, %zero = pipec.dynamic_quantize(%x)                   DynamicQuantizeLinear
%n = pipec.integer_matmul(%a, %b, %a_zero, %b_zero)              MatMulInteger
%n = pipec.integer_conv(%x, %w, %x_zero, %w_zero, [1, 1], ...)   ConvInteger
%q = pipec.qlinear_matmul(%a, %a_scale, %a_zero, %b, ...)        QLinearMatMul, QGemm
%q = pipec.qlinear_conv(%x, %x_scale, %x_zero, %w, ...)          QLinearConv
```
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import functional as fn

from pipec.graph.torch_private import OpOverload

_library = torch.library.Library("pipec", "FRAGMENT")
_MOST_IN_FLOAT32 = 2**24 // 255**2
"""Products of two 8-bit numbers that float32 adds up exactly in any order; float64 takes any."""
_CONV = {1: fn.conv1d, 2: fn.conv2d, 3: fn.conv3d}

QUANTISED: set[OpOverload] = set()
"""All of these ops."""
_Kernel = TypeVar("_Kernel", bound=Callable[..., object])


def _op(schema: str, fake: Callable[..., object]) -> Callable[[_Kernel], _Kernel]:
    """Define an op: its schema, its types on fake tensors, and what it computes."""

    def define(kernel: _Kernel) -> _Kernel:
        name = kernel.__name__
        _library.define(f"{name}{schema}")
        _library.impl(name, kernel, "CompositeExplicitAutograd")
        torch.library.register_fake(f"pipec::{name}", fake, lib=_library)
        QUANTISED.add(getattr(torch.ops.pipec, name).default)
        return kernel

    return define


def _spread(t: Tensor, x: Tensor, axis: int, block: int) -> Tensor:
    """Scales or zero points of ``x`` so that they broadcast over it."""
    if block and t.dim() == x.dim():
        return t.repeat_interleave(block, axis).narrow(axis, 0, x.shape[axis])
    if t.dim() == 1 and t.numel() > 1:
        return t.reshape([-1 if k == axis % x.dim() else 1 for k in range(x.dim())])
    return t.reshape(()) if t.numel() == 1 else t


def _saturate(steps: Tensor, dtype: torch.dtype) -> Tensor:
    """Whole numbers in float32 as integers of a type."""
    info = torch.iinfo(dtype)
    return steps.clamp(info.min, info.max).to(torch.int32).to(dtype).contiguous()


@_op(
    "(Tensor x, Tensor scale, Tensor? zero, int axis, int block, *, ScalarType dtype,"
    " ScalarType? precision=None) -> Tensor",
    lambda x, *_, dtype, precision=None: x.new_empty(x.shape, dtype=dtype),
)
def quantize(
    x: Tensor,
    scale: Tensor,
    zero: Tensor | None,
    axis: int,
    block: int,
    *,
    dtype: torch.dtype,
    precision: torch.dtype | None = None,
) -> Tensor:
    """Rounded multiples of a scale; the division is in ``precision``, float32 at least."""
    half = x.dtype in (torch.float16, torch.bfloat16)
    wide = x.to(precision or (torch.float32 if half else x.dtype))
    steps = torch.round(wide / _spread(scale, x, axis, block).to(wide.dtype)).to(torch.float32)
    if zero is not None:
        steps = steps + _spread(zero.to(torch.float32), x, axis, block)
    return _saturate(steps, dtype)


@_op(
    "(Tensor x, Tensor scale, Tensor? zero, int axis, int block, *, ScalarType dtype) -> Tensor",
    lambda x, *_, dtype: x.new_empty(x.shape, dtype=dtype),
)
def dequantize(
    x: Tensor, scale: Tensor, zero: Tensor | None, axis: int, block: int, *, dtype: torch.dtype
) -> Tensor:
    """Integers, or 8-bit floats, times a scale."""
    steps = x.to(torch.int32 if x.dtype == torch.int32 else torch.float32)  # which is exact
    if zero is not None and bool((zero := zero.to(steps.dtype)).any()):
        steps = steps - _spread(zero, x, axis, block)
    real = steps.to(torch.float32) * _spread(scale, x, axis, block).to(torch.float32)
    return real.to(dtype).contiguous()


@_op(
    "(Tensor x) -> (Tensor, Tensor, Tensor)",
    lambda x: (
        x.new_empty(x.shape, dtype=torch.uint8),
        x.new_empty(()),
        x.new_empty((), dtype=torch.uint8),
    ),
)
def dynamic_quantize(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """8-bit multiples of a scale that fits the data, the scale, and the zero point."""
    low, high = x.amin().clamp(max=0), x.amax().clamp(min=0)
    scale = (high - low) / 255
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    zero = (-low / scale).clamp(0, 255).round()
    return _saturate((x / scale).round() + zero, torch.uint8), scale, zero.to(torch.uint8)


def _sums(y: Tensor) -> Tensor:
    """Exact sums as the 32-bit accumulators that they are: they wrap."""
    return y.to(torch.int64).to(torch.int32)


def _matmul_shape(a: Tensor, b: Tensor) -> list[int]:
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    rows = [] if a.dim() == 1 else [a.shape[-2]]
    return [*batch, *rows, *([] if b.dim() == 1 else [b.shape[-1]])]


@_op(
    "(Tensor a, Tensor b, Tensor? a_zero, Tensor? b_zero) -> Tensor",
    lambda a, b, *_: a.new_empty(_matmul_shape(a, b), dtype=torch.int32),
)
def integer_matmul(
    a: Tensor, b: Tensor, a_zero: Tensor | None, b_zero: Tensor | None
) -> Tensor:  # fmt: skip
    """Sums of products; zero points of one element, per row of ``a``, and per column of ``b``."""
    wide = torch.float32 if a.shape[-1] <= _MOST_IN_FLOAT32 else torch.float64
    x, y = a.to(wide), b.to(wide)
    if a_zero is not None:
        x = x - _rows(a_zero).to(wide)
    if b_zero is not None:
        y = y - b_zero.to(wide)
    return _sums(torch.matmul(x, y))


def _rows(t: Tensor) -> Tensor:
    return t.unsqueeze(-1) if t.dim() == 1 and t.numel() > 1 else t


@_op(
    "(Tensor a, Tensor a_scale, Tensor a_zero, Tensor b, Tensor b_scale, Tensor b_zero,"
    " Tensor y_scale, Tensor y_zero, Tensor? bias=None) -> Tensor",
    lambda a, _s, _z, b, _bs, _bz, _ys, zero, bias=None: a.new_empty(
        _matmul_shape(a, b), dtype=zero.dtype
    ),
)
def qlinear_matmul(
    a: Tensor,
    a_scale: Tensor,
    a_zero: Tensor,
    b: Tensor,
    b_scale: Tensor,
    b_zero: Tensor,
    y_scale: Tensor,
    y_zero: Tensor,
    bias: Tensor | None = None,
) -> Tensor:
    """A product of quantised matrices and 32-bit biases, quantised again."""
    sums = integer_matmul(a, b, a_zero, b_zero)
    scale = _rows(a_scale).to(torch.float32) * b_scale.to(torch.float32)
    return _requantize(sums if bias is None else sums + bias, scale, y_scale, y_zero)


def _requantize(sums: Tensor, scale: Tensor, y_scale: Tensor, y_zero: Tensor) -> Tensor:
    steps = torch.round(sums.to(torch.float32) * (scale / y_scale.to(torch.float32)))
    return _saturate(steps + y_zero.to(torch.float32), y_zero.dtype)


def _conv_shape(
    x: Tensor, w: Tensor, strides: Sequence[int], pads: Sequence[int], dilations: Sequence[int]
) -> list[int]:
    sizes = [
        (n + low + high - (k - 1) * d - 1) // s + 1
        for n, k, s, low, high, d in zip(
            x.shape[2:], w.shape[2:], strides, pads, pads[len(strides) :], dilations, strict=False
        )
    ]
    return [x.shape[0], w.shape[0], *sizes]


@_op(
    "(Tensor x, Tensor w, Tensor? x_zero, Tensor? w_zero, int[] strides, int[] pads,"
    " int[] dilations, int groups) -> Tensor",
    lambda x, w, _xz, _wz, strides, pads, dilations, groups: x.new_empty(
        _conv_shape(x, w, strides, pads, dilations), dtype=torch.int32
    ),
)
def integer_conv(
    x: Tensor,
    w: Tensor,
    x_zero: Tensor | None,
    w_zero: Tensor | None,
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
    groups: int,
) -> Tensor:
    """Sums of products under a window; ``pads`` are first all low and then all high ones."""
    rank = len(strides)
    wide = torch.float32 if w[0].numel() <= _MOST_IN_FLOAT32 else torch.float64
    a, b = x.to(wide), w.to(wide)
    if x_zero is not None:
        a = a - x_zero.to(wide)
    if w_zero is not None:
        b = b - _spread(w_zero.to(wide), w, 0, 0)
    a = fn.pad(a, [n for k in reversed(range(rank)) for n in (pads[k], pads[rank + k])])
    with torch.backends.nnpack.flags(enabled=False):  # it would multiply transforms, not integers
        return _sums(_CONV[rank](a, b, None, strides, 0, dilations, groups)).contiguous()


@_op(
    "(Tensor x, Tensor x_scale, Tensor x_zero, Tensor w, Tensor w_scale, Tensor w_zero,"
    " Tensor y_scale, Tensor y_zero, Tensor? bias, int[] strides, int[] pads, int[] dilations,"
    " int groups) -> Tensor",
    lambda x, _s, _z, w, _ws, _wz, _ys, zero, _b, strides, pads, dilations, groups: x.new_empty(
        _conv_shape(x, w, strides, pads, dilations), dtype=zero.dtype
    ),
)
def qlinear_conv(
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor,
    w: Tensor,
    w_scale: Tensor,
    w_zero: Tensor,
    y_scale: Tensor,
    y_zero: Tensor,
    bias: Tensor | None,
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
    groups: int,
) -> Tensor:
    """A convolution of quantised tensors and 32-bit biases, quantised again."""
    sums = integer_conv(x, w, x_zero, w_zero, strides, pads, dilations, groups)
    if bias is not None:
        sums = sums + _spread(bias, sums, 1, 0)
    scale = _spread(x_scale.to(torch.float32) * w_scale.to(torch.float32), sums, 1, 0)
    return _requantize(sums, scale, y_scale, y_zero)


QUANTIZE, DEQUANTIZE = torch.ops.pipec.quantize.default, torch.ops.pipec.dequantize.default
"""These two, as they stand in graphs."""
