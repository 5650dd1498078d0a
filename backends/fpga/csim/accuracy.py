"""What narrow numbers lose: C simulations of all stages against the model in float32."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pipec.backends.fpga.csim.run import CSimulation
from pipec.compiler.comparison import Allowed


@dataclass(frozen=True)
class Accuracy:
    """One value that leaves a stage, over all frames.

    Attributes:
        stage: The stage that computes it.
        value: Its name.
        frames: Sets of inputs that were run.
        max_relative_error: Largest difference, over the largest magnitude.
        mean_relative_error: Mean difference, over the mean magnitude.
        top1_agreement: Share of rows whose largest element is at the same place; None for what
            is no matrix of rows and classes.
    """

    stage: int
    value: str
    frames: int
    max_relative_error: float
    mean_relative_error: float
    top1_agreement: float | None


def measure(
    stages: Sequence[CSimulation],
    inputs: Sequence[Mapping[str, Tensor]],
    want: Sequence[Mapping[str, Tensor]],
) -> list[Accuracy]:
    """Run every frame through the stages and compare what leaves them.

    Args:
        stages: In order.
        inputs: The model's inputs by name, one set per frame.
        want: Values in float32 by name, one set per frame.

    Returns:
        One item per floating-point value, in order of the stages.
    """
    found: dict[tuple[int, str], list[tuple[Tensor, Tensor]]] = {}
    for frame, reference in zip(inputs, want, strict=True):
        known = dict(frame)
        for k, stage in enumerate(stages):
            results = stage(known)
            known |= results
            for name, value in results.items():
                if value.dtype.is_floating_point:
                    found.setdefault((k, name), []).append((value, reference[name]))
    return [_compared(k, name, pairs) for (k, name), pairs in found.items()]


def _compared(stage: int, value: str, pairs: Sequence[tuple[Tensor, Tensor]]) -> Accuracy:
    found, want = (torch.stack(side).double() for side in zip(*pairs, strict=True))
    error, size = (found - want).abs(), want.abs()
    same = None
    if want.dim() == 3 and want.shape[-1] > 1:  # frames of [rows, classes]
        same = float((found.argmax(-1) == want.argmax(-1)).double().mean())
    return Accuracy(
        stage,
        value,
        len(pairs),
        float(error.max() / size.max().clamp_min(1e-30)),
        float(error.mean() / size.mean().clamp_min(1e-30)),
        same,
    )


def told(item: Accuracy, bound: Allowed) -> str:
    """One line for people.

    Args:
        item: What was lost.
        bound: What the formats explain.

    Example:
        >>> told(Accuracy(0, "y", 4, 0.0125, 0.002, 1.0), Allowed(0.031, "likely"))
        'y: max error 1.25 % of 3.1 % (likely bound), mean 0.2 %, top-1 agrees in 100 %'
    """
    text = f"{item.value}: max error {100 * item.max_relative_error:.3g} % "
    text += f"of {100 * bound.relative:.3g} % ({bound.basis} bound), "
    text += f"mean {100 * item.mean_relative_error:.3g} %"
    if item.top1_agreement is not None:
        text += f", top-1 agrees in {100 * item.top1_agreement:.4g} %"
    return text
