"""The fake result of a batch normalisation against that of the ops it is decomposed into."""

import random
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._decomp import decomposition_table

from pipec.graph.norms import by_fixed_statistics, of_fixed_statistics
from pipec.graph.torch_private import FakeTensorMode

SHAPES = st.lists(st.integers(1, 4), min_size=2, max_size=5)
DTYPES = st.sampled_from([torch.float32, torch.float64, torch.bfloat16])


def described(tensors: Iterable[torch.Tensor]) -> list[Any]:
    return [(t.shape, t.stride(), t.dtype, t.device, type(t)) for t in tensors]


@given(SHAPES, DTYPES, DTYPES, st.booleans(), st.randoms())
def test_types_are_those_of_the_decomposition(
    shape: list[int], dtype: torch.dtype, other: torch.dtype, affine: bool, rng: random.Random
) -> None:
    axes = rng.sample(range(len(shape)), len(shape))
    with FakeTensorMode():
        x = torch.empty([shape[a] for a in axes], dtype=dtype)
        x = x.permute([axes.index(a) for a in range(len(shape))])
        a, b, mean, var = (torch.empty(shape[1], dtype=other) for _ in range(4))
        args = (x, *((a, b) if affine else (None, None)), mean, var, 0.1, 1e-5)
        found, expected = (
            by_fixed_statistics(*args),
            decomposition_table[by_fixed_statistics](*args),
        )
    assert described(found) == described(expected)


def test_usual_types_are_known_without_it() -> None:
    with FakeTensorMode() as mode:
        x, c = torch.empty(2, 3, 1, 5), torch.empty(3)
        assert of_fixed_statistics(mode, x, c, c, c, c, 0.1, 1e-5) is not None
        assert of_fixed_statistics(mode, x, c, c, torch.empty(5), c, 0.1, 1e-5) is None


def test_sizes_that_do_not_fit_are_an_error() -> None:
    with FakeTensorMode():
        x, c = torch.empty(2, 3, 4, 5), torch.empty(3)
        with pytest.raises(RuntimeError, match="broadcast"):
            by_fixed_statistics(x, c, c, torch.empty(7), c, 0.1, 1e-5)
