"""Resize and Upsample: separable, one axis after the other."""

import math
from collections.abc import Callable

import numpy as np
from torch import Tensor

from pipec.frontends.onnx.context import Context, Result, lowering
from pipec.frontends.onnx.lowerings.casting import is_wide_unsigned
from pipec.frontends.onnx.refusals import Refused
from pipec.frontends.onnx.values import ints
from pipec.graph.arrays import Array

Row = tuple[Array, Array]
"""Positions and weights, [output size, taps] each."""


@lowering("Upsample", known=(1,))
def upsample(ctx: Context, x: Tensor, scales: Array | None = None) -> Result:
    """The old form of Resize: ``asymmetric`` coordinates, ``floor`` for the nearest."""
    if scales is None:
        found = ctx.attr("scales")
        if found is None:
            found = [1.0, 1.0, ctx.attr("height_scale"), ctx.attr("width_scale")]
    else:
        found = scales.reshape(-1).tolist()
    mode = {"bilinear": "linear"}.get(ctx.attr("mode", "nearest"), ctx.attr("mode", "nearest"))
    return _resize(ctx, x, found, None, mode, "asymmetric", "floor")


@lowering("Resize", known=(1, 2, 3))
def resize(
    ctx: Context,
    x: Tensor,
    roi: Array | None = None,
    scales: Array | None = None,
    sizes: Array | None = None,
) -> Result:
    """Samples at other places, by scales or to sizes."""
    if ctx.version < 11:
        return upsample(ctx, x, roi)
    coordinates = ctx.attr("coordinate_transformation_mode", "half_pixel")
    if coordinates == "tf_crop_and_resize":
        raise Refused("coordinate_transformation_mode tf_crop_and_resize")
    if ctx.attr("antialias", 0):
        raise Refused("antialias")
    axes = [a % x.dim() for a in ctx.attr("axes", range(x.dim()))]
    full, wanted = [1.0] * x.dim(), None
    if scales is not None and scales.size:
        for axis, scale in zip(axes, scales.reshape(-1).tolist(), strict=True):
            full[axis] = scale
    elif sizes is not None:
        wanted = list(x.shape)
        for axis, size in zip(axes, ints(sizes), strict=True):
            wanted[axis] = size
        full, wanted = _keep_ratio(ctx, x, axes, wanted)
    mode, nearest = ctx.attr("mode", "nearest"), ctx.attr("nearest_mode", "round_prefer_floor")
    return _resize(ctx, x, full, wanted, mode, coordinates, nearest)


def _keep_ratio(
    ctx: Context, x: Tensor, axes: list[int], wanted: list[int]
) -> tuple[list[float], list[int]]:
    """Scales and sizes under ``keep_aspect_ratio_policy``."""
    policy = ctx.attr("keep_aspect_ratio_policy", "stretch")
    scales = [w / n for w, n in zip(wanted, x.shape, strict=True)]
    if policy != "stretch":
        choose = min if policy == "not_larger" else max
        scale = choose(scales[a] for a in axes)
        for a in axes:
            scales[a], wanted[a] = scale, math.floor(x.shape[a] * scale + 0.5)
    return scales, wanted


def _resize(
    ctx: Context,
    x: Tensor,
    scales: list[float],
    sizes: list[int] | None,
    mode: str,
    coordinates: str,
    nearest: str,
) -> Tensor:
    if is_wide_unsigned(x):
        raise Refused("resizing unsigned numbers")
    if mode not in ("nearest", "linear", "cubic"):
        raise Refused(f"mode {mode!r}", final=True)
    if sizes is None:  # 14 of 5 * 2.8, in 32 bits
        sizes = [int(np.float32(n) * np.float32(s)) for n, s in zip(x.shape, scales, strict=True)]
    if sizes == list(x.shape):
        return x  # onnxruntime copies, whatever the scales
    if mode != "nearest" and not x.is_floating_point():
        raise Refused("integers between integers, which engines cut off or round")
    for axis, (scale, size) in enumerate(zip(scales, sizes, strict=True)):
        if scale == 1 and size == x.shape[axis]:
            continue
        at = _coordinates(coordinates, x.shape[axis], size, scale, mode == "nearest")
        if mode == "nearest":
            x = x.index_select(axis, ctx.tensor(_nearest(at, nearest, x.shape[axis])))
        else:
            x = _blend(ctx, x, axis, _taps(ctx, at, mode, x.shape[axis]))
    return x


def _coordinates(mode: str, size: int, new: int, scale: float, single: bool) -> Array:
    """Where each output element lies on the input axis.

    ``single`` computes in 32 bits, as torch and onnxruntime do: where a place is a whole number or
    a half, what is rounded off before decides between two elements. The corners that are aligned
    are those of the elements that are there, for them too, not of ``size * scale``.
    """
    exact = np.float32 if single else np.float64
    i: Array = np.arange(new, dtype=exact)
    step: Array = np.asarray(scale, exact)
    if mode == "asymmetric":
        return i / step
    if mode == "align_corners":
        return i * exact(size - 1) / exact(max(new - 1, 1))
    if mode == "pytorch_half_pixel" and new <= 1:
        return np.zeros(new)
    if mode == "half_pixel_symmetric":
        adjusted = new / (size * step)
        return size / 2 * (1 - adjusted) + ((i + 0.5) / step - 0.5)
    if mode in ("half_pixel", "pytorch_half_pixel"):
        return (i + 0.5) / step - 0.5
    raise Refused(f"coordinate_transformation_mode {mode}")


def _nearest(at: Array, mode: str, size: int) -> Array:
    slack = 1e-6  # what is so near a half is one for onnxruntime
    modes: dict[str, Callable[[Array], Array]] = {
        "floor": np.floor,
        "ceil": np.ceil,
        "round_prefer_floor": lambda a: np.ceil(a - (0.5 + slack)),
        "round_prefer_ceil": lambda a: np.floor(a + (0.5 + slack)),
    }
    if mode not in modes:
        raise Refused(f"nearest_mode {mode!r}")
    places: Array = np.clip(modes[mode](at.astype(np.float64)), 0, size - 1).astype(np.int64)
    return places


def _taps(ctx: Context, at: Array, mode: str, size: int) -> Row:
    """Which input elements make an output element, and how much of each."""
    reach = 1 if mode == "linear" else 2
    places = np.floor(at).astype(np.int64)[:, None] + np.arange(1 - reach, reach + 1)
    distance = np.abs(at[:, None] - places)
    a = ctx.attr("cubic_coeff_a", -0.75)
    weights = np.maximum(1 - distance, 0) if mode == "linear" else _cubic(distance, a)
    if ctx.attr("exclude_outside", 0):
        weights = np.where((places < 0) | (places >= size), 0, weights)
        weights = weights / weights.sum(1, keepdims=True)
    return np.clip(places, 0, size - 1), weights


def _cubic(distance: Array, a: float) -> Array:
    d = distance
    near = (a + 2) * d**3 - (a + 3) * d**2 + 1
    far = a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a
    kernel: Array = np.where(d <= 1, near, np.where(d < 2, far, 0))
    return kernel


def _blend(ctx: Context, x: Tensor, axis: int, row: Row) -> Tensor:
    places, weights = row
    shape = [-1 if k == axis else 1 for k in range(x.dim())]
    total: Tensor | None = None
    for tap in range(places.shape[1]):
        weight = ctx.tensor(weights[:, tap].astype(np.float32)).to(x.dtype).reshape(shape)
        part = x.index_select(axis, ctx.tensor(places[:, tap])) * weight
        total = part if total is None else total + part
    assert total is not None
    return total
