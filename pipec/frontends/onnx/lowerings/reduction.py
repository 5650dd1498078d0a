"""Reductions over axes, extremal positions, running sums."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from pipec.frontends.onnx.context import Context, Result, lowering, scalar
from pipec.frontends.onnx.lowerings.casting import is_wide_unsigned, narrow, to_ordered, widen
from pipec.frontends.onnx.lowerings.movement import axes_of
from pipec.frontends.onnx.refusals import Refused
from pipec.graph.arrays import Array

Axes = tuple[int, ...]
Reduction = Callable[[Tensor, Axes, bool], Tensor]


def _extreme(x: Tensor, axes: Axes, keep: bool, largest: bool) -> Tensor:
    if any(x.shape[a] == 0 for a in axes):
        shape = [1 if a in axes else n for a, n in enumerate(x.shape)]
        ends = (-math.inf, math.inf)
        if not x.is_floating_point():
            ends = torch.iinfo(x.dtype).min, torch.iinfo(x.dtype).max
        empty = x.new_full(shape, ends[not largest])
        return empty if keep else empty.squeeze(axes)
    return (torch.amax if largest else torch.amin)(x, axes, keep)


def _product(x: Tensor, axes: Axes, keep: bool) -> Tensor:
    for axis in sorted(axes, reverse=True):
        x = x.prod(axis, keepdim=keep, dtype=x.dtype)
    return x


def _sum(x: Tensor, axes: Axes, keep: bool) -> Tensor:
    return x.sum(axes, keepdim=keep, dtype=x.dtype)


def _in_floats(function: Reduction) -> Reduction:
    """A reduction of real numbers, with which integers are computed in double precision."""

    def reduce(x: Tensor, axes: Axes, keep: bool) -> Tensor:
        if x.is_floating_point():
            return function(x, axes, keep)
        return function(x.to(torch.float64), axes, keep).to(x.dtype)

    return reduce


def _root(x: Tensor, axes: Axes, keep: bool) -> Tensor:
    if not x.is_floating_point():
        return _sum(x.to(torch.float64).square(), axes, keep).sqrt().to(x.dtype)
    norm: Tensor = torch.linalg.vector_norm(x, 2, axes, keep)
    return norm


_REDUCTIONS: dict[str, Reduction] = {
    "ReduceL1": lambda x, a, k: _sum(x.abs(), a, k),
    "ReduceL2": _root,
    "ReduceLogSum": _in_floats(lambda x, a, k: _sum(x, a, k).log()),
    "ReduceLogSumExp": _in_floats(torch.logsumexp),
    "ReduceMax": lambda x, a, k: _extreme(x, a, k, largest=True),
    "ReduceMean": _in_floats(lambda x, a, k: x.mean(a, keepdim=k)),
    "ReduceMin": lambda x, a, k: _extreme(x, a, k, largest=False),
    "ReduceProd": _product,
    "ReduceSum": _sum,
    "ReduceSumSquare": lambda x, a, k: _sum(x.square(), a, k),
}
_ELEMENTWISE: dict[str, Callable[[Tensor], Tensor]] = {
    "ReduceL1": torch.abs,
    "ReduceL2": torch.abs,
    "ReduceLogSum": torch.log,
    "ReduceSumSquare": torch.square,
}
"""What a reduction over no axis does to each element; others leave it as it is."""


@lowering(*_REDUCTIONS, known=(1,))
def reduce(ctx: Context, x: Tensor, axes: Array | None = None) -> Result:
    """A reduction over some axes, or over all of them."""
    found = axes_of(ctx, axes, x.dim())
    function, keep = _REDUCTIONS[ctx.node.op_type], bool(ctx.attr("keepdims", 1))
    if not found and not ctx.attr("noop_with_empty_axes", 0):
        found = list(range(x.dim()))
    if not found:
        alone = _ELEMENTWISE.get(ctx.node.op_type)
        return alone(x) if alone else x
    if x.dtype == torch.bool:
        return function(x.to(torch.uint8), tuple(found), keep).to(torch.bool)
    if x.dtype == torch.uint64 and ctx.node.op_type in ("ReduceMax", "ReduceMin"):
        return to_ordered(function(to_ordered(x), tuple(found), keep)).to(x.dtype)
    if x.dtype == torch.uint64 and ctx.node.op_type not in ("ReduceSum", "ReduceProd"):
        raise Refused("this reduction of uint64 numbers")
    return narrow(function(widen(x), tuple(found), keep), x)


@lowering("ArgMax", "ArgMin")
def arg_extreme(ctx: Context, x: Tensor) -> Result:
    """Position of the largest or smallest element along an axis; the first or last of equals."""
    x = to_ordered(x) if x.dtype == torch.uint64 else widen(x)
    axis, keep = ctx.attr("axis", 0), bool(ctx.attr("keepdims", 1))
    function = torch.argmax if ctx.node.op_type == "ArgMax" else torch.argmin
    if ctx.attr("select_last_index", 0):
        return torch.rsub(function(x.flip(axis), axis, keep), x.shape[axis] - 1)
    return function(x, axis, keep)


@lowering("CumSum", "CumProd", known=(1,))
def cumulative(ctx: Context, x: Tensor, axis: Array) -> Result:
    """Running sum or product; without the element itself, or from the end, if asked."""
    along = int(scalar(axis)) % x.dim()
    if is_wide_unsigned(x):
        raise Refused("a running sum of unsigned numbers")
    y = x.flip(along) if ctx.attr("reverse", 0) else x
    is_sum = ctx.node.op_type == "CumSum"
    y = (torch.cumsum if is_sum else torch.cumprod)(y, along, dtype=x.dtype)
    if ctx.attr("exclusive", 0):
        first = torch.full_like(y.narrow(along, 0, 1), 0 if is_sum else 1)
        y = torch.cat([first, y.narrow(along, 0, y.shape[along] - 1)], along)
    return y.flip(along) if ctx.attr("reverse", 0) else y
