"""Sliding windows (kernel, strides, dilations, pads as ONNX writes them), and convolutions."""

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as fn

from pipec.frontends.onnx.context import Context, Result, lowering
from pipec.frontends.onnx.refusals import Refused


@dataclass(frozen=True)
class Window:
    """One sliding window; every field has one entry per spatial dimension.

    Attributes:
        sizes: Input sizes.
        kernel: Kernel sizes.
        strides: Steps between windows.
        dilations: Distances between the elements of a window.
        begin: Pads before the first element; may be negative (crops).
        end: Pads after the last element.
        ceil: Whether a last window that is only partly filled counts.
    """

    sizes: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]
    ceil: bool = False

    @property
    def room(self) -> tuple[int, ...]:
        """How far a window can move, from one end of the padding to the other."""
        extents = [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True)]
        sizes = zip(self.sizes, self.begin, self.end, extents, strict=True)
        return tuple(size + b + e - extent for size, b, e, extent in sizes)

    @property
    def outputs(self) -> tuple[int, ...]:
        """Number of windows; one that would start in the right padding does not count."""
        counts = []
        for k, room in enumerate(self.room):
            count = (-(-room // self.strides[k]) if self.ceil else room // self.strides[k]) + 1
            if self.ceil and (count - 1) * self.strides[k] >= self.sizes[k] + self.begin[k]:
                count -= 1
            counts.append(max(count, 0))
        return tuple(counts)

    @property
    def symmetric(self) -> bool:
        """Whether each dimension has the same, non-negative pad on both sides."""
        return self.begin == self.end and min(self.begin, default=0) >= 0

    @property
    def extra(self) -> tuple[int, ...]:
        """Elements beyond the end pad that the last window reads."""
        steps = zip(self.outputs, self.strides, self.room, strict=True)
        return tuple(max(0, (n - 1) * s - room) for n, s, room in steps)

    def pad(self, x: Tensor, value: float = 0.0) -> Tensor:
        """``x`` with all padding written out, so that a window without pads and ceil is equal."""
        ends = tuple(p + e for p, e in zip(self.end, self.extra, strict=True))
        if not any(self.begin) and not any(ends):
            return x
        pairs = list(zip(self.begin, ends, strict=True))
        return fn.pad(x, [n for pair in reversed(pairs) for n in pair], value=value)


def window(ctx: Context, sizes: tuple[int, ...], kernel: tuple[int, ...]) -> Window:
    """The window that a node's attributes describe.

    Raises:
        Refused: Attributes and rank do not fit.
    """
    rank = len(sizes)
    ones = (1,) * rank
    strides = tuple(ctx.attr("strides") or ones)
    dilations = tuple(ctx.attr("dilations") or ones)
    pads = tuple(ctx.attr("pads") or (0,) * (2 * rank))
    if {len(kernel), len(strides), len(dilations)} != {rank} or len(pads) != 2 * rank:
        raise Refused("kernel, strides, dilations or pads do not fit the input's rank")
    if min(*strides, *dilations, *kernel) < 1:
        raise Refused("a kernel size, stride or dilation below 1")
    begin, end = pads[:rank], pads[rank:]
    mode = ctx.attr("auto_pad", "NOTSET")
    ceil = bool(ctx.attr("ceil_mode", 0))
    if mode == "VALID":
        begin = end = (0,) * rank
    elif mode in ("SAME_UPPER", "SAME_LOWER"):
        begin, end = _same(sizes, kernel, strides, dilations, mode)
        ceil = False
    return Window(sizes, kernel, strides, dilations, begin, end, ceil)


def _same(
    sizes: tuple[int, ...],
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    mode: str,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Pads for which there are ``ceil(size / stride)`` windows."""
    totals = [
        max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0)
        for n, k, s, d in zip(sizes, kernel, strides, dilations, strict=True)
    ]
    small, large = tuple(t // 2 for t in totals), tuple(t - t // 2 for t in totals)
    return (small, large) if mode == "SAME_UPPER" else (large, small)


CONV = {1: fn.conv1d, 2: fn.conv2d, 3: fn.conv3d}
_TRANSPOSED = {1: fn.conv_transpose1d, 2: fn.conv_transpose2d, 3: fn.conv_transpose3d}


def conv_window(ctx: Context, x: Tensor, w: Tensor) -> Window:
    """The window of a convolution.

    Raises:
        Refused: It has no 1 to 3 spatial dimensions, or attributes and rank do not fit.
    """
    if x.dim() - 2 not in CONV or w.dim() != x.dim():
        raise Refused(f"a convolution of {x.dim() - 2} spatial dimensions; want 1 to 3")
    return window(ctx, tuple(x.shape[2:]), tuple(w.shape[2:]))


@lowering("Conv")
def conv(ctx: Context, x: Tensor, w: Tensor, bias: Tensor | None = None) -> Result:
    """A convolution; unequal pads become a pad node before it."""
    rank, shape, groups = x.dim() - 2, conv_window(ctx, x, w), ctx.attr("group", 1)
    pads: tuple[int, ...] = shape.begin
    if not shape.symmetric:
        x, pads = shape.pad(x), (0,) * rank
    return CONV[rank](x, w, bias, shape.strides, pads, shape.dilations, groups)


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
