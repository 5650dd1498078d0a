"""Elements of an axis picked by constant positions: upsampling, flips, reflecting pads.

The positions are taken apart into runs of equal steps, each position of which is repeated equally
often: a slice, and a repetition of whole rows, per run; several runs are joined.

```text
0 0 1 1 2 2       (0 1 2) twice each            nearest upsampling: a REPEAT per axis
2 1 0             2, 1, 0                       a flip: a few slices, joined, or a PERM
0 0 0 1 1 2       0 three times, 1 twice, 2     linear upsampling of ONNX, one of its two taps
```
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, cast

import torch
from torch import fx

from pipec.backends.fpga.engines.constants import shape_of
from pipec.backends.fpga.engines.network import Builder, UnsupportedError, Value, lowers
from pipec.backends.fpga.engines.perm import Perm
from pipec.backends.fpga.engines.route import Repeat
from pipec.backends.fpga.lowering.shapes import axis_alone, cut, embedding, join, pad_axes
from pipec.graph.arguments import bind

_FEW_RUNS = 8
"""Runs up to which none is turned round, which takes an engine that holds it."""
_MOST_RUNS = 64
"""Each is an engine that reads the whole value."""


@dataclass(frozen=True)
class Picked:
    """Positions ``part``, each ``times`` times."""

    part: range
    times: int


def runs_of(positions: Sequence[int], *, down: bool = False) -> list[Picked]:
    """Positions as runs of equal steps and equal repetitions, each as long as it can be.

    Steps are positive, or ``down`` too.

    Example:
        >>> runs_of([0, 0, 0, 1, 1, 2, 2])
        [Picked(part=range(0, 1), times=3), Picked(part=range(1, 3), times=2)]
        >>> runs_of([1, 3, 5, 0])
        [Picked(part=range(1, 6, 2), times=1), Picked(part=range(0, 1), times=1)]
    """
    found: list[Picked] = []
    for position, times in ((p, len(list(same))) for p, same in groupby(positions)):
        last = found[-1] if found else Picked(range(0), 0)
        step = position - last.part[-1] if last.part else 0
        goes_on = step == last.part.step or len(last.part) == 1
        if times == last.times and goes_on and (step > 0 or down):
            stop = position + (1 if step > 0 else -1)
            found[-1] = Picked(range(last.part.start, stop, step), times)
        else:
            found.append(Picked(range(position, position + 1), times))
    return found


def pick(
    b: Builder, node: fx.Node, value: Value, axis: int, positions: Sequence[int], suffix: str = ""
) -> Value:
    """The elements of ``axis`` at ``positions``, in their order.

    Raises:
        UnsupportedError: There are no positions, or too many runs of them.
    """
    found = runs_of(positions)
    if len(found) > _FEW_RUNS:
        found = runs_of(positions, down=True)
    if len(found) > _MOST_RUNS:
        raise UnsupportedError(f"positions of an axis in {len(found)} runs of equal steps")
    if not found:
        raise UnsupportedError("no positions of an axis")
    names = [suffix if len(found) == 1 else f"{suffix}_{k}" for k in range(len(found))]
    parts = [
        _repeat(b, node, _part(b, node, value, axis, run.part, name), axis, run.times, name)
        for run, name in zip(found, names, strict=True)
    ]
    return parts[0] if len(parts) == 1 else join(b, node, parts, axis)


def _part(b: Builder, node: fx.Node, value: Value, axis: int, part: range, suffix: str) -> Value:
    """Positions of an axis, in steps of either sign."""
    if part.step > 0:
        return cut(b, node, value, axis, part, suffix)
    value, outer, inner, view = axis_alone(
        b, node, cut(b, node, value, axis, part[::-1], suffix), axis, len(part)
    )
    block, channels = len(part) * inner, value.channels
    whole = math.lcm(block, channels) // block  # a block is made of whole rows
    sizes = (whole, len(part), inner)
    nest = Perm(outer // whole, sizes, (0, 1, 2), channels, 1, channels, 1, (1,))
    return b.put(nest, node, (value.use(),), view, channels, suffix=f"{suffix}_flip")


def _repeat(b: Builder, node: fx.Node, value: Value, axis: int, times: int, suffix: str) -> Value:
    """Every position of an axis ``times`` times; whole rows if rows lie within the axis."""
    if times == 1:
        return value
    size = value.view.shape[axis]
    value, outer, inner, view = axis_alone(b, node, value, axis, size * times)
    channels = math.gcd(inner, value.channels)
    nest, inputs = Repeat(outer * size, inner, times), (value.use(channels),)
    return b.put(nest, node, inputs, view, channels, suffix=f"{suffix}_repeat")


@lowers("aten.index_select.default")
def index_select(b: Builder, node: fx.Node) -> Value:
    """``index_select(x, dim, index)`` with a constant index."""
    return _select(b, node, cast("int", node.args[1]), node.args[2])


@lowers("aten.index.Tensor")
def index(b: Builder, node: fx.Node) -> Value:
    """``x[:, positions]`` with constant positions of one axis, or rows of a constant table."""
    if not b.is_stream(node.args[0]):
        return embedding(b, node)
    places = cast("list[fx.Node | None]", node.args[1])
    (axis, one), *more = [(k, p) for k, p in enumerate(places) if p is not None]
    if more:
        raise UnsupportedError("positions of several axes at once")
    return _select(b, node, axis, one)


def _select(b: Builder, node: fx.Node, axis: int, index: object) -> Value:
    """Constant positions of an axis, whose place the axes of ``index`` take."""
    if not isinstance(index, fx.Node) or index not in b.constants:
        raise UnsupportedError("positions that are computed at run time")
    value = b.value(node.args[0])
    axis %= len(value.view.shape)
    size = value.view.shape[axis]
    positions = [int(p) % size for p in b.constants.value(index).reshape(-1)]
    return pick(b, node, value, axis, positions).reshape(shape_of(node))


@lowers("aten.flip.default")
def flip(b: Builder, node: fx.Node) -> Value:
    """``flip(x, dims)``."""
    value = b.value(node.args[0])
    for k, dim in enumerate(cast("list[int]", node.args[1])):
        axis = dim % len(value.view.shape)
        positions = range(value.view.shape[axis])[::-1]
        value = pick(b, node, value, axis, positions, f"_{k}")
    return value


@lowers("aten.pad.default", "aten.constant_pad_nd.default")
def pad(b: Builder, node: fx.Node) -> Value:
    """``pad(x, pad, mode, value)``: positions that are there already, or a number."""
    if bind(node).get("mode", "constant") == "constant":
        return pad_axes(b, node, bind(node)["value"])
    return resize(b, node)


@lowers(
    "aten.upsample_nearest1d.default",
    "aten.upsample_nearest1d.vec",
    "aten.upsample_nearest2d.default",
    "aten.upsample_nearest2d.vec",
    *(f"aten.{kind}_pad{n}d.default" for kind in ("reflection", "replication") for n in (1, 2)),
)
def resize(b: Builder, node: fx.Node) -> Value:
    """Nearest upsampling, padding with what is there: torch says which rows and columns."""
    value = b.value(node.args[0])
    if len(value.view.shape) not in (3, 4):
        raise UnsupportedError(f"a tensor of rank {len(value.view.shape)} is not a feature map")
    for axis in range(2, len(value.view.shape)):
        value = pick(b, node, value, axis, _sources(node, axis), f"_{axis}")
    return value


def _sources(node: fx.Node, axis: int) -> list[int]:
    """The position on an axis of maps that each position of the result is a copy of."""
    shape = shape_of(cast("fx.Node", node.args[0]))
    line = [1] * len(shape)
    line[axis] = shape[axis]
    places = torch.arange(shape[axis], dtype=torch.float64).reshape(line)
    target: Any = node.target
    found = target(places.expand(1, 1, *shape[2:]), *node.args[1:], **node.kwargs)
    return [int(p) for p in found.movedim(axis, -1).reshape(-1, found.shape[axis])[0]]
