"""Whether a loss adds up over the rows of a batch: seen by what it is of one, two and three rows.

A traced graph cannot show it, since the number of rows is a constant there.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial

import torch
from torch import Tensor

from pipec.errors import FrontendError
from pipec.frontends.base import quiet, user_code
from pipec.graph.torch_private import tree_map

_MOST = 2**24
"""Weights, or values of one row, above which a model, or its loss, is not computed."""
_NOISE = 1e-4
"""Growth that may be rounding, as a share of the loss, which is computed in float32."""


def is_small(values: Iterable[object], rows: int = 1) -> bool:
    """Whether the tensors among these, of so many rows, have few enough numbers to compute them."""
    return sum(v.numel() for v in values if isinstance(v, Tensor)) <= _MOST * rows


def draw(values: object) -> object:
    """Numbers between 0 and 1 in place of the tensors in nested values; zeros for integers."""
    generator = torch.Generator().manual_seed(0)

    def drawn(value: object) -> object:
        if not isinstance(value, Tensor):
            return value
        if value.is_floating_point():
            return torch.rand(value.shape, generator=generator)
        return torch.zeros(value.shape, dtype=value.dtype)

    return tree_map(drawn, values)


def find_growth(loss: Callable[..., Tensor], values: Sequence[object], rows: int) -> list[float]:
    """The loss of a row, of the row twice and three times, if these say that it adds up; else [].

    A mean over rows stays the same. A sum, alone or beside a mean, grows by equal steps, a norm by
    a power of the rows. A loss that compares rows with each other does neither.

    Args:
        loss: Of ``values``. It must not change anything but torch's random state.
        values: Tensors, or nested ones, of which the first row is taken.
        rows: Rows of a batch. A tensor whose first dimension is no multiple of them stays whole.
    """

    def repeat(value: object, count: int) -> object:
        if not isinstance(value, Tensor) or not value.dim() or len(value) % rows:
            return value
        return value[: len(value) // rows].repeat(count, *[1] * (value.dim() - 1))

    found: list[float] = []
    untouched, taken = torch.random.fork_rng(devices=[]), user_code("the loss takes no such rows")
    with suppress(FrontendError), taken, untouched, torch.no_grad(), quiet():
        parts = (tree_map(partial(repeat, count=k), [*values]) for k in (1, 2, 3) if rows)
        found += [float(loss(*part)) for part in parts]
    return [float(f"{v:.4g}") for v in found] if len(found) == 3 and _grows(*found) else []


def _grows(one: float, two: float, three: float) -> bool:
    """Whether ``a + b k`` or ``b k^p`` is the loss of k rows; False where one is no number."""
    first, second = two - one, three - two
    if not abs(first) > _NOISE * max(abs(one), abs(two)):
        return False
    powers = [math.log(v / one) / math.log(k) for k, v in ((2, two), (3, three)) if v * one > 0]
    known = len(powers) == 2 and abs(powers[0] - powers[1]) < 0.01 * abs(powers[0])
    return known or abs(first - second) < 0.01 * abs(first)
