"""Fourier transforms."""

import torch
from torch import Tensor

from pipec.frontends.onnx.context import Context, Result, lowering, scalar
from pipec.frontends.onnx.refusals import Refused
from pipec.graph.arrays import Array


def _complex(x: Tensor) -> Tensor:
    """The last dimension (1: real, 2: real and imaginary part) as one complex number."""
    if x.shape[-1] == 1:
        return torch.complex(x[..., 0], torch.zeros_like(x[..., 0]))
    return torch.view_as_complex(x.contiguous())


@lowering("DFT", known=(1, 2))
def dft(ctx: Context, x: Tensor, length: Array | None = None, axis: Array | None = None) -> Result:
    """The discrete Fourier transform along an axis, or its inverse; one-sided if asked."""
    where = int(scalar(axis, ctx.attr("axis", 1 if ctx.version < 20 else -2)))
    where %= x.dim()
    inverse, onesided = bool(ctx.attr("inverse", 0)), bool(ctx.attr("onesided", 0))
    if x.dtype in (torch.float16, torch.bfloat16) or where == x.dim() - 1:
        raise Refused(f"a transform of {x.dtype} along dimension {where}")
    size = None if length is None else int(scalar(length))
    if inverse and onesided:
        n = size if size is not None else 2 * (x.shape[where] - 1)
        real: Tensor = torch.fft.irfft(_complex(x), n, where)
        return real.unsqueeze(-1)
    if onesided:
        return torch.view_as_real(torch.fft.rfft(x[..., 0], size, where))
    function = torch.fft.ifft if inverse else torch.fft.fft
    return torch.view_as_real(function(_complex(x), size, where))


@lowering("STFT", known=(1, 3))
def stft(
    ctx: Context, x: Tensor, step: Array, window: Tensor | None = None, length: Array | None = None
) -> Result:
    """Transforms of overlapping frames; one-sided for real signals by default."""
    if length is None and window is None:
        raise Refused("neither a window nor a frame length")
    size = int(scalar(length)) if length is not None or window is None else window.shape[0]
    onesided = bool(ctx.attr("onesided", 1))
    signal = x if x.dim() == 3 else x.unsqueeze(-1)
    if x.dtype in (torch.float16, torch.bfloat16):
        raise Refused(f"a transform of {x.dtype}")
    frames = signal.unfold(1, size, int(scalar(step)))
    if signal.shape[-1] == 1:
        real = frames[:, :, 0] if window is None else frames[:, :, 0] * window
        function = torch.fft.rfft if onesided else torch.fft.fft
        return torch.view_as_real(function(real, dim=-1))
    if onesided:
        raise Refused("a one-sided transform of a complex signal")
    values = torch.complex(frames[:, :, 0].contiguous(), frames[:, :, 1].contiguous())
    return torch.view_as_real(torch.fft.fft(values if window is None else values * window, dim=-1))
