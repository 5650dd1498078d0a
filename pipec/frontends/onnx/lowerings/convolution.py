"""Convolutions of 1, 2 and 3 spatial dimensions."""

from torch import Tensor
from torch.nn import functional as fn

from pipec.frontends.onnx.context import Context, Result, lowering
from pipec.frontends.onnx.lowerings.windows import window
from pipec.frontends.onnx.refusals import Refused

_CONV = {1: fn.conv1d, 2: fn.conv2d, 3: fn.conv3d}
_TRANSPOSED = {1: fn.conv_transpose1d, 2: fn.conv_transpose2d, 3: fn.conv_transpose3d}


@lowering("Conv")
def conv(ctx: Context, x: Tensor, w: Tensor, bias: Tensor | None = None) -> Result:
    """A convolution; unequal pads become a pad node before it."""
    rank = x.dim() - 2
    if rank not in _CONV or w.dim() != x.dim():
        raise Refused(f"a convolution of {rank} spatial dimensions; want 1 to 3")
    shape = window(ctx, tuple(x.shape[2:]), tuple(w.shape[2:]))
    groups = ctx.attr("group", 1)
    pads: tuple[int, ...] = shape.begin
    if not shape.symmetric:
        x, pads = shape.pad(x), (0,) * rank
    return _CONV[rank](x, w, bias, shape.strides, pads, shape.dilations, groups)


@lowering("ConvTranspose")
def conv_transpose(ctx: Context, x: Tensor, w: Tensor, bias: Tensor | None = None) -> Result:
    """A transposed convolution; unusual pads become a crop or pad of the full result."""
    rank = x.dim() - 2
    if rank not in _TRANSPOSED:
        raise Refused(f"a transposed convolution of {rank} spatial dimensions; want 1 to 3")
    ones = (1,) * rank
    strides, dilations = list(ctx.attr("strides") or ones), list(ctx.attr("dilations") or ones)
    extra = ctx.attr("output_padding") or [0] * rank
    full = [
        s * (n - 1) + (k - 1) * d + 1
        for n, s, k, d in zip(x.shape[2:], strides, w.shape[2:], dilations, strict=True)
    ]
    begin, end = _find_pads(ctx, x, full, extra, strides)
    groups, function = ctx.attr("group", 1), _TRANSPOSED[rank]
    small = all(e < max(s, d) for e, s, d in zip(extra, strides, dilations, strict=True))
    if begin == end and min(begin) >= 0 and small:
        return function(x, w, bias, strides, begin, extra, groups, dilations)
    borders = [(-b, o - e) for b, e, o in zip(begin, end, extra, strict=True)]
    late = None if max(map(max, borders)) <= 0 else bias  # padding is not zero, but the bias
    y = function(x, w, bias if late is None else None, strides, 0, 0, groups, dilations)
    y = fn.pad(y, [n for border in reversed(borders) for n in border])
    return y if late is None else y + late.reshape(-1, *ones)


def _find_pads(
    ctx: Context, x: Tensor, full: list[int], extra: list[int], strides: list[int]
) -> tuple[list[int], list[int]]:
    rank = len(full)
    mode, wanted = ctx.attr("auto_pad", "NOTSET"), ctx.attr("output_shape")
    if wanted is None and mode in ("SAME_UPPER", "SAME_LOWER"):
        natural = [f + e for f, e in zip(full, extra, strict=True)]
        wanted = [min(n * s, f) for n, s, f in zip(x.shape[2:], strides, natural, strict=True)]
    if wanted is None:
        pads = ctx.attr("pads") or [0] * (2 * rank)
        return ([0] * rank, [0] * rank) if mode == "VALID" else (pads[:rank], pads[rank:])
    totals = [f + e - n for f, e, n in zip(full, extra, wanted[-rank:], strict=True)]
    # A negative total makes the output larger than natural: all of it goes to the end.
    begin = [max(t + (mode != "SAME_UPPER"), 0) // 2 for t in totals]
    return begin, [t - b for t, b in zip(totals, begin, strict=True)]
