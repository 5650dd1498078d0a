"""Where two correct runs disagree by a step: ReLUs at zero, maxima of pooling at a tie.

A gradient jumps where the argument of a ReLU crosses zero, and where the largest element of a
window of max pooling is another one. Of millions of arguments some lie within rounding of zero, and
of each other, so that two correct runs, float32 and float64 of autograd among them, take unlike
sides there and their gradients differ by far more than rounding. Here the backward graphs run twice
in torch: with what torch saved, and with the elements in question as the kernels saved them. The
difference is what the kernels' sides explain, to the element, and nothing else.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import Tensor, fx

from pipec.backends.fpga.engines.network import integers
from pipec.compiler.verify_training import add, chain_stages
from pipec.graph.ir import Graph, InputKind
from pipec.runtime.program import StageProgram

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Sides:
    """Changes by other sides of ReLUs and other maxima of windows.

    Attributes:
        relus: Number of elements of ReLUs that lie on another side.
        maxima: Number of windows of max pooling that have another largest element.
        gradients: What that adds to the sums of the parameters' gradients; empty where none does.
    """

    relus: int
    maxima: int
    gradients: Tensors

    def __str__(self) -> str:
        """How many of each there are: ``2 ReLU, 1 max``."""
        counts = ((self.relus, "ReLU"), (self.maxima, "max"))
        return ", ".join(f"{n} {what}" for n, what in counts if n)


def apply_sides(
    stages: Sequence[StageProgram],
    weights: Mapping[str, Tensor],
    batches: Sequence[Mapping[str, Tensor]],
    seed: int,
    saved: Mapping[tuple[int, int], Mapping[str, Tensor]],
    tolerance: float,
) -> Sides:
    """The changes that follow from the sides that the kernels took.

    Args:
        stages: Stages of the plan.
        weights: Weights of the whole model.
        batches: The model's inputs and targets by name, one set per microbatch.
        seed: Seed of random ops.
        saved: What the kernels saved, by name, of a stage and microbatch.
        tolerance: Largest error of such an element, and largest difference of the two elements of a
            window, relative to their tensor's largest magnitude; where it is larger, torch's stays.
    """
    counts, gradients = [0, 0], Tensors()

    def turn(microbatch: int, stage: int, own: Tensors) -> Tensors:
        """The values that a stage's B reads; counts those on the other side."""
        theirs = saved[stages[stage].index, microbatch]
        found, *more = copy_sides(stages[stage], own, theirs, tolerance)
        counts[:] = [a + b for a, b in zip(counts, more, strict=True)]
        return found

    for microbatch, inputs in enumerate(batches):
        before = list(counts)
        there = chain_stages(stages, weights, inputs, seed, partial(turn, microbatch))
        if counts != before:
            here = chain_stages(stages, weights, inputs, seed)
            add(gradients, {n: there[n] - here[n] for n in here})
    return Sides(counts[0], counts[1], gradients)


def copy_sides(
    stage: StageProgram, own: Tensors, theirs: Mapping[str, Tensor], tolerance: float
) -> tuple[Tensors, int, int]:
    """Values saved in torch, elements on the other side as the kernels saved them.

    Values are by name; the tolerance is that of `apply_sides`. Also how many elements of ReLUs and
    how many maxima were put there.
    """
    assert stage.training is not None
    found, relus, maxima = dict(own), 0, 0
    for name in own.keys() & theirs.keys():
        found[name], count = _copy_zeros(own[name], theirs[name], tolerance)
        relus += count
    for pool in _pools(stage.training.B):
        if pool[1] in theirs:
            found[pool[1]], count = _choose(pool, own, theirs, tolerance)
            maxima += count
    return found, relus, maxima


def _copy_zeros(own: Tensor, theirs: Tensor, tolerance: float) -> tuple[Tensor, int]:
    """A saved tensor with the elements that are zero in one run alone as in the other."""
    if own.shape != theirs.shape or not own.is_floating_point() or not own.numel():
        return own, 0
    near = (own - theirs).abs() <= tolerance * own.abs().max()
    unlike = ((own == 0) != (theirs == 0)) & near
    return torch.where(unlike, theirs.to(own.dtype), own), int(unlike.sum())


_Pool = tuple[str, str, tuple[tuple[int, ...], ...]]
"""A max pooling whose gradient a stage computes: names of the saved values ``[..., h, w]`` that it
slides over, and of the saved places of the maxima ``[..., oh, ow]``, ``y * w + x``; kernel, stride,
padding and dilation, each down and across."""


def _choose(
    pool: _Pool, own: Tensors, theirs: Mapping[str, Tensor], tolerance: float
) -> tuple[Tensor, int]:
    """The places of the maxima, near ties decided as the kernels did, and how many.

    The kernels' place lies in the same window, its value within the tolerance of the maximum, and
    is no smaller than the element that torch chose among what the kernels saved.
    """
    maps, places, steps = pool
    x, here, there = own[maps], own[places], theirs[places]
    if here.shape != there.shape or not here.numel():
        return here, 0
    there = torch.where(_inside(there, x.shape, steps), there, here).to(here.dtype)
    near = _gather(x, here) - _gather(x, there) <= tolerance * x.abs().max()
    known = theirs.get(maps)
    if known is not None and known.shape == x.shape:
        near &= _gather(known, there) >= _gather(known, here)
    unlike = (there != here) & near
    return torch.where(unlike, there, here), int(unlike.sum())


def _inside(places: Tensor, shape: torch.Size, steps: tuple[tuple[int, ...], ...]) -> Tensor:
    """Whether each place lies in the window that it stands for, and in the maps."""
    height, width = shape[-2:]
    found = (places >= 0) & (places < height * width)
    at = (torch.div(places, width, rounding_mode="floor"), places % width)
    for axis, (place, size) in enumerate(zip(at, places.shape[-2:], strict=True)):
        kernel, stride, padding, dilation = (step[axis] for step in steps)
        window = torch.arange(size)[:, None] if axis == 0 else torch.arange(size)
        tap = place + padding - window * stride
        found &= (tap >= 0) & (tap <= (kernel - 1) * dilation) & (tap % dilation == 0)
    return found


def _gather(x: Tensor, places: Tensor) -> Tensor:
    """The elements of maps at places of their own channel and image."""
    return x.flatten(-2).gather(-1, places.flatten(-2).to(torch.int64)).view(places.shape)


def _pools(graph: Graph) -> Iterator[_Pool]:
    """The max poolings of a backward graph whose maps and places were saved."""
    saved = {i.node: i.name for i in graph.inputs_of(InputKind.SAVED)}
    for node in graph.calls:
        if node.target == torch.ops.aten.max_pool2d_with_indices_backward.default:
            _, maps, kernel, stride, padding, dilation, _, places = node.args
            names = [saved.get(cast("fx.Node", n).name) for n in (maps, places)]
            if names[0] is not None and names[1] is not None:
                steps = (kernel, stride or kernel, padding, dilation)
                yield names[0], names[1], tuple(integers(s, 2) for s in steps)
