"""Where ReLUs of two correct runs disagree: values within rounding of zero, and what that changes.

A gradient jumps where the argument of a ReLU crosses zero. Of millions of arguments some lie within
rounding of it, so that two correct runs, float32 and float64 of autograd among them, take unlike
sides there and their gradients differ by far more than rounding. Here the backward graphs run twice
in torch: with what torch saved, and with the elements in question as the kernels saved them. The
difference is what the kernels' sides explain, to the element, and nothing else.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pipec.compiler.emitted import add
from pipec.compiler.verify_training import chained
from pipec.runtime.program import StageProgram

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Sides:
    """What other sides of ReLUs change.

    Attributes:
        elements: How many lie on another side.
        gradients: What that adds to the sums of the parameters' gradients; empty where none does.
    """

    elements: int
    gradients: Tensors


def other_sides(
    stages: Sequence[StageProgram],
    weights: Mapping[str, Tensor],
    batches: Sequence[Mapping[str, Tensor]],
    seed: int,
    saved: Mapping[tuple[int, int], Mapping[str, Tensor]],
    tolerance: float,
) -> Sides:
    """What follows from the sides that the kernels took.

    Args:
        stages: Of the plan.
        weights: Of the whole model.
        batches: The model's inputs and targets by name, one set per microbatch.
        seed: Of random ops.
        saved: What the kernels saved, by name, of a stage and microbatch.
        tolerance: Largest error of such an element, relative to its tensor's largest magnitude;
            where it is larger, torch's stays.
    """
    elements, gradients = 0, Tensors()
    for microbatch, inputs in enumerate(batches):
        theirs = [saved[stage.index, microbatch] for stage in stages]
        one = _of_one(stages, weights, inputs, seed, theirs, tolerance)
        elements += one.elements
        add(gradients, one.gradients)
    return Sides(elements, gradients)


def _of_one(
    stages: Sequence[StageProgram],
    weights: Mapping[str, Tensor],
    inputs: Mapping[str, Tensor],
    seed: int,
    saved: Sequence[Mapping[str, Tensor]],
    tolerance: float,
) -> Sides:
    """`other_sides` of one microbatch, what was saved by stage."""
    elements = 0

    def turned(stage: int, own: Tensors) -> Tensors:
        """What a stage saved, elements on the other side as the kernels saved them."""
        nonlocal elements
        found = dict(own)
        for name in own.keys() & saved[stage].keys():
            found[name], count = _on_their_side(own[name], saved[stage][name], tolerance)
            elements += count
        return found

    there, _ = chained(stages, weights, inputs, seed, turned)
    if not elements:
        return Sides(0, {})
    here, _ = chained(stages, weights, inputs, seed)
    return Sides(elements, {n: there[n] - here[n] for n in here})


def _on_their_side(own: Tensor, theirs: Tensor, tolerance: float) -> tuple[Tensor, int]:
    """A saved tensor with the elements that are zero in one run alone as in the other."""
    if own.shape != theirs.shape or not own.is_floating_point() or not own.numel():
        return own, 0
    near = (own - theirs).abs() <= tolerance * own.abs().max()
    unlike = ((own == 0) != (theirs == 0)) & near
    return torch.where(unlike, theirs.to(own.dtype), own), int(unlike.sum())
