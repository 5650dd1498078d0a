"""Whether a loss adds up over the rows of a batch: seen by what it is of one, two and three rows.

A traced graph cannot show it, since the number of rows is a constant there.
"""

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial

import torch
from torch import Tensor

from pipec.errors import FrontendError
from pipec.frontends.base import quiet, user_code
from pipec.graph.torch_private import tree_leaves, tree_map

_MOST = 2**24
"""Numbers in a model's outputs above which its loss is not computed."""
_NOISE = 1e-4
"""Growth that may be rounding, as a share of the loss, which is computed in float32."""


def find_growth(
    loss: Callable[[object, Sequence[Tensor]], Tensor],
    outputs: object,
    targets: Sequence[Tensor],
    rows: int,
    weights: Iterable[Tensor] = (),
) -> list[float]:
    """The loss of a row, of the row twice and three times, if these say that it adds up; else [].

    A mean over rows stays the same. A sum, alone or beside a mean, grows by equal steps, a norm by
    a power of the rows. A loss that compares rows with each other does neither.

    Args:
        loss: Of the model's outputs and the target's tensors.
        outputs: What the model returned in tracing; numbers between 0 and 1 are drawn in its place.
        targets: Examples, of which the first row is taken.
        rows: Rows of a batch. A tensor whose first dimension is no multiple of them stays whole.
        weights: What the loss reads only; a copy is called, since a loss may have state.
    """
    generator, found = torch.Generator().manual_seed(0), list[float]()

    def draw(value: object) -> object:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return (
                torch.zeros(value.shape, dtype=value.dtype) if isinstance(value, Tensor) else value
            )
        return torch.rand(value.shape, generator=generator)

    def repeat(value: object, count: int) -> object:
        if not isinstance(value, Tensor) or not value.dim() or len(value) % rows:
            return value
        return value[: len(value) // rows].repeat(count, *[1] * (value.dim() - 1))

    drawn = sum(t.numel() for t in tree_leaves(outputs) if isinstance(t, Tensor))
    if not rows or drawn > _MOST:
        return found
    untouched, taken = torch.random.fork_rng(devices=[]), user_code("the loss takes no such rows")
    with suppress(FrontendError), taken, untouched, torch.no_grad(), quiet():
        loss, outputs = copy.deepcopy(loss, {id(w): w for w in weights}), tree_map(draw, outputs)
        for count in (1, 2, 3):
            some, wanted = (tree_map(partial(repeat, count=count), v) for v in (outputs, targets))
            found.append(float(loss(some, wanted)))
    return [float(f"{v:.4g}") for v in found] if len(found) == 3 and _grows(*found) else []


def _grows(one: float, two: float, three: float) -> bool:
    """Whether ``a + b k`` or ``b k^p`` is the loss of k rows; False where one is no number."""
    first, second = two - one, three - two
    if not abs(first) > _NOISE * max(abs(one), abs(two)):
        return False
    powers = [math.log(v / one) / math.log(k) for k, v in ((2, two), (3, three)) if v * one > 0]
    known = len(powers) == 2 and abs(powers[0] - powers[1]) < 0.01 * abs(powers[0])
    return known or abs(first - second) < 0.01 * abs(first)
